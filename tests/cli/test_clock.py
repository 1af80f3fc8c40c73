"""A time limit in the shell counts from the start of the process."""

import math
import subprocess
import time
from pathlib import Path

import pytest
from shell import program

from remat.cli import clock
from remat.deadline import Deadline


def run(code: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A program with these arguments, to its end, in a process of its own."""
    return subprocess.run(
        program(*words, code=code), capture_output=True, text=True, check=False, timeout=60, cwd=folder
    )


def test_starting_counts_but_does_not_use_up_a_short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_began", [])
    assert clock.from_start(Deadline.after(15)).remaining == pytest.approx(15, abs=0.2)
    monkeypatch.setattr(clock, "_began", [time.monotonic() - 1.2])
    assert clock.from_start(Deadline.after(15)).remaining == pytest.approx(13.8, abs=0.2)
    assert clock.from_start(Deadline.after(3)).remaining == pytest.approx(1.8, abs=0.2)
    assert clock.from_start(Deadline.after(1)).remaining == pytest.approx(0.5, abs=0.2)
    assert clock.from_start(Deadline.after(None)).remaining == math.inf


def test_a_command_counts_from_the_start_of_its_process(tmp_path: Path) -> None:
    """`remat solve` asks for a deadline that began before its imports; stated here, as walls differ from run to run."""
    code = (
        "import sys, time; end = time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\n"
        "import remat.cli, remat.config.configuration as c\n"
        "c.Config.run = lambda self, *_, clock, **__: sys.exit(f'{clock.elapsed >= 0.3} {clock.seconds}')\n"
        "sys.exit(remat.cli.main())"
    )
    found = run(code, tmp_path, "solve", "resnet50", "-b", "80%", "-t", "30", "-q")
    assert found.stderr == "True 30.0\n"


def test_garbage_is_looked_for_once_the_search_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking through imports and the graph took a tenth of the start."""
    code = (
        "import gc, sys, remat.cli, remat.cli.solve as s, remat.config.configuration as c\n"
        "make = c.Config.make_problem\n"
        "c.Config.make_problem = lambda self: print(gc.isenabled()) or make(self)\n"
        "s.end_of_solve = lambda *_: print(gc.isenabled(), gc.get_freeze_count() > 10_000)\n"
        "sys.exit(remat.cli.main())"
    )
    found = run(code, tmp_path, "solve", "resnet50", "-b", "80%", "-t", "0.1", "-q")
    assert found.stdout == "False\nTrue True\n", found.stderr
    calls: list[str] = []
    monkeypatch.setattr(clock.gc, "disable", lambda: calls.append("disable"))
    monkeypatch.setattr(clock, "_began", [])
    clock.Garbage().look()
    assert not calls, "in a process that goes on, it is not ours to say"


def test_the_end_of_a_process_takes_no_objects_apart(tmp_path: Path) -> None:
    """What others have registered is done, and the exit code is that of the command."""
    code = (
        "import atexit, sys, remat.cli, remat.cli.shell\n"
        "class Late:\n    __del__ = lambda self: print('late')\n"
        "late = Late()\n"
        "remat.cli.shell.run = lambda words: 3 if atexit.register(print, 'registered') else 0\n"
        "sys.exit(remat.cli.main())"
    )
    found = run(code, tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (3, "registered\n", "")
