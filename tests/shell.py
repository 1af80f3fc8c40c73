"""Commands of the shell, run in the test's process or in a separate one that receives signals."""

from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

from remat.cli import main

#: Source of the program ``remat``.
PROGRAM = "import sys, remat.cli; sys.exit(remat.cli.main())"

#: Module with a heuristic and a backend that no entry point names.
OWN_CLASSES = """
from remat.heuristics.greedy import Greedy
from remat.backends.highs import Highs
class Mine(Greedy):
    name = "mine"
class MySolver(Highs):
    name = "my-solver"
"""
#: Configuration that solves the graph ``chain.json``.
RUN = """
problem = {graph = "chain.json", budget = 5}
solve = {backend = "highs", method = "checkmate", threads = 1, time_limit = 60}
output = {schedule = "out.json", quiet = true, json = true}
"""


@dataclass(frozen=True)
class Ran:
    """Exit code and streams of a finished command."""

    code: int
    out: str
    err: str


def shell(*words: object) -> Ran:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return Ran(code, out.getvalue(), err.getvalue())


def ok(line: str, *more: object, code: int = 0) -> Ran:
    """Run a command in this process and assert its exit code."""
    ran = shell(*shlex.split(line), *more)
    assert ran.code == code, ran
    return ran


def facts(line: str, *more: object, code: int = 0) -> Any:
    """Run a command with ``--json``, assert its exit code and return the parsed output."""
    return json.loads(ok(line, *more, "--json", code=code).out)


def program(line: str = "", code: str = PROGRAM) -> list[str]:
    """Return the command line of a separate process."""
    return [sys.executable, "-c", code, *shlex.split(line)]


def start(line: str, code: str = PROGRAM, **options: Any) -> subprocess.Popen[str]:
    """Start a command in a separate process, with pipes unless `options` redirect its streams."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(program(line, code), text=True, **pipes | options)


def finish(process: subprocess.Popen[str], *signals: int, seconds: float = 60) -> Ran:
    """Send signals at intervals of 0.4 s and wait until the process ends."""
    try:
        for k, number in enumerate(signals):
            time.sleep(0.4 if k else 0)
            process.send_signal(number)
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in err
    return Ran(process.returncode, out, err)


def interrupt(process: subprocess.Popen[str], when: Callable[[str], bool], seconds: float = 60) -> Ran:
    """Send Ctrl-C after the first line of standard error that satisfies `when`, and wait until the process ends."""
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if when(line):
            break
    else:
        raise AssertionError(f"ended before that line: {seen} {finish(process)}")
    ran = finish(process, signal.SIGINT, seconds=seconds)
    return replace(ran, err=seen + ran.err)
