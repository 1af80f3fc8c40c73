"""Ctrl-C while a solver of MiniZinc's runs, in a child process of its own."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

CHILD = textwrap.dedent(
    """
    from remat.backends.base import SolveOptions
    from remat.backends.minizinc import MiniZinc
    from remat.testing.backend_checks import knapsack
    from remat.deadline import Deadline

    def tell(incumbent):
        print("incumbent", incumbent.objective, flush=True)

    result = MiniZinc("gecode").solve(knapsack(60), SolveOptions(deadline=Deadline.after(100)), on_incumbent=tell)
    print("result", result.status, result.stop, result.objective == result.incumbents[-1].objective, flush=True)
    """
)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_keeps_the_best():
    if shutil.which("fzn-gecode") is None and not os.environ.get("REMAT_CI"):
        pytest.skip("minizinc:gecode is not installed")
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        first = child.stdout.readline()
        assert first.startswith("incumbent"), child.stderr.read()
        time.sleep(0.3)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, errors
    assert rest.splitlines()[-1] == "result feasible interrupted True"
    assert time.monotonic() - began < 10
