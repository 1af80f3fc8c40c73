"""Real training steps within a budget: gradients against eager, measured against predicted peak, time.

Run: python benchmarks/bench_torch_train.py [--models gpt2,resnet50,...] [--size small|full] [--batch N] [--budget 50%]
     [--steps 3] [--time-limit 60] [--method auto] [--costs roofline] [--threads 1] [--device cpu] [--allocator]
     [--clock wall|processor] [--workspaces measured]

Each model trains a few steps with SGD, as it is and rematerialized, step about, from the same weights and seeds. A line
says whether all losses, gradients and statistics are equal bit by bit, the greatest difference of a gradient relative
to the greatest entry of all, the predicted and the measured peak (bytes of storages that the step makes), that of
eager, and the seconds of a step (median of those after the first) of both and their ratio; the steps' own seconds
follow. ``--clock processor`` counts processor time of all threads, which other programs on the machine change less.
With ``--allocator`` one more step of each is profiled: another line has the peaks of what the allocator gave out,
workspaces of kernels included; with ``--workspaces
measured`` budget and predicted peak count these. Names that begin with ``hf-`` are models of transformers with random
weights. Full sizes need some 4 to 12 GB of memory, with ``--batch 2`` 4 GB at most.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "pytorch"))
import models

from remat.errors import RematError
from remat.torch import rematerialize, track_storages
from remat.torch.memory import profiled_memory

Sample = tuple[nn.Module, tuple[Any, ...]]

#: Options of the models in tests/pytorch/models.py, small and full.
SIZES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gpt2": (
        "gpt",
        {"layers": 12, "width": 64, "heads": 4, "vocabulary": 500, "length": 64, "batch": 4},
        {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "length": 512, "batch": 4},
    ),
    "bert": (
        "bert",
        {"layers": 12, "width": 64, "heads": 4, "vocabulary": 500, "length": 64, "batch": 4},
        {"layers": 12, "width": 768, "heads": 12, "vocabulary": 30522, "length": 512, "batch": 4},
    ),
    "encoder-decoder": (
        "encoder_decoder",
        {"layers": 6, "width": 64, "heads": 4, "vocabulary": 500, "length": 64, "batch": 4},
        {"layers": 6, "width": 512, "heads": 8, "vocabulary": 37000, "length": 256, "batch": 8},
    ),
    "resnet50": (
        "resnet",
        {"blocks": (3, 4, 6, 3), "width": 16, "image": 64, "classes": 100, "batch": 8},
        {"blocks": (3, 4, 6, 3), "width": 64, "image": 224, "classes": 1000, "batch": 32},
    ),
    "unet": (
        "unet",
        {"levels": 5, "width": 16, "image": 64, "classes": 4, "batch": 4},
        {"levels": 5, "width": 64, "image": 256, "classes": 4, "batch": 4},
    ),
}


class LossOnly(nn.Module):
    """A model of transformers that returns its loss alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:
        return (
            self.model(input_ids=ids, labels=labels, use_cache=False).loss
            if self.is_causal
            else self.model(input_ids=ids, labels=labels).loss
        )

    @property
    def is_causal(self) -> bool:
        """Whether the model has a cache to be switched off."""
        return hasattr(self.model.config, "use_cache") and self.model.config.model_type == "gpt2"


def from_transformers(name: str, size: str, batch: int | None) -> Sample:
    """GPT-2 or BERT of transformers with random weights."""
    import transformers

    small = size == "small"
    width, heads, length, batch = (64, 4, 64, batch or 4) if small else (768, 12, 512, batch or 4)
    if name == "hf-gpt2":
        options = {"n_embd": width, "n_head": heads, "n_positions": length, "vocab_size": 500 if small else 50257}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=12, **options))
    else:
        options = {"hidden_size": width, "num_attention_heads": heads, "max_position_embeddings": length}
        more = {"intermediate_size": 4 * width, "vocab_size": 500 if small else 30522}
        model = transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=12, **options, **more))
    vocabulary = model.config.vocab_size
    args = tuple(torch.randint(vocabulary, (batch, length)) for _ in range(2))
    return LossOnly(model).train(), args


def made(name: str, size: str, batch: int | None) -> Sample:
    """Module and sample arguments."""
    torch.manual_seed(0)
    if name.startswith("hf-"):
        return from_transformers(name, size, batch)
    builder, small, full = SIZES[name]
    options = dict(small if size == "small" else full)
    if batch is not None:
        options["batch"] = batch
    found: Sample = getattr(models, builder)(**options)
    return found


@dataclass
class Trained:
    """What the steps of one module did and took."""

    call: Callable[..., Any]
    module: nn.Module
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    peak: int = 0
    peak_op: str = ""
    allocator: Any = None

    @property
    def median(self) -> float:
        """Seconds of a step, the first one left out."""
        return statistics.median(self.seconds[1:] or self.seconds)


def train(each: Sequence[Trained], args: tuple[Any, ...], chosen: argparse.Namespace) -> None:
    """Steps with SGD, of one module after the other, so that what else the machine does strikes both alike.

    The first step is a start from cold; those after the last one are measured and neither timed nor counted.
    """
    clock = time.perf_counter if chosen.clock == "wall" else time.process_time
    optimizers = [torch.optim.SGD(one.module.parameters(), lr=1e-3) for one in each]
    for number in range(chosen.steps + 1 + chosen.allocator):
        for one, optimizer in zip(each, optimizers, strict=True):
            optimizer.zero_grad()
            torch.manual_seed(number)
            if number >= chosen.steps:
                tracker = track_storages(constants=(args, one.module))
                with tracker if number == chosen.steps else profiled_memory() as found:
                    loss = one.call(*args)
                    loss.backward()
                if number == chosen.steps:
                    one.peak, one.peak_op = tracker.peak, tracker.peak_op
                else:
                    one.allocator = found
            else:
                begun = clock()
                loss = one.call(*args)
                loss.backward()
                one.seconds.append(clock() - begun)
            one.losses.append(loss.item())
            del loss
            if number < chosen.steps:
                optimizer.step()
            if number < chosen.steps + chosen.allocator:
                optimizer.zero_grad()  # gradients of one are not held while the other runs
            else:
                one.gradients = {name: w.grad for name, w in one.module.named_parameters() if w.grad is not None}
    for one in each:
        one.state = dict(one.module.state_dict())


def equal(a: Trained, b: Trained) -> bool:
    """Whether losses, gradients, weights and statistics are the same bit by bit."""
    return a.losses == b.losses and all(
        x.keys() == y.keys() and all(torch.equal(each, y[name]) for name, each in x.items())
        for x, y in ((a.gradients, b.gradients), (a.state, b.state))
    )


def difference(a: Trained, b: Trained) -> float:
    """Greatest difference of a gradient, relative to the greatest entry of all."""
    pairs = [(each, b.gradients[name]) for name, each in a.gradients.items()]
    largest = max(each.abs().max().item() for each, _ in pairs)
    return max((x - y).abs().max().item() for x, y in pairs) / (largest or 1.0)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--costs", default="roofline")
    parser.add_argument("--workspaces", choices=("measured",))
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--allocator", action="store_true")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    print(
        f"{'model':16} {'ops':>5} {'again':>5} {'equal':>5} {'differ':>7} {'reference':>14} {'predicted':>14} "
        f"{'measured':>14} {'eager':>14} {'extra cost':>10} {'eager s':>8} {'step s':>8} {'time':>5} {'capture':>8} "
        f"{'solve':>6}"
    )
    for name in chosen.models.split(","):
        module, args = made(name, chosen.size, chosen.batch)
        module, args = module.to(chosen.device), tuple(each.to(chosen.device) for each in args)
        copied = copy.deepcopy(module)
        try:
            model = rematerialize(
                copied, args, chosen.budget, method=chosen.method, costs=chosen.costs, time_limit=chosen.time_limit,
                workspaces=chosen.workspaces,
            )  # fmt: skip
        except RematError as error:
            print(f"{name:16} {error}")
            continue
        eager, ours = Trained(module, module), Trained(model, copied)
        train((eager, ours), args, chosen)
        report = model.report
        overhead = "-" if report.overhead is None else f"{report.overhead:.2f} %"
        print(
            f"{name:16} {report.ops:5} {report.recomputations:5} {'yes' if equal(eager, ours) else 'NO':>5} "
            f"{difference(eager, ours):7.1g} {report.reference_peak:14,} {report.predicted_peak:14,} "
            f"{ours.peak:14,} {eager.peak:14,} {overhead:>10} {eager.median:7.2f}s {ours.median:7.2f}s "
            f"{ours.median / eager.median:5.2f} {report.seconds['capture']:7.1f}s "
            f"{report.seconds['solve']:5.1f}s",
            flush=True,
        )
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
