"""``remat minimize`` through the real entry point."""

import json
import sys
from pathlib import Path

import pytest
from shell import interrupt, shell, start

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


@pytest.mark.slow
def test_ctrl_c_writes_the_best(tmp_path: Path) -> None:
    graph, out = tmp_path / "graph.json", tmp_path / "lean.json"
    write_graph(layered(60, 0.35, 2), graph)
    words = ["minimize", graph, "--order", "free", "--backend", "none", "-t", "300", "-o", out]
    # the orders have been searched by then
    done = interrupt(start(*words), lambda line: "  annealing " in line)
    assert done.code == 0, done.err
    assert "(stopped: interrupted)" in done.out
    peak = validate(read_graph(graph), read_schedule(out)).peak
    assert peak <= 25_340
    assert f"peak      {peak:,} bytes" in done.out


MINE = """
from remat.heuristics.greedy import Greedy
from remat.backends.highs import Highs
class Mine(Greedy):
    name = "mine"
class MySolver(Highs):
    name = "my-solver"
"""


def test_a_class_on_the_command_line_may_lie_in_the_current_folder(
    chain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the program, the folder is not on the path before."""
    (tmp_path / "mine_here.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    path = [folder for folder in sys.path if folder]
    for words, told in (
        (["solve", chain, "-b", "5", "--method", "mine_here:Mine", "--json"], '"method": "mine"'),
        (["solve", chain, "-b", "3", "-f", "checkmate", "--backend", "mine_here:MySolver", "--json"], "my-solver"),
        (["compare", chain, "-b", "5", "-m", "mine_here:Mine", "-m", "checkmate/mine_here:MySolver"], "my-solver"),
        (["minimize", chain, "--method", "mine_here:Mine", "--json"], '"method": "mine"'),
    ):
        monkeypatch.setattr(sys, "path", list(path))
        monkeypatch.delitem(sys.modules, "mine_here", raising=False)
        done = shell(*words, "-q")
        assert done.code == 0, done.err
        assert told in done.out


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
