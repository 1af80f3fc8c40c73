"""``kill -9`` of the program at random instants, the first ones of its life included."""

import os
import random
import subprocess
import sys
import time

import psutil
import pytest

from remat.backends.processes import guard

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks at environments by /proc")]

#: Seconds that all rounds together may take.
SECONDS = 240


def marked(word):
    """Processes with that word in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("REMAT_STRESS") == word and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_nothing_is_left_whenever_it_is_killed(tmp_path, pytestconfig):
    rng = random.Random(7)
    began = time.monotonic()
    backends = ["isolated cp-sat", "minizinc:gecode", "minizinc:cp-sat", "pyomo:cbc"]
    folder = pytestconfig.rootpath / "tests" / "backends"
    rounds = 0
    while rounds < 30 and time.monotonic() - began < SECONDS:
        word = f"{os.getpid()}-{rounds}"
        environment = os.environ | {
            "REMAT_STRESS": word, "TMPDIR": str(tmp_path), "PYTHONPATH": str(folder)
        }  # fmt: skip
        program = subprocess.Popen(
            [sys.executable, "-c", "import test_kill; exec(test_kill.PROGRAM)", *backends], env=environment,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(rng.uniform(0.5, 6))
        program.kill()
        program.wait()
        until = time.monotonic() + 15  # a process that imports looks up when it has done that
        while marked(word) and time.monotonic() < until:
            time.sleep(0.1)
        left = marked(word)
        lines = [process.cmdline() for process in left]
        for process in left:
            process.kill()
        assert not lines
        rounds += 1
    guard.sweep(str(tmp_path))
    young = [path for path in tmp_path.glob("remat-run-*") if (path / guard.LOCK).exists()]
    assert not young
    assert rounds >= 10
