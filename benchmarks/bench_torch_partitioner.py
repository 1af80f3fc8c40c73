"""Peak of the allocator over one compiled training step, with Inductor's partitioner and with a schedule.

The ten small networks of ``bench_torch_inductor.py``, on the CPU, each in a process of its own. The budget is 60 % of
the peak before fusion (:func:`remat.torch.inductor`). "First schedule" is the peak after fusion of the schedule within
that budget before it. The schedule used has the peak computed, that of the allocator over the whole step, and their
difference. Loss and gradients of both compilers must be close: kernels are fused differently.

    python benchmarks/bench_torch_partitioner.py
    python benchmarks/bench_torch_partitioner.py --times ResNet GPT2

With ``--times`` the C++ compiler optimises, and the table has the processor time of a step; this takes longer. With
``--zeros`` it does not run at all: kernels fill their results with zeros. The program of Inductor allocates, frees and
calls libraries as always, so the peak is measured; loss and gradients are not compared, and plain compilation is left
out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from bench_torch_inductor import NETWORKS, built, second_step
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import fresh_cache

from remat.torch import inductor

BUDGET = "60%"
#: Steps whose least processor time counts.
STEPS = 10


class Step(NamedTuple):
    """A compiled step: peak in bytes, processor seconds, loss and gradients."""

    peak: int
    seconds: float
    results: list[torch.Tensor]


def measured(name: str, times: bool, options: dict[str, Any]) -> Step:
    """Compile a network and return what a step needs."""
    model, inputs = built(name)
    model.train()
    torch._dynamo.reset()
    # Without optimisation the C++ compiler needs less time; sizes of buffers do not depend on it.
    with inductor_config.patch({"aot_inductor.debug_compile": not times}):
        run = torch.compile(model, options=options, dynamic=False)
        peak, loss = second_step(run, model, inputs)
    results = [loss, *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
    seconds = []
    for _ in range(STEPS if times else 0):
        model.zero_grad()
        begun = time.process_time()
        run(**inputs).backward()
        seconds.append(time.process_time() - begun)
    return Step(peak, min(seconds, default=0.0), results)


def zeros(_: AsyncCompile, argtypes: list[str], source: str) -> Callable[..., None]:
    """Return a kernel that fills its results with zeros, in place of compiling it."""

    def kernel(*args: Any) -> None:
        for kind, value in zip(argtypes, args, strict=True):
            if kind.endswith("*") and not kind.startswith("const"):
                value.zero_()

    return kernel


def row(name: str, options: argparse.Namespace) -> None:
    """Print one row of the table."""
    torch.set_num_threads(1)
    within = inductor(BUDGET, time_limit=options.seconds)
    if options.zeros:
        AsyncCompile.cpp_pybinding = zeros
    ours = measured(name, options.times, within)
    (report,) = within["custom_partitioner_fn"].reports
    computed = report.compiled_peak
    cells = [
        name, f"{report.reference_peak:,}", f"{report.budget:,}", f"{report.attempts[0][1]:,}",
        f"{len(report.attempts)}", f"{computed:,}", f"{ours.peak:,}", f"{ours.peak - computed:+,}",
        f"{report.overhead:+.1f} %",
    ]  # fmt: skip
    if not options.zeros:
        plain = measured(name, options.times, {})
        for a, b in zip(plain.results, ours.results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
        cells += [f"{plain.peak:,}", f"{100 * (ours.peak / plain.peak - 1):+.1f} %"]
        if options.times:
            cells.append(f"{100 * (ours.seconds / plain.seconds - 1):+.0f} %")
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=10.0, help="most seconds of the search for each network")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--zeros", action="store_true")
    options = parser.parse_args()
    if not find_spec("transformers"):
        print("transformers is not installed")
        return 0
    columns = [
        "training step", "before fusion", "budget", "first schedule", "schedules", "computed", "measured", "difference",
        "extra cost predicted",
    ]  # fmt: skip
    if not options.zeros:
        columns += ["plain `torch.compile`", "change"] + ["processor time"] * options.times
    print("|" + "|".join(f" {each} " for each in columns) + "|\n" + "|---" * len(columns) + "|", flush=True)
    # One cache for all: each folder of a cache needs a precompiled header of its own.
    with fresh_cache(), multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        pool.map(partial(row, options=options), options.networks, chunksize=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
