"""The shell in tests: in this process, and in a process of its own that signals reach."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from remat.cli import main

#: The program ``remat``.
PROGRAM = "import sys, remat.cli; sys.exit(remat.cli.main())"


@dataclass(frozen=True)
class Ran:
    """Exit code and streams of a command that ended."""

    code: int
    out: str
    err: str


def shell(*words: object) -> Ran:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return Ran(code, out.getvalue(), err.getvalue())


def program(*words: object, code: str = PROGRAM) -> list[str]:
    """Command line of a process of its own."""
    return [sys.executable, "-c", code, *map(str, words)]


def start(*words: object, code: str = PROGRAM, **options: Any) -> subprocess.Popen[str]:
    """Start a command in a process of its own, whose streams are pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen(program(*words, code=code), stdout=pipe, stderr=pipe, text=True, **options)


def interrupt(process: subprocess.Popen[str], when: Callable[[str], bool], seconds: float = 60) -> Ran:
    """Send Ctrl-C after the first line of standard error for which `when` holds, and wait for the end."""
    try:
        assert process.stderr is not None
        seen = ""
        for line in process.stderr:
            seen += line
            if when(line):
                break
        else:
            raise AssertionError(f"ended before that line: {seen}")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in err
    return Ran(process.returncode, out, seen + err)
