"""Ctrl-C while a solver runs, in a child process of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from remat.registry import make_backend

CHILD = textwrap.dedent(
    """
    import sys
    from remat.backends.base import SolveOptions
    from remat.deadline import Deadline
    from remat.registry import make_backend
    from remat.testing.backend_checks import knapsack

    def tell(incumbent):
        print("incumbent", incumbent.objective, flush=True)

    options = SolveOptions(deadline=Deadline.after(100), threads=1)
    result = make_backend(sys.argv[1]).solve(knapsack(int(sys.argv[2])), options, on_incumbent=tell)
    print("result", result.status, result.stop, result.objective == result.incumbents[-1].objective, flush=True)
    """
)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize(("backend", "size"), [("highs", 120), ("minizinc:gecode", 60)])
def test_ctrl_c_keeps_the_best(backend, size):
    if not (state := make_backend(backend).ready()).ready:
        assert not os.environ.get("REMAT_CI"), state.reason
        pytest.skip(f"{backend} is {state.state}")
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, backend, str(size)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        first = child.stdout.readline()
        assert first.startswith("incumbent"), child.stderr.read()
        time.sleep(0.3)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        killer = threading.Timer(60, child.kill)
        killer.start()
        rest = child.stdout.read()  # communicate() would lose what was read ahead
        errors = child.stderr.read()
        child.wait()
        killer.cancel()
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, errors
    assert rest.splitlines()[-1] == "result feasible interrupted True"
    assert time.monotonic() - began < 20
