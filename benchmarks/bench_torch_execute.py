"""Training steps by the executor: predicted, tracked and allocated peak, and extra time, at full size.

Run: python benchmarks/bench_torch_execute.py [--models resnet,unet,gpt] [--size full] [--batch 2] [--budget 50%] ...

For each model three schedules: the reference order, one that `--method` finds at `--budget`, and random
recomputations. ``tracked`` is the most bytes of live tensors, less parameters, buffers and inputs, and must be the
prediction; ``allocated`` is what the allocator gave out at most, workspaces of kernels included. Extra time is that of
recomputations, as a share of computing each op once: predicted by `--costs`, and measured op by op. ``equal`` says
whether loss, gradients and buffers are those of eager autograd to the bit. With ``--fake`` nothing is computed and no
memory is needed: only the tracked peak is compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from remat import Problem, solve
from remat.errors import RematError
from remat.graphs import ComputeGraph
from remat.schedule import Schedule
from remat.torch import Executor, capture, profiled_memory, track_storages
from remat.torch.execute import OpRun

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "pytorch"))

from execution_checks import random_schedule
from models import MODELS

SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "full": {
        "resnet": {"blocks": (3, 4, 6, 3), "width": 64, "image": 224, "classes": 1000},
        "unet": {"levels": 5, "width": 64, "image": 256},
        "gpt": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "length": 512},
        "bert": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 30522, "length": 512},
        "encoder_decoder": {"layers": 6, "width": 512, "heads": 8, "vocabulary": 32128, "length": 512},
    },
    "small": {
        "resnet": {"blocks": (2, 2, 2), "width": 16, "image": 64},
        "unet": {"levels": 4, "width": 16, "image": 64},
        "gpt": {"layers": 4, "width": 64, "heads": 4, "vocabulary": 512, "length": 64},
        "bert": {"layers": 4, "width": 64, "heads": 4, "vocabulary": 512, "length": 64},
        "encoder_decoder": {"layers": 3, "width": 64, "heads": 4, "vocabulary": 512, "length": 64},
    },
}


def schedules(graph: ComputeGraph, options: argparse.Namespace) -> Iterator[tuple[str, Schedule]]:
    """The reference order, a solution at the budget, random recomputations."""
    yield "reference", Schedule.reference(graph)
    result = solve(Problem(graph, options.budget), method=options.method, stop=options.seconds)
    if result.schedule is None:
        print(f"    {options.method} finds nothing at {options.budget} in {options.seconds:g} s", flush=True)
    else:
        yield f"{options.method} {options.budget}", result.schedule
    yield "random", random_schedule(graph, 1, drop=0.01, most=4)


def extra(steps: list[list[OpRun]]) -> float:
    """Seconds of a step's recomputations as a share of its first runs; of one op the median of all its runs."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for each in (run for runs in steps for run in runs):
        seconds[each.op].append(each.seconds)
    typical = {op: median(values) for op, values in seconds.items()}
    return sum(typical[run.op] for run in steps[0] if run.number) / sum(typical.values())


@dataclass
class Eager:
    """What one step of a module by autograd gives; the module is left as it was."""

    loss: Any
    gradients: list[Any]
    buffers: list[Any]

    @classmethod
    def of(cls, module: Any, args: Any) -> Eager:
        """Run one step."""
        before = [buffer.clone() for buffer in module.buffers()]
        torch.manual_seed(1)
        loss = module(*args)
        loss.backward()
        done = cls(loss.detach(), [p.grad for p in module.parameters()], [b.clone() for b in module.buffers()])
        restore(module, before)
        return done

    def equals(self, module: Any, step: Any) -> bool:
        """Whether `module` has made the same step."""
        pairs = [(step.loss, self.loss), *zip(module.buffers(), self.buffers, strict=True)]
        pairs += [(p.grad, gradient) for p, gradient in zip(module.parameters(), self.gradients, strict=True)]
        return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


def restore(module: Any, buffers: list[Any]) -> None:
    """No gradients, and these buffers."""
    module.zero_grad(set_to_none=True)
    for buffer, value in zip(module.buffers(), buffers, strict=True):
        buffer.copy_(value)


def run(name: str, options: argparse.Namespace) -> None:
    """One model: rows of the table."""
    fake = FakeTensorMode() if options.fake else None
    sizes = {**SIZES[options.size][name], "batch": options.batch}
    sizes |= {"length": options.length} if options.length and "length" in sizes else {}
    sizes |= {"image": options.image} if options.image and "image" in sizes else {}
    torch.manual_seed(0)
    with fake or nullcontext():
        module, args = MODELS[name](**sizes)
        began = time.perf_counter()
        captured = capture(module, args, route=options.route, costs=options.costs)
    graph = captured.graph
    print(f"{name}: {graph} captured in {time.perf_counter() - began:.1f} s", flush=True)
    eager = Eager.of(module, args) if options.check and not options.fake else None
    before = [buffer.clone() for buffer in module.buffers()] if not options.fake else []
    for title, schedule in schedules(graph, options):
        executor = Executor(captured, schedule)
        torch.manual_seed(1)
        with fake or nullcontext(), track_storages(constants=(module, args)) as tracker:
            step = executor.step(module, *args)
        same = "-" if eager is None else "yes" if eager.equals(module, step) else "NO"
        del step
        predicted, off = executor.predicted_peak / 1e6, tracker.peak - executor.predicted_peak
        row = f"  {title:20} {executor.schedule.num_computes:>6} {predicted:>10.2f} {off:>+8,}"
        if options.fake:
            module.zero_grad(set_to_none=True)
        else:
            restore(module, before)
            with profiled_memory() as record:
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
            assert record.peak is not None
            allocated = f"{record.peak / 1e6:>10.2f} {100 * (record.peak / executor.predicted_peak - 1):>+6.1f} %"
            predicted_extra = executor.certificate.overhead or 0.0
            row += f" {allocated} {predicted_extra:>8.1f} % {100 * extra(runs):>8.1f} %"
            row += f" {min(took):>8.2f} {same:>6}"
        print(row, flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet,unet,gpt", help=f"of {', '.join(sorted(MODELS))}")
    parser.add_argument("--size", default="full", choices=sorted(SIZES))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--image", type=int, help="pixels, instead of the model's own")
    parser.add_argument("--length", type=int, help="tokens, instead of the model's own")
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each solve")
    parser.add_argument("--costs", default="roofline")
    parser.add_argument("--route", default="auto")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fake", action="store_true", help="fake tensors: no memory, no numbers")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True, help="against eager autograd")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"  {'schedule':20} {'runs':>6} {'predicted':>10} {'tracked':>8} {'allocated':>10} {'over':>8} {'extra':>10} "
        f"{'measured':>10} {'s':>8} {'equal':>6}   (MB; bytes off)"
    )
    for name in options.models.split(","):
        try:
            run(name, options)
        except RematError as error:
            print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
