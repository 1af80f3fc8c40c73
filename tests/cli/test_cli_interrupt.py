"""Ctrl-C: what was found is reported and written; before that the exit code is 130."""

import json
from pathlib import Path

import pytest
from shell import Ran, interrupt, shell, start

from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph

#: A backend that finds what the hint says and then broods until it is told to stop, as a native solver does.
BROODING = """
import sys, threading
import remat.solving.solve as unused
from remat.backends.base import *
from remat.backends.processes.running import run_interruptible
from remat.cli import main

class Brooding(Backend):
    name, native = "brooding", frozenset()
    finds = sys.argv.pop(1) == "finds"

    @classmethod
    def availability(cls):
        return Availability(AvailabilityState.READY)

    def solve(self, model, options, hint=None, on_incumbent=None, on_bound=None):
        done = threading.Event()
        def work():
            if self.finds:
                on_incumbent(Incumbent(0.0, model.objective.value(hint), None, hint))
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


def interrupted(tmp_path: Path, budget: str, finds: bool, *more: str) -> Ran:
    graph = tmp_path / "chain.json"
    write_graph(unit_chain(4), graph)
    words = ["finds" if finds else "nothing", "solve", graph, "-b", budget]
    words += ["--method", "retention-intervals", "--backend", "brooding", "-o", tmp_path / "s.json", *more]
    return interrupt(start(*words, code=BROODING), lambda line: line == "brooding\n")


def test_ctrl_c_keeps_the_best_schedule(tmp_path: Path) -> None:
    from remat.graphs.io import read_graph
    from remat.schedule import Schedule
    from remat.schedule.io import write_schedule

    write_graph(unit_chain(4), tmp_path / "g.json")
    graph = read_graph(tmp_path / "g.json")
    # f0 is dropped while the gradients come back and computed again: one byte less than the reference order.
    steps = ["f0", "f1", "f2", "f3", "loss", "g3", "g2", "g1", "f0", "g0"]
    warm = Schedule.of_computes(graph, [graph.op_index[op] for op in steps])
    write_schedule(warm, tmp_path / "warm.json")
    done = interrupted(tmp_path, "5", True, "--warm-start", str(tmp_path / "warm.json"), "--json")
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["status"], facts["stop"], facts["objective"]) == ("feasible", "interrupted", 10)
    written = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert [step[1] for step in written["steps"] if step[0] == "compute"] == steps


def test_ctrl_c_before_anything_is_found(tmp_path: Path) -> None:
    done = interrupted(tmp_path, "5", False)
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
