"""Ctrl-C: what was found is reported and written; before that the exit code is 130."""

import json
from pathlib import Path

import pytest
from shell import interrupt, shell, start

from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph

#: A backend that finds nothing and broods until it is told to stop, as a native solver does.
BROODING = """
import sys, threading
import remat.solving.solve as unused
from remat.backends.base import *
from remat.backends.processes.running import run_interruptible
from remat.cli import main

class Brooding(Backend):
    name, native = "brooding", frozenset()

    @classmethod
    def availability(cls):
        return Availability(AvailabilityState.READY)

    def solve(self, model, options, hint=None, on_incumbent=None, on_bound=None):
        done = threading.Event()
        def work():
            print("brooding", file=sys.stderr, flush=True)
            done.wait(50)
        stopped = run_interruptible(work, done.set)
        return RawResult(Status.UNKNOWN, StopReason.INTERRUPTED if stopped else StopReason.OTHER)

module = sys.modules["remat.solving.solve"]
genuine = module.as_backend
module.as_backend = lambda name: Brooding() if name == "brooding" else genuine(name)
sys.modules["remat.solving.method"].START_HEURISTICS = {}
sys.exit(main())
"""


def test_ctrl_c_before_anything_is_found(tmp_path: Path) -> None:
    write_graph(unit_chain(4), tmp_path / "chain.json")
    words = ["solve", tmp_path / "chain.json", "-b", 5, "--method", "retention-intervals", "--backend", "brooding"]
    done = interrupt(start(*words, "-o", tmp_path / "s.json", code=BROODING), lambda line: line == "brooding\n")
    assert done.code == 130
    assert "no schedule was found before the interruption" in done.out
    assert "6 bytes (100 %) are known to suffice" in done.out
    assert not (tmp_path / "s.json").exists()


def test_ctrl_c_outside_a_solve_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from remat.cli import main, show

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "load_graph", interrupt)
    assert main(["show", "x.json"]) == 130


def solves(line: str) -> bool:
    """Whether a line of the progress shows a schedule while a solver runs."""
    return "  solve  " in line and "overhead" in line


def test_ctrl_c_in_a_real_solver(tmp_path: Path) -> None:
    """CP-SAT needs minutes to prove this one; what the heuristic or the solver has by then is written."""
    graph, out = tmp_path / "chain.json", tmp_path / "s.json"
    write_graph(unit_chain(60), graph)
    words = ["solve", graph, "-b", "45%", "--threads", 1, "-o", out, "--method", "retention-intervals"]
    done = interrupt(start(*words), solves)
    assert done.code == 0, done.err
    assert done.out.startswith("status    feasible (stopped: interrupted)\n")
    assert shell("validate", graph, out, "--budget", "45%", "--order", "fixed").code == 0


def test_ctrl_c_in_a_comparison_keeps_what_is_done(tmp_path: Path) -> None:
    """The first run is over, the second needs minutes: both are in the files, and the third never begins."""
    graph, out = tmp_path / "chain.json", tmp_path / "c.json"
    write_graph(unit_chain(60), graph)
    words = ["compare", graph, "-b", "45%", "--threads", 1, "--json", out]
    done = interrupt(start(*words, "-m", "greedy,retention-intervals/cp-sat,checkmate/highs"), solves)
    assert done.code == 130, done.err
    assert "interrupted: the matrix is not complete" in done.out
    facts = json.loads(out.read_text(encoding="utf-8"))
    assert [(run["method"], run["stop"]) for run in facts["runs"]] == [
        ("greedy", "exhausted"),
        ("retention-intervals/cp-sat", "interrupted"),
    ]
    assert facts["interrupted"] is True
