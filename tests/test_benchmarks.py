"""Benchmarks: definition of a regression, and a small run of each script."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"

#: Arguments of a run that takes seconds, and text that its output must contain.
SMALL = {
    "bench_allocation": ("--seconds 2 swiftnet-folded", "first-fit"),
    "bench_bounds": ("--graphs layered@12 --budgets 80 --seconds 2", "structural bound"),
    "bench_jax_train": ("--networks mlp --batch 64 --pixels 32 --time-limit 20", "| mlp |"),
    "bench_least_peak": ("--graphs layered@12 --seconds 5", "1 graphs: 1 within 0.1 %"),
    "bench_methods": ("published --graphs layered@12 --budgets 80 --seconds 2", "layered@12"),
    "bench_models": ("--problems chain --seconds 2", "advancing"),
    "bench_onnxruntime": ("--seeds 1 --batch 2 --seconds 0.2", "as written | `PRIORITY_BASED` | off | off"),
    "bench_order_permutations": ("--graphs layered@12 --orders 2 --seconds 1", "layered@12"),
    "bench_orders": ("--graphs layered@12 --methods serenity-table,valley-order --seconds 2", "DP + divide"),
    "bench_partition": ("100", "articulation"),
    "bench_proofs": ("--graphs unet-ops --budgets 80 --seconds 5", "unet-ops"),
    "bench_regression": (
        f"--before {sys.executable} --graphs layered@12 --budgets 80 --methods auto --seconds 2",
        "worse than before on 0 of 1 lines: none",
    ),
    "bench_simulate": ("--computes 2000", "frees written out"),
    "bench_transfers": ("--graphs unet-ops --budgets 50 --machines pcie4 --seconds 5", "unet-ops"),
    "bench_studies": ("--cells 20", '"cells": 20'),
}


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
def test_regressions(monkeypatch: pytest.MonkeyPatch, now: float, before: float, verdict: bool) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    assert import_module("bench_regression").worse(now, before, 0.1) is verdict


def test_every_script_has_a_small_run() -> None:
    """Scripts that run PyTorch or deployed models have their own models, which take minutes."""
    scripts = {path.stem for path in FOLDER.glob("bench_*.py")}
    assert {script for script in scripts if not {"torch", "deploy"} & set(script.split("_"))} == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("script", SMALL)
def test_script_runs(script: str) -> None:
    if script == "bench_onnxruntime":
        pytest.importorskip("onnxruntime", minversion="1.32")
    if script == "bench_jax_train":
        pytest.importorskip("jax")
    words, shown = SMALL[script]
    command = [sys.executable, str(FOLDER / f"{script}.py"), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
