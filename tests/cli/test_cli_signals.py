"""Signals to a whole process, and schedules that are on disk while the search goes on."""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from processes import PROGRAM, listens
from shell import start

from remat.cli import main
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.graphs.layered import layered

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")


def listening(*words: object) -> subprocess.Popen[str]:
    """A command that listens to signals already."""
    process = start(*words, code=PROGRAM)
    listens(process)
    return process


def end(process: subprocess.Popen[str], *signals: int) -> tuple[int, str, str, float]:
    """Exit code, standard output, standard error and seconds that it took after the signals."""
    began = time.monotonic()
    try:
        for number in signals:
            process.send_signal(number)
            time.sleep(0.4 if len(signals) > 1 else 0)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in err
    return process.returncode, out, err, time.monotonic() - began


def appears(path: Path) -> None:
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path.name} never appears")


def open_problem(tmp_path: Path) -> tuple[Path, Path]:
    """A problem that nobody solves within a minute, and where its schedule goes."""
    write_graph(layered(120, seed=1), tmp_path / "g.json")
    return tmp_path / "g.json", tmp_path / "s.json"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)]
)
def test_what_was_found_is_written_and_the_code_says_that_it_was_cut_short(
    tmp_path: Path, number: int, code: int
) -> None:
    graph, out = open_problem(tmp_path)
    process = listening("solve", graph, "-b", "80%", "--order", "free", "-t", "60", "-q", "-o", out, "--json")
    appears(out)
    found, shown, err, seconds = end(process, number)
    assert found == code
    if err:  # something was being compiled, and that had no end in time
        assert err.startswith("remat: interrupted before the method ended by itself; the best schedule is in ")
    else:
        assert json.loads(shown)["stop"] == "interrupted"
    assert json.loads(out.read_text(encoding="utf-8"))["graph_digest"] == read_graph(graph).digest
    assert main(["validate", str(graph), str(out), "--budget", "80%"]) == 0
    assert seconds < 2 + 8  # the last for a busy machine


def test_a_killed_process_loses_seconds(tmp_path: Path) -> None:
    graph, out = open_problem(tmp_path)
    process = listening("solve", graph, "-b", "80%", "--order", "free", "-t", "60", "-q", "-o", out)
    appears(out)
    assert end(process, signal.SIGKILL)[0] == -signal.SIGKILL
    assert main(["validate", str(graph), str(out), "--budget", "80%"]) == 0


def test_a_least_peak_is_on_disk_before_the_end(tmp_path: Path) -> None:
    graph, out = open_problem(tmp_path)
    process = listening("minimize", graph, "--order", "free", "-t", "60", "-q", "-o", out)
    appears(out)
    assert end(process, signal.SIGTERM)[0] == 143
    assert main(["validate", str(graph), str(out)]) == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Also where nothing looks at the first: here the solver's thread never ends, and the main thread waits for it."""
    program = """
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
    write_graph(unit_chain(4), tmp_path / "g.json")
    for signals, most in (((signal.SIGINT, signal.SIGINT), 1.4), ((signal.SIGINT,), 2.0)):
        process = start("solve", tmp_path / "g.json", "-b", 5, "-q", "-f", "eviction", code=program)
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        code, _, _, seconds = end(process, *signals)
        assert code == 130
        assert seconds < most + 4  # the last for a busy machine


def test_nothing_is_lost_where_nothing_is_searched(tmp_path: Path) -> None:
    write_graph(layered(2000, seed=1), tmp_path / "g.json")
    assert end(listening("show", tmp_path / "g.json"), signal.SIGINT)[:3] == (130, "", "")
    assert end(listening("show", tmp_path / "g.json"), signal.SIGTERM)[:3] == (143, "", "")


# -- files that cannot be written --------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder on a disk that fills up after the outputs have been looked at."""
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
    write_graph(unit_chain(4), tmp_path / "g.json")
    return folder


def test_a_schedule_goes_elsewhere_if_it_must(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    command = ["solve", str(tmp_path / "g.json"), "-b", "5", "-q", "-o", str(full / "s.json")]
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out.startswith("status    optimal")
    (other,) = (tmp_path / "here").iterdir()
    assert err.endswith(f"s.json: cannot be written: No space left on device; it is in {other} instead\n")
    assert main(["validate", str(tmp_path / "g.json"), str(other), "--budget", "5"]) == 0
    assert not list(full.iterdir())


def test_a_schedule_is_printed_where_it_cannot_be_written(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(full)
    monkeypatch.setattr(tempfile, "tempdir", str(full))
    command = ["minimize", str(tmp_path / "g.json"), "-q", "-t", "20", "-o", str(full / "s.json")]
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert "and nowhere else either; here it is" in err
    document, end_of_it = json.JSONDecoder().raw_decode(out)
    assert document["format"] == "remat-schedule"
    assert "proved least" in out[end_of_it:]


def test_a_table_that_cannot_be_written_stops_no_cell(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does a state folder; what is done anyway is in the table, and the same command goes on later."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    graph = str(tmp_path / "g.json")
    assert main(["compare", graph, "-b", "5,6", "-m", "greedy", "-q", "--csv", str(full / "c.csv")]) == 2
    out, err = capsys.readouterr()
    assert err.count("c.csv: cannot be written") == 2  # once on the way, once in the end
    assert out.count("greedy") >= 2
    (other,) = (tmp_path / "here").iterdir()
    assert len(other.read_text(encoding="utf-8").splitlines()) == 3
    other.unlink()
    state = tmp_path / "state"
    command = ["frontier", graph, "-b", "5,6", "-m", "greedy", "-q", "--state", str(state), "-o", "f.csv"]
    assert main(command) == 0
    cells = sorted(path for path in state.iterdir() if path.name.endswith("-5.json"))
    cells[0].unlink()
    state.rename(full / "state")
    state.symlink_to(full / "state")
    assert main(command) == 2
    assert "the table has the result, and the same command does that part again" in capsys.readouterr().err
    assert len((tmp_path / "here" / "f.csv").read_text(encoding="utf-8").splitlines()) == 3
    assert not list((full / "state").glob(".*"))
    monkeypatch.undo()
    assert main([*command[:-1], str(tmp_path / "f.csv")]) == 0
    assert "1 of 2 results are from the state folder" in capsys.readouterr().out


def test_frontiers_that_start_together_all_work(tmp_path: Path) -> None:
    """Also in a folder where one was killed while it wrote."""
    write_graph(unit_chain(4), tmp_path / "g.json")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ".remat.0123456789abcdef.part").write_text("{", encoding="utf-8")
    command = ["frontier", tmp_path / "g.json", "-b", "5,6", "-m", "greedy", "-q", "--state", tmp_path / "state"]
    processes = [listening(*command) for _ in range(2)]
    assert [end(process)[:3:2] for process in processes] == [(0, "")] * 2
