"""``rematerialize`` on modules and outputs of all kinds: each trains as eager or is refused."""

import inspect
import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager import Record, assert_equal, record  # noqa: E402
from refusals import refused  # noqa: E402
from test_rematerialize import wild_schedule  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from remat.torch import Rematerialized, capture, rematerialize  # noqa: E402
from remat.torch.rematerialized import planner, planning  # noqa: E402
from remat.torch.rematerialized.python_state import check_python_state  # noqa: E402

slow = pytest.mark.slow
SIZE = (4, 6, 8)


class Small(nn.Module):
    """Linear map, applied repeated around `between`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        return self.linear(self.between(torch.tanh(self.linear(x))))

    def between(self, y: Any) -> Any:
        return y


# -- supported modules -------------------------------------------------------------------------------------------------


class Outputs(Small):
    """Return parameters, inputs, views and non-tensors; use a tensor attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.scale = nn.Linear(8, 3), torch.arange(8.0)

    def forward(self, x: Any) -> Any:
        y = torch.tanh(self.linear(self.dropout(x) * self.scale))
        z = self.other(y)
        return {"y": y, "items": (z.sum(), None, [3, "word"]), "best": z.argmax(-1), "given": (x, self.linear.weight.T)}


class Symmetric(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight.triu() + weight.triu(1).T


def repeated(layer: nn.Module) -> nn.Module:
    """Return a module that contains a part under two names."""
    return nn.Sequential(layer, nn.Tanh(), nn.Dropout(0.2), layer)


def parametrized() -> nn.Module:
    layer = nn.Linear(8, 8)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return repeated(layer)


class Broken(Small):
    """Graph break for Dynamo, aliased outputs, batch norm, dropout, a constant made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Any) -> Any:
        torch._dynamo.graph_break()
        y = self.norm(self.linear(self.dropout(x)).tanh()) * torch.tensor([2.0])
        return {"y": self.linear(self.dropout(y)), "flat": y.view(-1), "seen": y.detach(), "weight": self.norm.weight}


class Penalty(Small):
    """Gradient within forward."""

    def forward(self, x: Any) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = functional.softplus(self.linear(x))
            (slope,) = torch.autograd.grad(self.linear(y).sum(), x, create_graph=True)
            return y.mean() + slope.square().mean()


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(8, 8), nn.GRUCell(8, 8)

    def forward(self, x: Any) -> Any:
        state, memory = torch.zeros(4, 8), torch.zeros(4, 8)
        for each in x.unbind(1)[:3]:
            state, memory = self.lstm(each, (state, memory))
            state = self.gru(each, state)
        return state


def floats(*shape: int) -> Any:
    return torch.randn(*shape)


def ids() -> Any:
    return torch.arange(24).reshape(4, 6) % 10


def with_head(first: nn.Module) -> nn.Module:
    """Return ids -> `first` -> linear layers."""
    return nn.Sequential(first, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


QUICK: dict[str, Callable[[], nn.Module]] = {"outputs": Outputs, "broken": Broken}
SLOW: dict[str, Callable[[], nn.Module]] = {
    "parametrized": parametrized,
    "penalty": Penalty,
    "cells": Cells,
    "lstm": partial(nn.LSTM, 8, 5, 2, batch_first=True),
    "gru": partial(nn.GRU, 8, 5, bidirectional=True),
    "embedding": lambda: with_head(nn.Embedding(10, 8, padding_idx=0)),
    "max_norm": lambda: with_head(nn.Embedding(10, 8, max_norm=0.5)),
    "bag": lambda: with_head(nn.EmbeddingBag(10, 8, mode="mean")),
    "conv1d": lambda: nn.Sequential(
        nn.Conv1d(6, 12, 3), nn.GroupNorm(3, 12), nn.SiLU(), nn.Conv1d(12, 4, 3, groups=2)
    ),
    "conv3d": lambda: nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.InstanceNorm3d(4, track_running_stats=True), nn.ReLU(inplace=True),
        nn.Dropout3d(0.3), nn.AdaptiveAvgPool3d(2), nn.ConvTranspose3d(4, 2, 2),
    ),
    "attention": partial(nn.MultiheadAttention, 8, 2, dropout=0.1),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "weight_norm": lambda: with_head(parametrizations.weight_norm(nn.Linear(8, 8))),
    "spectral_norm": lambda: with_head(parametrizations.spectral_norm(nn.Linear(8, 8))),
    "shared": Small,
}  # fmt: skip
#: Arguments other than one tensor of SIZE.
ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    **dict.fromkeys(("outputs", "shared"), lambda: (floats(*SIZE).requires_grad_(),)),
    **dict.fromkeys(("embedding", "max_norm", "bag"), lambda: (ids(),)),
    "conv3d": lambda: (floats(2, 2, 4, 4, 4),),
    "attention": lambda: (floats(*SIZE),) * 3,
}
#: Eager fuses ops that a step runs one by one. Those of "gru" round alike on some processors only.
ROUNDED = ("cells", "lstm", "gru")


def losses(out: Any) -> list[Any]:
    """Return losses of all outputs, and of two single ones, where the others have no gradient."""
    leaves = [each for each in pytree.tree_leaves(out) if isinstance(each, torch.Tensor) and each.requires_grad]
    return [sum((each * each).sum() for each in leaves), (leaves[-1] * 3).sum(), (leaves[0] * 2).sum()]


def steps(call: nn.Module, args: tuple[Any, ...], autocast: bool) -> list[Record]:
    """Record two accumulated micro-batches, then steps for single outputs."""
    torch.manual_seed(3)
    trainer = torch.optim.SGD(call.parameters(), lr=0.01, weight_decay=0.1)
    inputs = [each for each in args if each.requires_grad]
    found = []
    for which, last in ((0, False), (0, True), (1, True), (2, True)):
        with torch.autocast("cpu", enabled=autocast):
            out = call(*args)
        losses(out)[which].backward()
        outputs = [each for each in pytree.tree_leaves(out) if isinstance(each, torch.Tensor)]
        found.append(record(call, *outputs, *(each.grad for each in inputs)))
        if last:
            trainer.step()
            for each in (*call.parameters(), *inputs):
                each.grad = None
    return [*found, record(call)]


@pytest.fixture
def wild(monkeypatch):
    """Replace solve() by schedules with many recomputations."""

    def solve(problem: Any, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(
            schedule=wild_schedule(problem.graph, 0.2, seed=3), gap=None, source="", status="", scope=""
        )

    monkeypatch.setattr(planning, "solve", solve)


def check(make: Callable[[], nn.Module], args: tuple[Any, ...], *, bitwise: bool = True, autocast: bool = False) -> Any:
    """Assert equal steps and evaluation, and an unchanged original."""
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        made.append(make())
    eager, other = made
    with torch.autocast("cpu", enabled=autocast):
        model = rematerialize(other, args, 2**30, method="greedy", costs="flops")
    assert all(type(each) is nn.Parameter for each in other.parameters())
    assert model.report.recomputations
    assert_equal(steps(model, args, autocast), steps(eager, args, autocast), bitwise=bitwise)
    with torch.no_grad():
        ours, theirs = (pytree.tree_flatten(each.eval()(*args)) for each in (model, eager))
    assert ours[1] == theirs[1]
    return model


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=slow) for name in SLOW)])
def test_training_equals_eager(wild, name: str) -> None:
    """Unused outputs have no gradient, gradients accumulate, outputs are those of eager."""
    torch.manual_seed(2)
    args = ARGUMENTS.get(name, lambda: (floats(*SIZE),))()
    model = check((QUICK | SLOW)[name], args, bitwise=name not in ROUNDED)
    if name == "broken":
        assert model.captured.route == "make_fx"
        assert "what forward does in Python is not done again" in str(model.report)


@slow
@pytest.mark.parametrize("route", ["joint", "make_fx"])
def test_training_under_autocast(wild, monkeypatch, route: str) -> None:
    """Without dropout and with each weight used once: half precision rounds at the same places."""
    monkeypatch.setattr(planner, "capture", partial(capture, route=route))
    torch.manual_seed(2)
    check(lambda: with_head(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))), (floats(*SIZE),), autocast=True)


# -- unsupported modules -----------------------------------------------------------------------------------------------


class Counts(Small):
    calls = 0

    def between(self, y: Any) -> Any:
        self.calls += 1
        return y * self.calls


class Remembers(Small):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def between(self, y: Any) -> Any:
        self.mean = 0.9 * self.mean + y.detach().mean((0, 1))
        return y - self.mean


class Draws(Small):
    def between(self, y: Any) -> Any:
        return self.linear(y) if random.random() < 0.5 else y


class Lists(Small):
    def __init__(self) -> None:
        super().__init__()
        self.weights = [nn.Parameter(torch.ones(8))]

    def between(self, y: Any) -> Any:
        return y * self.weights[0]


class Cached:
    """Output of Hugging Face models unless `use_cache` is off."""

    def __init__(self, key: Any) -> None:
        self.key = key


class Caches(Small):
    def between(self, y: Any) -> Any:
        return (y, Cached(y))

    def forward(self, x: Any) -> Any:
        return self.between(self.linear(x))


class Ctc(Small):
    def between(self, y: Any) -> Any:
        return functional.ctc_loss(y.log_softmax(-1), torch.ones(6, 2).long(), (4,) * 6, (2,) * 6)


class Shows(Small):
    def between(self, y: Any) -> Any:
        self.shown = y
        return y


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("execution.changed-attribute", Counts),
        ("execution.assigned-buffer", Remembers),
        ("execution.python-random", Draws),
        ("capture.opaque-output", Caches),
        pytest.param("execution.foreign-parameter", Lists, marks=slow),
        pytest.param("capture.data-dependent", Ctc, marks=slow),
        pytest.param("capture.sparse", lambda: with_head(nn.Embedding(10, 8, sparse=True)), marks=slow),
    ],
)
def test_unsupported_modules_are_refused_and_unchanged(kind: str, make: Callable[[], nn.Module]) -> None:
    module = make()
    before, state = dict(module.__dict__), random.getstate()
    place = f"{__file__}, line {inspect.getsourcelines(Ctc.between)[1] + 1}"
    with refused(kind, hide={place: "<place>"}):
        rematerialize(module, ids() if kind == "capture.sparse" else floats(*SIZE), "100%", method="greedy")
    assert (dict(module.__dict__), random.getstate()) == (before, state)


class Installs(Shows):
    """Module that installs a hook at its first call, as models of Hugging Face do."""

    first = True

    def between(self, y: Any) -> Any:
        if self.first:
            self.first, y = False, y + 1
            self.register_forward_hook(lambda module, given, out: out * 2)
        return super().between(y)


def test_first_call_effects_happen_once() -> None:
    module = Installs()
    assert check_python_state(module, (floats(*SIZE),), {}).unset == ("shown",)
    assert not module.first
    assert len(module._forward_hooks) == 1
    assert not hasattr(module, "shown")
    assert check_python_state(module, (floats(*SIZE),), {}).unset == ("shown",)


@slow
def test_attributes_that_forward_only_sets_are_remarked() -> None:
    module = Shows()
    model = rematerialize(module, floats(*SIZE), "100%", method="greedy")
    assert model.report.unset == ("shown",)
    assert "sets and does not read: shown" in str(model.report)
    assert not hasattr(module, "shown")


def test_recording_leaves_no_fake_tensors() -> None:
    """Attributes, lists, and parameters of a repeated part."""
    module = nn.Sequential(Shows(), nn.Tanh())
    module.append(module[0])
    module[0].seen = seen = []
    module[0].register_forward_hook(lambda *given: seen.append(given[2]))
    captured = capture(module, (floats(*SIZE),), route="make_fx", costs="flops")
    assert captured.graph.ops and seen == [] and not hasattr(module[0], "shown")
    assert all(type(each) is nn.Parameter for each in module.parameters())


def test_views_of_a_step_give_way_to_attributes_of_the_module() -> None:
    parts = [part for _ in range(3) for part in (nn.Linear(16, 16), nn.Tanh())]
    model = rematerialize(nn.Sequential(*parts), (torch.randn(2048, 16),), "90%", method="eviction")
    assert model.layers().total.at_peak == model.report.predicted_peak
    found = model.frontier(["100%", "90%", "1%"], method="eviction")
    assert [cell.budget for cell in found.of("eviction")] == [
        int(0.9 * model.report.reference_peak),
        model.report.reference_peak,
    ]
    assert str(found).startswith("100 % +0 %, 90 % +")
    assert model.plot().axes

    class Layered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(parts)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    other = rematerialize(Layered(), (torch.randn(2048, 16),), "90%", method="eviction")
    assert other.layers[0] is parts[0]
    assert Rematerialized.layers(other).total.ops == model.layers().total.ops
