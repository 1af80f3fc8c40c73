"""Invalid commands: exit code 2, one line on standard error, no file changed; the lines are recorded."""

import json
import shlex
from pathlib import Path

import pytest
from refusals import check_text
from shell import RUN

from remat.cli import main
from remat.graphs import GraphBuilder
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.graphs.zoo import ZOO
from remat.schedule import Schedule, write_schedule

Capture = pytest.CaptureFixture[str]
CYCLE = {
    "format": "remat-graph", "version": 1, "name": "c", "source": "", "cost_unit": "none", "constant_memory": 0,
    "tensors": [{"name": "x", "size": 1}, {"name": "y", "size": 1}],
    "ops": [{"name": "a", "type": "", "cost": 1, "inputs": ["y"], "outputs": ["x"]},
            {"name": "b", "type": "", "cost": 1, "inputs": ["x"], "outputs": ["y"]}],
    "order": ["a", "b"], "meta": {},
}  # fmt: skip
#: Invalid shapes of an op, in files for `rewrite --check`.
SHAPES = {"negative": [1, -7, 7, 64], "word": "no", "short": [1, 7, 7], "other": [1, 7, 7, 65]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a training chain of 9 ops (reference peak 6) and files of every kind, some invalid."""
    folder = tmp_path_factory.mktemp("files")
    chain = unit_chain(4)
    write_graph(chain, folder / "chain.json")
    write_graph(AffineGraph.scaled(unit_chain(6), 1).at(1), folder / "batch-1.json")
    write_schedule(Schedule.reference(chain), folder / "s.json")
    b = GraphBuilder("two")
    _ = b.op("x", size=1, cost=1), b.op("y", size=1, cost=1)
    write_graph(b.build(), folder / "two.json")
    write_graph(ZOO["swiftnet-c-folded"](), folder / "cell.json")
    cell = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    for name, shape in SHAPES.items():
        cell["meta"]["shapes"]["cell_c/conv_67"] = shape
        (folder / f"{name}.json").write_text(json.dumps(cell), encoding="utf-8")
    (folder / "garbage.json").write_text("{'no': json", encoding="utf-8")
    (folder / "binary.json").write_bytes(b"\x00\xff" * 50)
    (folder / "weights.pt").write_bytes(b"PK\x03\x04archive/data.pkl")
    (folder / "list.json").write_text("[1, 2]", encoding="utf-8")
    (folder / "cycle.json").write_text(json.dumps(CYCLE), encoding="utf-8")
    (folder / "run.toml").write_text(RUN, encoding="utf-8")
    (folder / "wrong.toml").write_text(RUN.replace("backend", "backnd"), encoding="utf-8")
    (folder / "swapped.txt").write_text("y\nx\n", encoding="utf-8")
    (folder / "broken.txt").write_text("g0\nf0\n", encoding="utf-8")
    (folder / "strange.txt").write_text("unknown\n", encoding="utf-8")
    (folder / "t.csv").write_text("id,lower,upper,size\na,0,2,4\nb,1,3,2\nc,2,3,1\n", encoding="utf-8")
    (folder / "twice.csv").write_text("id,lower,upper,size\na,0,2,4\na,0,1,3\n", encoding="utf-8")
    return folder


def states(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.iterdir()}


COMMANDS = Path(__file__).with_name("refused_commands.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", [line for line in COMMANDS if line])
def test_invalid_command(line: str, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(files)
    before = states(files)
    words = shlex.split(line.replace(r"\x1b", "\x1b"))
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("remat: error: ")
    assert err[:-1].isprintable() and err.endswith("\n")
    assert states(files) == before
    check_text(f"shell.{words[0]}", f"{line} -> {err[:-1]}")
