"""Invalid commands: exit code 2, one line on standard error, no file changed; the lines are recorded."""

import json
import shlex
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

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
#: Contents of files of other kinds, and of faulty configurations and studies.
CONTENTS: dict[str, str | bytes] = {
    "empty.json": "",
    "null.json": "null",
    "deep.json": "[" * 100_000,
    "zip.json": b"PK\x03\x04junk",
    "page.json": "<!DOCTYPE html><html><body>404</body></html>",
    "latin.json": '{"format": "remat-graph", "name": "caf\xe9"}'.encode("latin-1"),
    "newer.json": '{"format": "remat-graph", "version": 2}',
    "run.yaml": "graph: unet\nbudget: 80%\n",
    "json.toml": '{"problem": {"graph": "chain.json"}}',
    "semicolons.csv": "id;lower;upper;size\na;0;2;4\n",
    "backwards.csv": "id,lower,upper,size\na,3,2,4\n",
    "chain.json.gz": b"\x1f\x8b\x08\x00",
    "utf16.json": "{}".encode("utf-16"),
    "model.pkl": b"\x80\x04\x95",
    "model.h5": b"\x89HDF\r\n\x1a\n",
    "model.safetensors": b"@\0\0\0\0\0\0\0{}",
    "model.engine": b"ftrt\0",
    "model.npz": b"PK\x03\x04",
    "model.py": "import torch\n",
    "graph.dot": "digraph { a -> b }\n",
    "picture.png": b"\x89PNG\r\n\x1a\n",
    "syntax.toml": "[problem\n",
    "bad-section.toml": "[problm]\n",
    "bad-budget.toml": RUN.replace("5}", "'80%%'}"),
    "bad-time.toml": RUN.replace("60}", "'soon'}"),
    "bad-method.toml": RUN.replace("checkmate", "checkmat"),
    "outside.toml": RUN.replace("out.json", "/out.json"),
    "imports.toml": RUN.replace("checkmate", "mine:Mine"),
    "costs.csv": "op,us\nf0,fast\n",
    "m.lp": "",
    "study.toml": "name = 's'\ninstances.files = ['chain.json']\nproblem.budget = 5\n[[methods]]\nmethod = 'greedy'\n",
    "model.onnx": b"\x08\x08\x12\x07pytorch",
    "model.tflite": b"\x1c\0\0\0TFL3" + bytes(64),
}
#: Changes of the graph file.
CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "nosize": lambda graph: graph["tensors"][0].pop("size"),
    "half-byte": lambda graph: graph["tensors"][0].update(size=1.5),
    "huge-size": lambda graph: graph["tensors"][0].update(size=10**40),
    "negative-size": lambda graph: graph["tensors"][0].update(size=-4),
    "twice": lambda graph: graph["ops"].append(graph["ops"][0]),
    "ghost": lambda graph: graph["ops"][0].update(inputs=["ghost"]),
    "nan": lambda graph: graph["tensors"][0].update(size=float("nan")),
    "no-ops": lambda graph: graph.update(ops=[], tensors=[], order=[]),
}
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
    write_schedule(Schedule.reference(unit_chain(5)), folder / "other-s.json")
    text = (folder / "chain.json").read_text(encoding="utf-8")
    (folder / "truncated.json").write_text(text[: len(text) // 2], encoding="utf-8")
    for name, change in CHANGES.items():
        graph = json.loads(text)
        change(graph)
        (folder / f"{name}.json").write_text(json.dumps(graph), encoding="utf-8")
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "folder").mkdir()
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


@pytest.mark.parametrize(
    ("line", "module"),
    [("convert model.onnx x.json", "onnx"), ("deploy model.onnx -o x.onnx", "onnx"), ("capture net:step", "torch"),
     ("show model.tflite", "tflite"), ("study run study.toml", "sqlalchemy")],
)  # fmt: skip
def test_missing_extra(line: str, module: str, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The message has the command that installs it."""

    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.chdir(files)
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("remat.torch.versions.version", version)
    before = states(files)
    assert main(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "pip install" in err, err
    assert states(files) == before
    check_text("shell.extra", f"{line} -> {err[:-1]}")
