"""Signals to a whole process: what was found is reported and written; and files that cannot be written."""

import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from processes import PROGRAM, listens
from shell import Ran, finish, interrupt, ok, start

from remat.cli import show
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.graphs.layered import layered

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="sends signals"), pytest.mark.usefixtures("folder")]


def listening(line: str) -> subprocess.Popen[str]:
    """A command that listens to signals already."""
    process = start(line, PROGRAM)
    listens(process)
    return process


def timed(process: subprocess.Popen[str], *signals: int) -> tuple[Ran, float]:
    """The end of a command, and the seconds that it took after the first signal."""
    began = time.monotonic()
    return finish(process, *signals), time.monotonic() - began


SOLVE = "solve open.json -b 80% --order free -t 60 -q -o out.json --json"
MINIMIZE = "minimize open.json --order free -t 60 -q -o out.json --json"


@pytest.mark.parametrize(
    ("line", "number", "code"),
    [
        (SOLVE, signal.SIGTERM, 143),
        pytest.param(SOLVE, signal.SIGHUP, 129, marks=pytest.mark.slow),
        (SOLVE, signal.SIGKILL, -signal.SIGKILL),
        (MINIMIZE, signal.SIGTERM, 143),
        pytest.param(MINIMIZE, signal.SIGINT, 0, marks=pytest.mark.slow),
    ],
)
def test_what_was_found_is_on_disk_and_the_code_says_that_it_was_cut_short(line: str, number: int, code: int) -> None:
    """A killed process loses seconds; any other ends within two. Nobody solves this problem within a minute."""
    write_graph(layered(120, seed=1), "open.json")
    process, out = listening(line), Path("out.json")
    until = time.monotonic() + 60
    while not out.exists() and time.monotonic() < until:
        time.sleep(0.01)
    ran, seconds = timed(process, number)
    assert ran.code == code
    assert json.loads(out.read_text(encoding="utf-8"))["graph_digest"] == read_graph("open.json").digest
    ok("validate open.json out.json", *(["--budget", "80%"] if line == SOLVE else []))
    if number == signal.SIGKILL:
        return
    if ran.err:  # something was being compiled, and that had no end in time
        assert ran.err.startswith("remat: interrupted before the method ended; the best schedule is in ")
    else:
        assert json.loads(ran.out)["stop"] == "interrupted"
    assert seconds < 2 + 8  # the last for a busy machine


#: The solver's thread never ends, and the main thread waits for it.
DEAF = """
import sys, time
from remat.cli import main
from remat.heuristics.eviction import Eviction
def run(self, problem, run):
    print("here", flush=True)
    while True:
        time.sleep(0.05)
Eviction.run = run
sys.exit(main())
"""


@pytest.mark.parametrize(("signals", "most"), [((signal.SIGINT, signal.SIGINT), 1.4), ((signal.SIGINT,), 2.0)])
def test_a_second_signal_ends_it_at_once(signals: tuple[int, ...], most: float) -> None:
    """Also where nothing looks at the first."""
    process = start("solve chain.json -b 5 -q -f eviction", DEAF)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    ran, seconds = timed(process, *signals)
    assert ran.code == 130
    assert seconds < most + 4  # the last for a busy machine


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_lost_where_nothing_is_searched(number: int, code: int) -> None:
    write_graph(layered(2000, seed=1), "g.json")
    assert finish(listening("show g.json"), number) == Ran(code, "", "")


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------

#: A backend that finds nothing and broods until it is told to stop, as a native solver does.
BROODING = """
import sys, threading
import remat.solving.solve as unused
from remat.backends.base import *
from remat.runtime.processes.running import run_interruptible
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


def test_ctrl_c_before_anything_is_found() -> None:
    line = "solve chain.json -b 5 --method retention-intervals --backend brooding -o s.json"
    done = interrupt(start(line, BROODING), lambda line: line == "brooding\n")
    assert done.code == 130
    assert "no schedule was found before the interruption" in done.out
    assert "6 bytes (100 %) are known to suffice" in done.out
    assert not Path("s.json").exists()


def test_ctrl_c_outside_a_solve_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "load_graph", interrupt)
    ok("show x.json", code=130)


def solves(line: str) -> bool:
    """Whether a line of the progress shows a schedule while a solver runs."""
    return "  solve  " in line and "overhead" in line


def test_ctrl_c_in_a_real_solver() -> None:
    """CP-SAT needs minutes to prove this one; what the heuristic or the solver has by then is written."""
    write_graph(unit_chain(60), "long.json")
    done = interrupt(start("solve long.json -b 45% --threads 1 -o s.json --method retention-intervals"), solves)
    assert done.code == 0, done.err
    assert done.out.startswith("status    feasible (stopped: interrupted)\n")
    ok("validate long.json s.json --budget 45% --order fixed")


def test_ctrl_c_in_a_comparison_keeps_what_is_done() -> None:
    """The first run is over, the second needs minutes: both are in the files, and the third never begins."""
    write_graph(unit_chain(60), "long.json")
    methods = "-m greedy,retention-intervals/cp-sat,checkmate/highs"
    done = interrupt(start(f"compare long.json -b 45% --threads 1 --json c.json {methods}"), solves)
    assert done.code == 130, done.err
    assert "interrupted: the matrix is not complete" in done.out
    found = json.loads(Path("c.json").read_text(encoding="utf-8"))
    assert [(run["method"], run["stop"]) for run in found["runs"]] == [
        ("greedy", "exhausted"),
        ("retention-intervals/cp-sat", "interrupted"),
    ]
    assert found["interrupted"] is True


# -- files that cannot be written --------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder on a disk that fills up after the outputs have been looked at; the current one is another."""
    folder = tmp_path / "full"
    folder.mkdir()
    genuine = os.fdopen

    def fdopen(handle: int, *more: object) -> object:
        if str(Path(f"/proc/self/fd/{handle}").readlink()).startswith(str(folder)):
            os.close(handle)
            raise OSError(28, "No space left on device")
        return genuine(handle, *more)

    monkeypatch.setattr("remat.io.files.os.fdopen", fdopen)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def test_a_schedule_goes_elsewhere_if_it_must(full: Path) -> None:
    ran = ok("solve ../chain.json -b 5 -q -o", full / "s.json", code=2)
    assert ran.out.startswith("status    optimal")
    (other,) = Path.cwd().iterdir()
    assert ran.err.endswith(f"s.json: cannot be written: No space left on device; it is in {other} instead\n")
    ok("validate ../chain.json --budget 5", other)
    assert not list(full.iterdir())


def test_a_schedule_is_printed_where_it_cannot_be_written(folder: Path) -> None:
    """No file may be that large, anywhere; half of one is not left behind."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        ran = ok("minimize chain.json -q -t 20 -o s.json", code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "s.json: cannot be written: File too large, nor elsewhere; the content follows" in ran.err
    document, end_of_it = json.JSONDecoder().raw_decode(ran.out)
    assert document["format"] == "remat-schedule" and len(document["steps"]) > 9
    assert "proved least" in ran.out[end_of_it:]
    assert [path.name for path in folder.iterdir()] == ["chain.json"]


def test_a_table_that_cannot_be_written_stops_no_cell(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a state folder; what is done anyway is in the table, and the same command goes on later."""
    ran = ok("compare ../chain.json -b 5,6 -m greedy -q --csv", full / "c.csv", code=2)
    assert ran.err.count("c.csv: cannot be written") == 2  # once on the way, once in the end
    assert ran.out.count("greedy") >= 2
    (other,) = Path.cwd().iterdir()
    assert len(other.read_text(encoding="utf-8").splitlines()) == 3
    other.unlink()
    state = tmp_path / "state"
    command = f"frontier {tmp_path}/chain.json -b 5,6 -m greedy -q --state {state} -o f.csv"
    ok(command)
    cells = sorted(path for path in state.iterdir() if path.name.endswith("-5.json"))
    cells[0].unlink()
    state.rename(full / "state")
    state.symlink_to(full / "state")
    ran = ok(command, code=2)
    assert "the table has the result, and the same command computes that part again" in ran.err
    assert len(Path("f.csv").read_text(encoding="utf-8").splitlines()) == 3
    assert not list((full / "state").glob(".*"))
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "1 of 2 results are from the state folder" in ok(command).out


def test_frontiers_that_start_together_all_work() -> None:
    """Also in a folder where one was killed while it wrote."""
    Path("state").mkdir()
    Path("state/.remat.0123456789abcdef.part").write_text("{", encoding="utf-8")
    processes = [start("frontier chain.json -b 5,6 -m greedy -q --state state") for _ in range(2)]
    assert [(ran.code, ran.err) for ran in map(finish, processes)] == [(0, "")] * 2
