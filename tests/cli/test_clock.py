"""Time limits count from the start of the process."""

import math
import time

import pytest
from shell import Ran, finish, start

from remat.cli import clock
from remat.runtime.deadline import Deadline


def test_start_up_uses_at_most_half_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_began", [])
    assert clock.from_start(Deadline.after(15)).remaining == pytest.approx(15, abs=0.2)
    monkeypatch.setattr(clock, "_began", [time.monotonic() - 1.2])
    assert clock.from_start(Deadline.after(15)).remaining == pytest.approx(13.8, abs=0.2)
    assert clock.from_start(Deadline.after(3)).remaining == pytest.approx(1.8, abs=0.2)
    assert clock.from_start(Deadline.after(1)).remaining == pytest.approx(0.5, abs=0.2)
    assert clock.from_start(Deadline.after(None)).remaining == math.inf


def test_limit_of_a_command_counts_from_process_start() -> None:
    """Clocks inside the process are compared, since wall times vary from run to run."""
    code = (
        "import sys, time; end = time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\n"
        "import remat.cli, remat.config.configuration as c\n"
        "c.Config.run = lambda self, *_, clock, **__: sys.exit(\n"
        "    print(clock.elapsed >= 0.3, clock.seconds, file=sys.stderr) or 3)\n"
        "sys.exit(remat.cli.main())"
    )
    found = finish(start("solve resnet50 -b 80% -t 30 -q", code))
    assert found.err == "True 30.0\n"


def test_exit_runs_handlers_but_no_finalizers() -> None:
    """Registered exit handlers run, and the exit code is that of the command."""
    code = (
        "import atexit, sys, remat.cli, remat.cli.shell\n"
        "class Late:\n    __del__ = lambda self: print('late')\n"
        "late = Late()\n"
        "remat.cli.shell.run = lambda words: 3 if atexit.register(print, 'registered') else 0\n"
        "sys.exit(remat.cli.main())"
    )
    assert finish(start("", code)) == Ran(3, "registered\n", "")
