"""``remat minimize`` through the real entry point."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remat import layered
from remat.cli import main
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.schedule import Rules, validate
from remat.schedule.io import read_schedule

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def chain(tmp_path: Path) -> str:
    path = tmp_path / "chain.json"
    write_graph(unit_chain(4), path)
    return str(path)


def test_what_is_printed_and_written(chain: str, tmp_path: Path, capsys: Capture) -> None:
    out, picture = tmp_path / "lean.json", tmp_path / "lean.svg"
    assert main(["minimize", chain, "--backend", "none", "-t", "60", "-q", "-o", str(out), "--plot", str(picture)]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "status    proved least (stopped: finished)"
    assert "peak      3 bytes (50 % of the reference peak)" in lines
    assert any("cost 15 (each op once 9) (no schedule within this peak is cheaper)" in line for line in lines)
    assert not shown.err
    certificate = validate(read_graph(chain), read_schedule(out), Rules(budget=3))
    assert (certificate.accepted, certificate.cost) == (True, 15)
    assert picture.read_bytes().startswith(b"<?xml")


def test_json_and_rules(chain: str, capsys: Capture) -> None:
    words = ["--order", "free", "--max-computes", "1", "--keep", "f0"]
    assert main(["minimize", chain, "--backend", "none", "-t", "60", "-q", "--json", *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["proved"], facts["cost_proved"], facts["order"]) == (True, True, "free")
    assert facts["certificate"]["rules"]["keep"] == ["f0"]
    assert facts["certificate"]["rules"]["max_computes"] == 1
    assert facts["peak"] == facts["bound"] == facts["certificate"]["rules"]["budget"] == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.json"], "none.json: no such file, and no zoo graph of that name either ("),
        (["{chain}", "--order", "any"], "order 'any' is not one of fixed, free"),
        (["{chain}", "--keep", "x"], "tensor 'x' to keep is not in graph"),
        (["{chain}", "--backend", "cpsat"], "there is no backend 'cpsat'; known are cp-sat"),
        (["{chain}", "-t", "-1"], "stop must be a positive number of seconds"),
        (["{chain}", "-o", "nowhere/x.json"], "nowhere/x.json: cannot be written"),
        (["{chain}", "-o", "{chain}"], "would overwrite the input"),
        (["{chain}", "--plot", "x.txt"], "the suffix must be one of"),
    ],
)
def test_one_line_for_every_mistake(words: list[str], message: str, chain: str, capsys: Capture) -> None:
    before = Path(chain).read_bytes()
    assert main(["minimize", *(word.replace("{chain}", chain) for word in words)]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not shown.out
    assert Path(chain).read_bytes() == before


@pytest.mark.slow
def test_ctrl_c_writes_the_best(tmp_path: Path) -> None:
    graph, out = tmp_path / "graph.json", tmp_path / "lean.json"
    write_graph(layered(60, 0.35, 2), graph)
    program = "import sys, remat.cli; sys.exit(remat.cli.main())"
    command = [sys.executable, "-c", program, "minimize", str(graph), "--order", "free", "--backend", "none"]
    process = subprocess.Popen(
        [*command, "-t", "300", "-o", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert any("  annealing " in line for line in process.stderr)  # the orders have been searched by then
        process.send_signal(signal.SIGINT)
        shown, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert "(stopped: interrupted)" in shown
    assert "Traceback" not in err
    peak = validate(read_graph(graph), read_schedule(out)).peak
    assert peak <= 25_340
    assert f"peak      {peak:,} bytes" in shown


MINE = """
from remat.heuristics.greedy import Greedy
from remat.backends.highs import Highs
class Mine(Greedy):
    name = "mine"
class MySolver(Highs):
    name = "my-solver"
"""


def test_a_class_on_the_command_line_may_lie_in_the_current_folder(chain: str, tmp_path: Path) -> None:
    """In a process of its own, as the program does it: the folder is not on the path there, before each of them."""
    (tmp_path / "mine_here.py").write_text(MINE)
    lines = [
        ["solve", chain, "-b", "5", "--method", "mine_here:Mine", "--json"],
        ["solve", chain, "-b", "3", "-f", "checkmate", "--backend", "mine_here:MySolver", "--json"],
        ["compare", chain, "-b", "5", "-m", "mine_here:Mine", "-m", "checkmate/mine_here:MySolver"],
        ["minimize", chain, "--method", "mine_here:Mine", "--json"],
    ]
    code = f"""
import sys
from remat.cli import main
path = [p for p in sys.path if p]
for words in {lines!r}:
    sys.path = list(path)
    sys.modules.pop("mine_here", None)
    assert main([*words, "-q"]) == 0, words
    print("~~~", flush=True)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.split("~~~")[:-1]
    for told, out in zip(('"method": "mine"', "my-solver", "my-solver", '"method": "mine"'), shown, strict=True):
        assert told in out


def test_limits_of_minimize(chain: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from remat.solving import min_peak

    asked = []
    whole = min_peak.minimize
    monkeypatch.setattr(
        min_peak, "minimize", lambda *args, **more: asked.append(more["options"]) or whole(*args, **more)
    )
    words = ["--gap", "0.25", "--isolate", "--memory-limit", "3GiB", "--threads", "1"]
    assert main(["minimize", chain, "-q", "-t", "60", *words]) == 0
    (options,) = asked
    assert (options.relative_gap, options.isolate, options.memory_bytes) == (0.25, True, 3 * 2**30)
    assert "least" in capsys.readouterr().out


def test_the_least_peak_is_an_objective_of_solve(chain: str, capsys: Capture) -> None:
    assert main(["solve", chain, "--objective", "least-peak", "-q", "-t", "60", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["peak"], facts["proved"]) == (3, True)
    assert main(["solve", chain, "--objective", "least-cost", "-q"]) == 2
    assert "Missing option '--budget'" in capsys.readouterr().err
