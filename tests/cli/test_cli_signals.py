"""Signals to a process of the shell, and outputs that cannot be written."""

import io
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from processes import PROGRAM, wait_for_handlers
from shell import Ran, finish, interrupt, ok, start

from remat.cli import show
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.graphs.layered import layered

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="sends signals"), pytest.mark.usefixtures("folder")]


def listening(line: str) -> subprocess.Popen[str]:
    """Start a command and wait until it handles signals."""
    process = start(line, PROGRAM)
    wait_for_handlers(process)
    return process


def timed(process: subprocess.Popen[str], *signals: int) -> tuple[Ran, float]:
    """Send signals; return the end of the command and the seconds since the first signal."""
    began = time.monotonic()
    return finish(process, *signals), time.monotonic() - began


SOLVE = "solve open.json -b 80% --order free -t 60 -q -o out.json --json"
MINIMIZE = "minimize open.json --order free -t 60 -q -o out.json --json"


@pytest.mark.parametrize(
    ("line", "number", "code"),
    [
        pytest.param(SOLVE, signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(SOLVE, signal.SIGHUP, 129, marks=pytest.mark.slow),
        (SOLVE, signal.SIGKILL, -signal.SIGKILL),
        pytest.param(MINIMIZE, signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(MINIMIZE, signal.SIGINT, 0, marks=pytest.mark.slow),
    ],
)
def test_signal_leaves_the_incumbent_on_disk(line: str, number: int, code: int) -> None:
    """The problem takes more than a minute; every signal but SIGKILL ends the command within two seconds."""
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
    if ran.err:  # a compiler was running and did not finish in time
        assert ran.err.startswith("remat: interrupted before the method ended; the best schedule is in ")
    else:
        assert json.loads(ran.out)["stop"] == "interrupted"
    assert seconds < 2 + 8  # the last for a busy machine


#: The method never ends, while the main thread waits for it.
UNRESPONSIVE = """
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


@pytest.mark.parametrize(
    ("signals", "most"),
    [((signal.SIGINT, signal.SIGINT), 1.4), pytest.param((signal.SIGINT,), 2.0, marks=pytest.mark.slow)],
)
def test_second_signal_terminates_at_once(signals: tuple[int, ...], most: float) -> None:
    """The method ignores the first signal, after which the shell waits before it terminates the process."""
    process = start("solve chain.json -b 5 -q -m eviction", UNRESPONSIVE)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    ran, seconds = timed(process, *signals)
    assert ran.code == 130
    assert seconds < most + 4  # the last for a busy machine


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_a_command_without_search(number: int, code: int) -> None:
    write_graph(layered(2000, seed=1), "g.json")
    assert finish(listening("show g.json"), number) == Ran(code, "", "")


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------

#: The backend finds nothing and waits for the request to stop, as a native solver does.
WAITING = """
import sys, threading
import remat.solving.solve as unused
from remat.backends.base import *
from remat.runtime.processes.running import run_interruptible
from remat.cli import main

class Waiting(Backend):
    name, native = "waiting", frozenset()

    @classmethod
    def availability(cls):
        return Availability(AvailabilityState.READY)

    def solve(self, model, options, hint=None, on_incumbent=None, on_bound=None):
        done = threading.Event()
        def work():
            print("waiting", file=sys.stderr, flush=True)
            done.wait(50)
        stopped = run_interruptible(work, done.set)
        return RawResult(Status.UNKNOWN, StopReason.INTERRUPTED if stopped else StopReason.OTHER)

module = sys.modules["remat.solving.solve"]
genuine = module.as_backend
module.as_backend = lambda name: Waiting() if name == "waiting" else genuine(name)
sys.modules["remat.solving.method"].START_HEURISTICS = {}
sys.exit(main())
"""


def test_ctrl_c_without_a_schedule() -> None:
    line = "solve chain.json -b 5 --method retention-intervals --backend waiting -o s.json"
    done = interrupt(start(line, WAITING), lambda line: line == "waiting\n")
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
    """True when a progress line shows a schedule while a solver runs."""
    return "  solve  " in line and "overhead" in line


@pytest.mark.slow
def test_ctrl_c_in_cp_sat_keeps_the_incumbent() -> None:
    """CP-SAT needs minutes to prove optimality."""
    write_graph(unit_chain(60), "long.json")
    done = interrupt(start("solve long.json -b 45% --threads 1 -o s.json --method retention-intervals"), solves)
    assert done.code == 0, done.err
    assert done.out.startswith("status    feasible (stopped: interrupted)\n")
    ok("validate long.json s.json --budget 45% --order fixed")


def test_ctrl_c_in_a_comparison_keeps_started_runs() -> None:
    """The first run is complete, the second needs minutes, the third never starts."""
    write_graph(unit_chain(40), "long.json")
    methods = "-m greedy,retention-intervals/cp-sat,checkmate/highs"
    done = interrupt(start(f"compare long.json -b 45% --threads 1 -o c.json {methods}"), solves)
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
    """Folder on a disk that becomes full after the check of the outputs; the current folder is another."""
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


def test_schedule_is_written_elsewhere_on_a_full_disk(full: Path) -> None:
    ran = ok("solve ../chain.json -b 5 -q -o", full / "s.json", code=2)
    assert ran.out.startswith("status    optimal")
    (other,) = Path.cwd().iterdir()
    assert ran.err.endswith(f"s.json: cannot be written: No space left on device; it is in {other} instead\n")
    ok("validate ../chain.json --budget 5", other)
    assert not list(full.iterdir())


def test_schedule_is_printed_when_no_folder_is_writable(folder: Path) -> None:
    """A limit on file sizes refuses every write; no partial file remains."""
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


def test_unwritable_table_stops_no_cell(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a store without room: the table is complete, and a later run solves what is not stored."""
    ran = ok("compare ../chain.json -b 5,6 -m greedy -q -o", full / "c.csv", code=2)
    assert ran.err.count("c.csv: cannot be written") == 2  # while running, and at the end
    assert ran.out.count("greedy") >= 2
    (other,) = Path.cwd().iterdir()
    assert len(other.read_text(encoding="utf-8").splitlines()) == 3
    other.unlink()
    command = f"frontier {tmp_path}/chain.json -b {{}} -m greedy -q --store sqlite:///{full}/study.db -o f.csv"
    with monkeypatch.context() as roomy:
        roomy.setattr("remat.io.files.os.fdopen", io.open)
        ok(command.format("4"))
    ran = ok(command.format("4,5,6"), code=2)
    assert "the table has all results, and the same command solves again what is not stored" in ran.err
    assert len(Path("f.csv").read_text(encoding="utf-8").splitlines()) == 4
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "1 of 3 runs are from the store" in ok(command.format("4,5,6")).out


@pytest.mark.slow
def test_concurrent_frontiers_share_a_store() -> None:
    processes = [start("frontier chain.json -b 5,6 -m greedy -q --store sqlite:///s.db") for _ in range(2)]
    assert [(ran.code, ran.err) for ran in map(finish, processes)] == [(0, "")] * 2
    assert "2 of 2 cells finished" in ok("study status --store sqlite:///s.db").out
