"""Ctrl-C while HiGHS runs, in a child process of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

CHILD = textwrap.dedent(
    """
    import sys
    import numpy as np
    from remat.backends.base import SolveOptions
    from remat.backends.highs import Highs
    from remat.modeling import Linear, Model
    from remat.deadline import Deadline

    rng = np.random.default_rng(0)
    weight = rng.integers(0, 100, (40, 60))
    model = Model("hard")
    take = model.booleans("take", 60)
    row, column = np.indices(weight.shape)
    model.add(Linear.rows("weight", row, column, weight.ravel(), upper=weight.sum(axis=1) // 3))
    model.minimize(take.index, -rng.integers(50, 150, 60))

    def tell(incumbent):
        print("incumbent", incumbent.objective, flush=True)

    result = Highs().solve(model, SolveOptions(deadline=Deadline.after(100), threads=1), on_incumbent=tell)
    print("result", result.status, result.stop, result.objective, result.values is not None, flush=True)
    """
)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_keeps_the_best():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
    *incumbents, result = [first, *rest.splitlines()]
    assert result == f"result feasible interrupted {incumbents[-1].split()[1]} True"
    assert time.monotonic() - began < 20
