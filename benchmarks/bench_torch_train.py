"""Real training steps within a budget: gradients compared with eager, measured and predicted peak, time.

    python benchmarks/bench_torch_train.py [--models gpt2,resnet50,...] [--size small|full] [--batch N] [--budget 50%]
        [--vocabulary N] [--steps 3] [--time-limit 60] [--method auto] [--costs roofline] [--threads 1] [--device cpu]
        [--allocator] [--clock wall|processor] [--workspaces measured]

Each model trains a few steps with SGD, eager and rematerialized in turn, from the same weights and seeds. A line shows:

* equal: all losses, gradients and statistics are bitwise equal; and the greatest difference of a gradient, relative to
  the largest entry of all gradients;
* the predicted and the measured peak (bytes of storages that the step makes), and that of eager;
* seconds of a step of both (median after the first) and their ratio. The times of single steps follow.

``--clock processor`` counts processor time of all threads, which other programs disturb less. ``--allocator`` profiles
one more step of each and prints the allocator's peaks, which include workspaces of kernels; with ``--workspaces
measured`` the budget and the predicted peak include them. Names that begin with ``hf-`` are models of transformers with
random weights. Full sizes need 4 to 12 GB of memory, with ``--batch 2`` at most 4 GB.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import common
import torch
from torch import nn
from torch_models import OWN, Record, build, different, greatest_difference, record

from remat.errors import RematError
from remat.torch import rematerialize, track_storages
from remat.torch.memory import profiled_memory


@dataclass
class Trained:
    """Results and times of the steps of one module."""

    call: Callable[..., Any]
    module: nn.Module
    losses: list[torch.Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    record: Record = field(default_factory=dict)
    peak: int = 0
    peak_op: str = ""
    allocator: Any = None

    def step(self, args: tuple[Any, ...], seed: int) -> None:
        """Run forward and backward once, and record the loss."""
        torch.manual_seed(seed)
        loss = self.call(*args)
        loss.backward()
        self.losses.append(loss.detach())

    @property
    def median(self) -> float:
        """Seconds of a step, without the first one."""
        return statistics.median(self.seconds[1:] or self.seconds)


def train(each: Sequence[Trained], args: tuple[Any, ...], chosen: argparse.Namespace) -> None:
    """Train the modules with SGD, one step each in turn, so that other load affects all alike.

    The first step is a cold start. Steps after the last one are measured for memory, but not timed.
    """
    clock = time.perf_counter if chosen.clock == "wall" else time.process_time
    optimizers = [torch.optim.SGD(one.module.parameters(), lr=1e-3) for one in each]
    for number in range(chosen.steps):
        for one, optimizer in zip(each, optimizers, strict=True):
            began = clock()
            one.step(args, number)
            one.seconds.append(clock() - began)
            optimizer.step()
            optimizer.zero_grad()  # free the gradients before the other module runs
    for one, optimizer in zip(each, optimizers, strict=True):
        with track_storages(constants=(args, one.module)) as tracker:
            one.step(args, chosen.steps)
        one.peak, one.peak_op = tracker.peak, tracker.peak_op
        if chosen.allocator:
            optimizer.zero_grad()
            with profiled_memory() as one.allocator:
                one.step(args, chosen.steps + 1)
        one.record = record(one.module, *one.losses)
        optimizer.zero_grad()


def main() -> None:
    """Print a table."""
    chosen = common.parse(
        str(__doc__), models=",".join(OWN), size="small", batch=0, vocabulary=0, budget="50%", steps=3, time_limit=60.0,
        method="auto", costs="roofline", workspaces="", clock="wall", allocator=False, threads=0, device="cpu",
    )  # fmt: skip
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    table = common.Table(
        "model:-16", "ops:5", "again:5", "equal:5", "differ:7", "reference:14", "predicted:14", "measured:14",
        "eager:14", "extra cost:10", "eager s:8", "step s:8", "time:5", "capture:8", "solve:6",
    )  # fmt: skip
    for name in chosen.models.split(","):
        module, args = build(name, chosen.size, batch=chosen.batch, vocabulary=chosen.vocabulary)
        module, args = module.to(chosen.device), tuple(each.to(chosen.device) for each in args)
        copied = copy.deepcopy(module)
        try:
            model = rematerialize(
                copied, args, chosen.budget, method=chosen.method, costs=chosen.costs, time_limit=chosen.time_limit,
                workspaces=chosen.workspaces or None,
            )  # fmt: skip
        except RematError as error:
            print(f"{name:16} {error}")
            continue
        eager, ours = Trained(module, module), Trained(model, copied)
        train((eager, ours), args, chosen)
        report = model.report
        same = "NO" if different(ours.record, eager.record) else "yes"
        overhead = "-" if report.overhead is None else f"{report.overhead:.2f} %"
        table.row(
            name, report.ops, report.recomputations, same, f"{greatest_difference(ours.record, eager.record):.1g}",
            f"{report.reference_peak:,}", f"{report.predicted_peak:,}", f"{ours.peak:,}", f"{eager.peak:,}", overhead,
            f"{eager.median:.2f}s", f"{ours.median:.2f}s", f"{ours.median / eager.median:.2f}",
            f"{report.seconds['capture']:.1f}s", f"{report.seconds['solve']:.1f}s",
        )  # fmt: skip
        for who, one in (("eager", eager), ("rematerialized", ours)):
            print(f"{'':16} seconds of steps, {who}: {' '.join(f'{took:.2f}' for took in one.seconds)}", flush=True)
        if chosen.allocator:
            print(
                f"{'':16} allocator: rematerialized {ours.allocator.peak:,} at {ours.allocator.peak_op}, eager "
                f"{eager.allocator.peak:,} at {eager.allocator.peak_op}; storages: {ours.peak_op}, {eager.peak_op}",
                flush=True,
            )


if __name__ == "__main__":
    main()
