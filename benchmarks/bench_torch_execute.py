"""Training steps by the executor: predicted, tracked and allocated peak, and extra time, at full size.

    python benchmarks/bench_torch_execute.py [--models resnet50,unet,gpt2] [--size full|small] [--budget 50%]
        [--batch N] [--image PIXELS] [--length TOKENS] [--method auto] [--seconds S] [--costs C] [--route R]
        [--repeat N] [--threads N] [--fake] [--no-check]

For each model three schedules: the reference order, one that `--method` finds at `--budget`, and random
recomputations. ``tracked`` is the most bytes of live tensors, less parameters, buffers and inputs, and must be the
prediction; ``allocated`` is what the allocator gave out at most, workspaces of kernels included. Extra time is that of
recomputations, as a share of computing each op once: predicted by `--costs`, and measured op by op. ``equal`` says
whether loss, gradients and buffers are those of eager autograd to the bit (not with ``--no-check``). With ``--fake``
nothing is computed and no memory is needed: only the tracked peak is compared.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

import common
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_models import build, different, dropping, eager, record

from remat import Problem, solve
from remat.errors import RematError
from remat.graphs import ComputeGraph
from remat.schedule import Schedule
from remat.torch import Executor, capture, profiled_memory, track_storages
from remat.torch.execute import OpRun


def schedules(graph: ComputeGraph, options: argparse.Namespace) -> Iterator[tuple[str, Schedule]]:
    """The reference order, a solution at the budget, random recomputations."""
    yield "reference", Schedule.reference(graph)
    result = solve(Problem(graph, options.budget), method=options.method, stop=options.seconds)
    if result.schedule is None:
        print(f"    {options.method} finds nothing at {options.budget} in {options.seconds:g} s", flush=True)
    else:
        yield f"{options.method} {options.budget}", result.schedule
    yield "random", dropping(graph, 1, share=0.01, most=4)


def extra(steps: list[list[OpRun]]) -> float:
    """Seconds of a step's recomputations as a share of its first runs; of one op the median of all its runs."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for each in (run for runs in steps for run in runs):
        seconds[each.op].append(each.seconds)
    typical = {op: median(values) for op, values in seconds.items()}
    return sum(typical[run.op] for run in steps[0] if run.number) / sum(typical.values())


def restore(module: Any, buffers: list[Any]) -> None:
    """No gradients, and these buffers."""
    module.zero_grad(set_to_none=True)
    for buffer, value in zip(module.buffers(), buffers, strict=True):
        buffer.copy_(value)


def run(name: str, options: argparse.Namespace, table: common.Table) -> None:
    """One model: rows of the table."""
    fake = FakeTensorMode() if options.fake else None
    with fake or nullcontext():
        module, args = build(name, options.size, batch=options.batch, length=options.length, image=options.image)
        began = time.perf_counter()
        captured = capture(module, args, route=options.route, costs=options.costs)
    graph = captured.graph
    print(f"{name}: {graph} captured in {time.perf_counter() - began:.1f} s", flush=True)
    theirs = eager(module, args, seed=1) if not (options.no_check or options.fake) else None
    before = [buffer.clone() for buffer in module.buffers()] if not options.fake else []
    for title, schedule in schedules(graph, options):
        executor = Executor(captured, schedule)
        torch.manual_seed(1)
        with fake or nullcontext(), track_storages(constants=(module, args)) as tracker:
            step = executor.step(module, *args)
        same = "-" if theirs is None else "NO" if different(record(module, step.loss), theirs) else "yes"
        del step
        predicted = executor.predicted_peak
        row = [f"  {title}", executor.schedule.num_computes, f"{predicted / 1e6:.2f}", f"{tracker.peak - predicted:+,}"]
        if options.fake:
            module.zero_grad(set_to_none=True)
        else:
            restore(module, before)
            with profiled_memory() as memory:
                executor.step(module, *args)
            module.zero_grad(set_to_none=True)
            runs: list[list[OpRun]] = [[] for _ in range(options.repeat)]
            took = []
            for each in runs:
                began = time.perf_counter()
                executor.step(module, *args, on_op=each.append)
                took.append(time.perf_counter() - began)
                module.zero_grad(set_to_none=True)
            restore(module, before)
            assert memory.peak is not None
            row += [
                f"{memory.peak / 1e6:.2f}", f"{100 * (memory.peak / predicted - 1):+.1f} %",
                f"{executor.certificate.overhead or 0.0:.1f} %", f"{100 * extra(runs):.1f} %", f"{min(took):.2f}", same,
            ]  # fmt: skip
        table.row(*row, *[""] * (len(table.widths) - len(row)))


def main() -> None:
    """Print a table."""
    options = common.parse(
        str(__doc__), models="resnet50,unet,gpt2", size="full", batch=1, image=0, length=0, budget="50%", method="auto",
        seconds=30.0, costs="roofline", route="auto", repeat=3, threads=1, fake=False, no_check=False,
    )  # fmt: skip
    torch.set_num_threads(options.threads)
    print("MB; bytes off")
    table = common.Table("schedule:-22", "runs:6", "predicted:10", "tracked:9", "allocated:10", "over:8", "extra:8",
                         "measured:8", "s:8", "equal:6")  # fmt: skip
    for name in options.models.split(","):
        try:
            run(name, options, table)
        except RematError as error:
            print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
