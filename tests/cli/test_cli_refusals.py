"""Wrong commands: exit code 2, one line on standard error, no file changed; the lines are recorded."""

import json
import shlex
from pathlib import Path

import pytest
from refusals import check_text

from remat.cli import main
from remat.graphs import GraphBuilder
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.graphs.zoo import ZOO
from remat.schedule import Schedule, write_schedule

Capture = pytest.CaptureFixture[str]
RUN = """
problem = {graph = "chain.json", budget = 5}
solve = {backend = "highs", method = "checkmate", threads = 1, time_limit = 60}
output = {schedule = "out.json", quiet = true, json = true}
"""
CYCLE = {
    "format": "remat-graph", "version": 1, "name": "c", "source": "", "cost_unit": "none", "constant_memory": 0,
    "tensors": [{"name": "x", "size": 1}, {"name": "y", "size": 1}],
    "ops": [{"name": "a", "type": "", "cost": 1, "inputs": ["y"], "outputs": ["x"]},
            {"name": "b", "type": "", "cost": 1, "inputs": ["x"], "outputs": ["y"]}],
    "order": ["a", "b"], "meta": {},
}  # fmt: skip
#: Wrong shapes of an op, in files that `rewrite --check` reads.
SHAPES = {"negative": [1, -7, 7, 64], "word": "no", "short": [1, 7, 7], "other": [1, 7, 7, 65]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a training chain of 9 ops (reference peak 6) and files of every kind, some of them wrong."""
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
    (folder / "list.json").write_text("[1, 2]", encoding="utf-8")
    (folder / "cycle.json").write_text(json.dumps(CYCLE), encoding="utf-8")
    (folder / "run.toml").write_text(RUN, encoding="utf-8")
    (folder / "wrong.toml").write_text(RUN.replace("backend", "backnd"), encoding="utf-8")
    (folder / "swapped.txt").write_text("y\nx\n", encoding="utf-8")
    (folder / "broken.txt").write_text("g0\nf0\n", encoding="utf-8")
    (folder / "strange.txt").write_text("nobody\n", encoding="utf-8")
    (folder / "t.csv").write_text("id,lower,upper,size\na,0,2,4\nb,1,3,2\nc,2,3,1\n", encoding="utf-8")
    (folder / "twice.csv").write_text("id,lower,upper,size\na,0,2,4\na,0,1,3\n", encoding="utf-8")
    return folder


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.iterdir()}


COMMANDS = """
fly
backends extra
config
config --schema --example

solve
solve chain.json
solve -b 5
solve chain.json --budget 80% --speed 9
solve chain.json --budget much
solve chain.json --budget 0.8
solve chain.json --budget '8 GX'
solve chain.json --budget -5
solve chain.json --budget 5 --order random
solve chain.json --budget 5 --formulation checkmat
solve chain.json --budget 5 --backend gurob
solve unet --budget 80% --method chen-sqrt --quiet
solve chain.json --budget 5 --time-limit 0
solve chain.json --budget 5 --time-limit nan
solve chain.json --budget 5 --time-limit soon
solve chain.json --budget 5 --gap 1
solve chain.json --budget 5 --threads 0
solve chain.json --budget 5 --seed -1
solve chain.json --budget 5 --max-computes 0
solve chain.json --budget 5 --memory-limit 'a lot'
solve chain.json --budget 5 --keep ghost
solve chain.json --budget 5 --warm-start missing.json
solve chain.json --budget 5 --warm-start chain.json
solve chain.json --budget 5 -o no/such/folder/s.json
solve chain.json --budget 5 -o chain.json
solve chain.json --budget 5 -o .
solve chain.json --budget 5 --plot s.bmp
solve chain.json --objective least-cost
solve missing.json --budget 5
solve 'evil\x1b[2J name' --budget 5
solve . --budget 5
solve -c wrong.toml
solve -c missing.toml
solve -c chain.json
solve -c run.toml --threads 0
solve -c run.toml --backend hihgs
solve -c run.toml -o chain.json

improve chain.json missing.json -b 5
improve chain.json chain.json -b 5
improve chain.json broken.txt -b 5
improve chain.json strange.txt -b 5
improve two.json swapped.txt -b 100%
improve chain.json broken.txt
improve chain.json broken.txt -b 5 -o broken.txt

compare chain.json -m greedy
compare -b 5 -m greedy
compare chain.json -b much -m greedy
compare chain.json -b 5, -m greedy
compare chain.json -b 5 -m checkmate/hihgs
compare chain.json -b 5 -m auto/nobody
compare chain.json -b 5 -m chekmate
compare chain.json -b 5,5 -m greedy
compare chain.json -b 5 -m greedy --csv no/such/c.csv
compare chain.json -b 5 -m greedy --json chain.json
compare chain.json -b 5 -m greedy --plot c.bmp
compare chain.json -b 5 -m greedy -t 0
compare missing.json -b 5 -m greedy
compare chain.json missing.json
compare chain.json s.json --trade-off s.json

frontier chain.json
frontier chain.json -b 5:2:1%
frontier chain.json -b 1:5%:1GiB
frontier chain.json -b 1:x:1%
frontier chain.json -b 0:100:0.001%
frontier chain.json -b 1:2:0%
frontier chain.json -b 4 -o table.txt
frontier chain.json -b 4 --plot chain.json
frontier chain.json -b 4 -m gredy
frontier chain.json -b 4 --workers 0
frontier chain.json -b 4 --state chain.json

batch -m greedy chain.json --memory 40
batch -m greedy batch-1.json --memory 80%
batch -m greedy batch-1.json
batch -m greedy batch-1.json --memory 40 --with batch-1.json
batch -m greedy batch-1.json --memory 40 --with absent.json
batch -m greedy chain.json --memory 40 --batch-size 2
batch -m greedy batch-1.json --memory 40 --independent x
batch -m greedy nonsense --memory 40
batch -m greedy --memory 40

minimize none.json
minimize chain.json --order any
minimize chain.json --keep x
minimize chain.json --backend cpsat
minimize chain.json -t -1
minimize chain.json -o nowhere/x.json
minimize chain.json -o chain.json
minimize chain.json --plot x.txt

order none.json
order chain.json --method serenety
order chain.json --method checkmate
order chain.json --budget '1 parsec'
order chain.json --keep x
order chain.json --method serenity --option divide
order chain.json --method serenity --option devide=true
order chain.json --method serenity --option step_seconds=no
order chain.json --method kahn --option divide=true
order chain.json -t -1
order chain.json -o nowhere/x.json
order chain.json -o chain.json
order chain.json --plot-samples x.txt

show garbage.json
show binary.json
show list.json
show cycle.json
show chain.json --top -1

validate chain.json
validate chain.json missing.json
validate chain.json garbage.json
validate chain.json chain.json

plot chain.json garbage.json -o x.png
plot chain.json garbage.json -o x.exe

generate nothing -o g.json
generate layered -o g.json
generate layered -n 1 -o g.json
generate layered -n 9 --batch 3 -o g.json
generate pyramid -n 3 --seed 3 -o g.json
generate vgg16 -n 3 -o g.json
generate vgg16 --image 64 -o g.json
generate path -n 3 -o g.xyz
generate path -n 3

convert chain.json x.xyz
convert missing.json x.json
convert chain.json x.json --graph chain.json
convert chain.json x.json --to plan
convert s.json x.json --to plans --graph chain.json

allocate t.csv -q --method tightest
allocate t.csv -q --capacity much
allocate t.csv -q --memory x=much
allocate t.csv -q --memory x --memory x
allocate t.csv -q --capacity 1KiB --memory x
allocate t.csv -q --memory =4
allocate t.csv -q --alignment 0
allocate t.csv -q --backend highs
allocate t.csv -q -o here.xyz --to xyz
allocate t.csv -q -o here.bin
allocate t.csv -q --plot here.txt
allocate twice.csv

rewrite swiftnet-c -o o.json --rules magic
rewrite swiftnet-c -o o.json --min-parts 1
rewrite swiftnet-c -o o.json --parts 0
rewrite swiftnet-c -o o.json --accumulator-bytes -4
rewrite swiftnet-c -o o.json --time-limit -1
rewrite negative.json -o o.json --check
rewrite word.json -o o.json --check
rewrite short.json -o o.json --check
rewrite other.json -o o.json --check

trace chain.json s.json -o t.txt
trace chain.json s.json -o s.json
trace chain.json s.json -o t.json --addresses chain.json
trace chain.json s.json -o t.pickle --addresses chain.json
layers chain.json s.json --by colour
layers chain.json s.json -o t.html

traffic chain.json s.json
traffic chain.json s.json --on-chip some
traffic chain.json s.json --on-chip 1MiB,
traffic chain.json s.json --on-chip 100
traffic chain.json s.json --on-chip 1MiB --block 0
traffic chain.json s.json --on-chip 1MiB -o t.txt
traffic chain.json s.json --on-chip 1MiB --plot t.csv
"""


@pytest.mark.parametrize("line", [line for line in COMMANDS.splitlines() if line], ids=ascii)
def test_a_wrong_command_is_one_line(line: str, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(files)
    before = state(files)
    words = shlex.split(line)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("remat: error: ")
    assert err[:-1].isprintable() and err.endswith("\n")
    assert state(files) == before, "an error leaves no file behind"
    check_text(f"shell.{words[0]}", f"{ascii(line)[1:-1]} -> {err[:-1]}")
