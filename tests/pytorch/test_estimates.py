"""Estimates of training steps: equal to measured bytes, certified prices, sizes, and no memory needed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from helpers import few
from refusals import refused
from torch import nn

from remat.torch import estimate, fake_tensors, rematerialize, track_storages
from remat.torch.fit.eager_step import eager_step
from remat.torch.fit.growth import Dimension, dimensions, extrapolated, largest

OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adafactor": torch.optim.Adafactor,
}


def measured(module: nn.Module, args: tuple[Any, ...], optimizer: Any) -> tuple[int, int]:
    """Return the peak of two real training steps, and the bytes of the optimizer's state."""
    chosen = optimizer(list(module.parameters()))
    with track_storages(constants=(module, args)) as tracker:
        for _ in range(2):
            loss = module(*args)
            loss.backward(torch.ones_like(loss))
            del loss
            chosen.step()
            chosen.zero_grad()
    return tracker.peak, tracker.live


@pytest.mark.parametrize(
    ("name", "optimizer"),
    few(
        [("gpt", "adamw"), ("gpt", "sgd"), ("unet", "adamw"), ("resnet", "sgd"), ("resnet", "adamw"), ("unet", "sgd")],
        2,
    ),
)
def test_eager_steps_need_what_is_measured(name: str, optimizer: str) -> None:
    module, args = getattr(models, name)()
    module.eval()
    found = eager_step(module, args, optimizer=optimizer)
    assert not module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    module.train()
    assert (found.total, found.state) == measured(module, args, OPTIMIZERS[optimizer])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", ["bert", "encoder_decoder"])
def test_eager_steps_of_further_models(name: str, optimizer: str) -> None:
    module, args = getattr(models, name)()
    found = eager_step(module, args, optimizer=optimizer)
    assert (found.total, found.state) == measured(module, args, OPTIMIZERS[optimizer])


def test_optimizers_like_a_given_one() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    given = torch.optim.SGD(
        [{"params": module[0].parameters(), "momentum": 0.9}, {"params": module[1].parameters()}], lr=1.0
    )
    found = eager_step(module, (torch.ones(2, 8),), optimizer=given)
    assert found.state == 4 * (8 * 8 + 8)  # momentum of the first group only
    assert not given.state


def test_faulty_optimizers_are_refused() -> None:
    module, args = nn.Linear(2, 2), (torch.ones(1, 2),)
    with refused("problem.optimizer", culprit="adamm"):
        eager_step(module, args, optimizer="adamm")
    with refused("problem.optimizer", culprit="parameters"):
        eager_step(module, args, optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))
    with refused("problem.optimizer", culprit="list"):
        eager_step(module, args, optimizer=list)
    with refused("problem.bad-memory", culprit="50%"):
        estimate(module, args, memory="50%")
    with refused("problem.bad-memory", culprit="'lots'"):
        estimate(module, args, memory="lots")
    with refused("capture.no-module", culprit="estimate"):
        estimate(eager_step, args)


class DataDependent(torch.optim.SGD):
    """Optimizer that no fake tensors can run: a size depends on the gradients."""

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["places"] = parameter.grad.nonzero()


def test_unknown_states_of_optimizers_leave_the_verdict_open() -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.ones(16, 8)
    found = estimate(module, x, optimizer=DataDependent, memory="1GiB", time_limit=2)
    assert (found.state, found.total, found.verdict) == (None, None, "unknown")
    assert "the optimizer's state is" in dict(found.lines())["fits"]
    assert [(each.plain, each.size, each.limit) for each in found.largest] == [(None, None, None)]
    without = estimate(module, x, optimizer=DataDependent, memory=100, sizes=False, time_limit=2)
    assert without.verdict == "no"  # too small even without the state
    assert "without the optimizer's state" in found.plot().axes[0].get_title()


@pytest.mark.slow
def test_prices_are_those_of_rematerialize() -> None:
    """The verdict for a memory between both peaks is a schedule that rematerialize runs, at the stated price."""
    module, args = models.gpt()
    plain = estimate(module, args, optimizer="adamw", time_limit=4)
    assert plain.verdict == ""
    memory = plain.resident + int(0.8 * plain.step)
    found = estimate(module, args, optimizer="adamw", memory=memory, sizes=False, time_limit=20)
    assert (found.total, found.verdict) == (plain.total, "recomputation")
    cell = found.cell
    assert cell is not None and cell.schedule is not None
    made = rematerialize(module, args, memory - found.resident, schedule=cell.schedule, verify=True)
    assert made.report.predicted_peak == cell.row["peak"] <= memory - found.resident
    assert made.report.overhead == cell.row["overhead_percent"]
    assert estimate(module, args, memory=plain.total, sizes=False, time_limit=1).verdict == "as it is"
    small = estimate(module, args, memory=plain.resident + 1000, sizes=False, time_limit=1)
    assert small.verdict == "no" and "optimizer" in str(small)


@pytest.mark.slow
def test_largest_sizes_are_certified() -> None:
    module, args = models.gpt()
    found = estimate(module, args, optimizer="adamw", memory="0.9MiB", time_limit=10)
    batch, sequence = found.largest
    assert (batch.dimension, batch.sample, sequence.dimension, sequence.sample) == ("batch", 2, "sequence", 16)
    constants = found.parameters + found.buffers
    for each, dimension in zip(found.largest, dimensions(args, {}), strict=True):
        assert each.plain is not None and each.size is not None and each.limit is not None
        assert each.sample <= each.plain <= each.size <= each.limit
        assert each.certificate is not None and each.certificate.accepted
        for size, fits in ((each.plain, True), (each.plain + 1, False)):
            now, _ = dimension.sample(args, {}, size)
            inputs = sum(x.untyped_storage().nbytes() for x in now)
            assert (constants + inputs + eager_step(module, now, optimizer="adamw").total <= 0.9 * 2**20) == fits


def test_dimensions_of_samples() -> None:
    ids, mask = torch.ones(4, 16, dtype=torch.long), torch.ones(4, 1, 16, 16)
    assert dimensions((ids,), {"mask": mask}) == (
        Dimension("batch", 4, ((0, 0), (1, 0))),
        Dimension("sequence", 16, ((0, 1), (1, 2), (1, 3))),
    )
    (batch,) = dimensions((torch.ones(4, 3, 8, 8), 2), {})
    (image, number), _ = batch.sample((torch.ones(4, 3, 8, 8), 2), {}, 7)
    assert (image.shape, number) == ((7, 3, 8, 8), 2)


def test_search_for_the_largest_size() -> None:
    assert [largest(lambda n: n <= 37, near=near) for near in (1, 30, 37, 38, 500)] == [37] * 5
    assert largest(lambda n: False, near=9) == 0
    assert [extrapolated((2, 4, 6), (4, 16, 36), n) for n in (1, 5, 10)] == [1, 25, 100]


LLAMA = """
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F
from remat.torch import fake_tensors
from remat.torch.fit.eager_step import eager_step

class Block(nn.Module):
    def __init__(self, width=4096, inner=11008, heads=32):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down, self.heads = nn.Linear(inner, width, bias=False), heads

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (y.view(b, s, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, w))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

class Llama(nn.Module):
    def __init__(self, layers=32, width=4096, words=32000):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())

torch.set_default_dtype(torch.bfloat16)
with fake_tensors():
    model, ids = Llama(), torch.ones(4, 4096, dtype=torch.long)
found = eager_step(model, (ids, ids), optimizer="adamw")
weights = sum(p.numel() for p in model.parameters())
assert found.gradients == 2 * weights and 4 * weights <= found.state < 4 * weights + 10_000, found
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]  # ru_maxrss counts the parent's, too
print(weights, found.total + 2 * weights, int(peak) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of the process is not known")
def test_seven_billion_parameters_without_memory(tmp_path: Path) -> None:
    """The step of a Llama of 7 B parameters needs some hundred GB; its estimate less than 2 GiB."""
    (tmp_path / "llama.py").write_text(LLAMA, encoding="utf-8")
    done = subprocess.run([sys.executable, str(tmp_path / "llama.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    weights, needed, resident = map(int, done.stdout.split())
    assert 6.7e9 < weights < 6.8e9
    assert 150e9 < needed < 160e9
    assert resident < 2 * 2**30


def test_estimate_of_a_model_made_without_memory() -> None:
    with fake_tensors():
        model = nn.Sequential(*[nn.Linear(100_000, 100_000) for _ in range(2)])
        x = torch.empty(4, 100_000)
    found = estimate(model, x, optimizer="sgd", time_limit=2)
    assert (found.parameters, found.state, found.inputs) == (8 * (10**10 + 10**5), 0, 1_600_000)
    assert found.workspace is None and "unknown, not counted" in str(found)
    assert found.as_dict()["verdict"] == ""
