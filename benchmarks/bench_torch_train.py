"""Real training steps within a budget: gradients against eager, measured against predicted peak, time.

Run: python benchmarks/bench_torch_train.py [--models gpt2,resnet50,...] [--size small|full] [--batch N] [--budget 50%]
     [--steps 3] [--time-limit 60] [--method auto] [--costs roofline] [--threads 1] [--device cpu] [--allocator]
     [--clock wall|processor] [--workspaces measured]

Each model trains a few steps with SGD, once as it is and once rematerialized, from the same weights and seeds. A line
says whether all losses, gradients and statistics are equal bit by bit, the greatest difference of a gradient relative
to the greatest entry of all, the predicted and the measured peak (bytes of storages that the step makes), that of
eager, and the seconds of a step (median of those after the first) of both; ``--clock processor`` counts processor time
of all threads, which other programs on the machine change less. With ``--allocator`` one more step of each is profiled:
a second line has the peaks of what the allocator gave out, workspaces of kernels included; with ``--workspaces
measured`` budget and predicted peak count these. Names that begin with ``hf-`` are models of transformers with random
weights. Full sizes need some 4 to 12 GB of memory, with ``--batch 2`` 4 GB at most.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
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


def train(
    call: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], chosen: argparse.Namespace
) -> dict[str, Any]:
    """Steps with SGD: losses, the last gradients, the state afterwards, seconds of a step, and the measured peaks."""
    clock = time.perf_counter if chosen.clock == "wall" else time.process_time
    steps: int = chosen.steps
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    losses, seconds, tracker, record = [], [], track_storages(constants=(args, module)), None
    for number in range(steps + 1 + chosen.allocator):  # the first is a start from cold
        optimizer.zero_grad()
        if number >= steps:  # measured, not timed
            with tracker if number == steps else profiled_memory() as found:
                loss = call(*args)
                loss.backward()
            record = found
        else:
            begun = clock()
            loss = call(*args)
            loss.backward()
            seconds.append(clock() - begun)
        losses.append(loss.item())
        del loss
        if number < steps:
            optimizer.step()
    gradients = {name: each.grad for name, each in module.named_parameters() if each.grad is not None}
    state = dict(module.state_dict())
    return {
        "losses": losses, "gradients": gradients, "state": state, "seconds": statistics.median(seconds[1:] or seconds),
        "peak": tracker.peak, "peak_op": tracker.peak_op, "allocator": record,
    }  # fmt: skip


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether losses, gradients, weights and statistics are the same bit by bit."""
    return a["losses"] == b["losses"] and all(
        a[what].keys() == b[what].keys() and all(torch.equal(x, b[what][name]) for name, x in a[what].items())
        for what in ("gradients", "state")
    )


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Greatest difference of a gradient, relative to the greatest entry of all."""
    pairs = [(each, b["gradients"][name]) for name, each in a["gradients"].items()]
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
        eager = train(module, module, args, chosen)
        del module
        ours = train(model, copied, args, chosen)
        report = model.report
        overhead = "-" if report.overhead is None else f"{report.overhead:.2f} %"
        print(
            f"{name:16} {report.ops:5} {report.recomputations:5} {'yes' if equal(eager, ours) else 'NO':>5} "
            f"{difference(eager, ours):7.1g} {report.reference_peak:14,} {report.predicted_peak:14,} "
            f"{ours['peak']:14,} {eager['peak']:14,} {overhead:>10} {eager['seconds']:7.2f}s {ours['seconds']:7.2f}s "
            f"{ours['seconds'] / eager['seconds']:5.2f} {report.seconds['capture']:7.1f}s "
            f"{report.seconds['solve']:5.1f}s",
            flush=True,
        )
        if chosen.allocator:
            print(
                f"{'':16} allocator: rematerialized {ours['allocator'].peak:,} at {ours['allocator'].peak_op}, eager "
                f"{eager['allocator'].peak:,} at {eager['allocator'].peak_op}; storages: {ours['peak_op']}, "
                f"{eager['peak_op']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
