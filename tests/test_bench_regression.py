"""The benchmark that compares with another checkout: what counts as worse, and one run against itself."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "bench_regression.py"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("bench_regression", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_regression"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("now", "before", "verdict"),
    [
        (5.0, 4.95, False),
        (5.0, 4.0, True),
        (40.3, 40.0, False),
        (41.0, 40.0, True),
        (float("inf"), 40.0, True),
        (float("inf"), float("inf"), False),
    ],
)
def test_what_is_worse(now: float, before: float, verdict: bool) -> None:
    assert script().worse(now, before, 0.1) is verdict


@pytest.mark.slow
def test_a_checkout_is_not_worse_than_itself() -> None:
    options = ["--before", sys.executable, "--graphs", "layered@12", "--budgets", "80", "--methods", "auto"]
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "layered@12: 12 ops" in done.stdout
    assert "worse than before on 0 of 1 lines: none" in done.stdout
