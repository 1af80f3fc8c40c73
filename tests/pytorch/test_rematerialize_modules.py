"""What newcomers try first, through ``rematerialize``: modules and outputs of all kinds; each works or is refused."""

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

from remat.torch import capture, rematerialize  # noqa: E402
from remat.torch.rematerialized import entry, planning  # noqa: E402
from remat.torch.rematerialized.python_state import check_python_state  # noqa: E402

slow = pytest.mark.slow
SIZE = (4, 6, 8)


class Small(nn.Module):
    """A linear map twice, and what a subclass does between."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        return self.linear(self.between(torch.tanh(self.linear(x))))

    def between(self, y: Any) -> Any:
        return y


# -- what works ----------------------------------------------------------------------------------------------------


class Outputs(Small):
    """Parameters and inputs are returned as they are; what comes out beside tensors; an attribute that is a tensor."""

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


def twice(layer: nn.Module) -> nn.Module:
    """A module that has a part twice, under two names."""
    return nn.Sequential(layer, nn.Tanh(), nn.Dropout(0.2), layer)


def parametrized() -> nn.Module:
    layer = nn.Linear(8, 8)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return twice(layer)


class Broken(Small):
    """Dynamo refuses it; two outputs are one memory; batch norm, dropout, a constant made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Any) -> Any:
        torch._dynamo.graph_break()
        y = self.norm(self.linear(self.dropout(x)).tanh()) * torch.tensor([2.0])
        return {"y": self.linear(self.dropout(y)), "flat": y.view(-1), "seen": y.detach(), "weight": self.norm.weight}


class Penalty(Small):
    """A gradient within forward."""

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


def after(first: nn.Module) -> nn.Module:
    """Ids first: an embedding, then something."""
    return nn.Sequential(first, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


QUICK: dict[str, Callable[[], nn.Module]] = {"outputs": Outputs, "broken": Broken}
SLOW: dict[str, Callable[[], nn.Module]] = {
    "parametrized": parametrized,
    "penalty": Penalty,
    "cells": Cells,
    "lstm": partial(nn.LSTM, 8, 5, 2, batch_first=True),
    "gru": partial(nn.GRU, 8, 5, bidirectional=True),
    "embedding": lambda: after(nn.Embedding(10, 8, padding_idx=0)),
    "max_norm": lambda: after(nn.Embedding(10, 8, max_norm=0.5)),
    "bag": lambda: after(nn.EmbeddingBag(10, 8, mode="mean")),
    "conv1d": lambda: nn.Sequential(
        nn.Conv1d(6, 12, 3), nn.GroupNorm(3, 12), nn.SiLU(), nn.Conv1d(12, 4, 3, groups=2)
    ),
    "conv3d": lambda: nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.InstanceNorm3d(4, track_running_stats=True), nn.ReLU(inplace=True),
        nn.Dropout3d(0.3), nn.AdaptiveAvgPool3d(2), nn.ConvTranspose3d(4, 2, 2),
    ),
    "attention": partial(nn.MultiheadAttention, 8, 2, dropout=0.1),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "weight_norm": lambda: after(parametrizations.weight_norm(nn.Linear(8, 8))),
    "spectral_norm": lambda: after(parametrizations.spectral_norm(nn.Linear(8, 8))),
    "shared": Small,
}  # fmt: skip
#: Arguments that are not one tensor of SIZE.
ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    **dict.fromkeys(("outputs", "shared"), lambda: (floats(*SIZE).requires_grad_(),)),
    **dict.fromkeys(("embedding", "max_norm", "bag"), lambda: (ids(),)),
    "conv3d": lambda: (floats(2, 2, 4, 4, 4),),
    "attention": lambda: (floats(*SIZE),) * 3,
}
#: Eager fuses what a step runs op by op.
ROUNDED = ("cells", "lstm")


def losses(out: Any) -> list[Any]:
    """Of all that is returned, and of each output alone: the others then have no gradient."""
    leaves = [each for each in pytree.tree_leaves(out) if isinstance(each, torch.Tensor) and each.requires_grad]
    return [sum((each * each).sum() for each in leaves), (leaves[-1] * 3).sum(), (leaves[0] * 2).sum()]


def steps(call: nn.Module, args: tuple[Any, ...], autocast: bool) -> list[Record]:
    """Two micro-batches that add up, then a step for single outputs."""
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
    """Schedules that compute much again, whatever was asked for."""

    def solve(problem: Any, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(
            schedule=wild_schedule(problem.graph, 0.2, seed=3), gap=None, source="", status="", scope=""
        )

    monkeypatch.setattr(planning, "solve", solve)


def check(make: Callable[[], nn.Module], args: tuple[Any, ...], *, bitwise: bool = True, autocast: bool = False) -> Any:
    """The same steps of both are equal; capture leaves the original as it was; evaluation is the original's."""
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
def test_it_trains_as_eager_does(wild, name: str) -> None:
    """Outputs that nothing is asked of have no gradient, gradients add up, what is returned is what eager returns."""
    torch.manual_seed(2)
    args = ARGUMENTS.get(name, lambda: (floats(*SIZE),))()
    model = check((QUICK | SLOW)[name], args, bitwise=name not in ROUNDED)
    if name == "broken":
        assert model.captured.route == "make_fx"
        assert "what forward does in Python is not done again" in str(model.report)


@slow
@pytest.mark.parametrize("route", ["joint", "make_fx"])
def test_under_autocast(wild, monkeypatch, route: str) -> None:
    """Without dropout, and with each weight used once: otherwise half precision rounds at other places."""
    monkeypatch.setattr(entry, "capture", partial(capture, route=route))
    torch.manual_seed(2)
    check(lambda: after(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))), (floats(*SIZE),), autocast=True)


# -- what is refused -------------------------------------------------------------------------------------------------


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
    """What a model of Hugging Face returns unless it is told not to."""

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
        pytest.param("capture.sparse", lambda: after(nn.Embedding(10, 8, sparse=True)), marks=slow),
    ],
)
def test_what_a_step_would_do_wrong_is_refused(kind: str, make: Callable[[], nn.Module]) -> None:
    """The module is as before."""
    module = make()
    before, state = dict(module.__dict__), random.getstate()
    place = f"{__file__}, line {inspect.getsourcelines(Ctc.between)[1] + 1}"
    with refused(kind, hide={place: "<place>"}):
        rematerialize(module, ids() if kind == "capture.sparse" else floats(*SIZE), "100%", method="greedy")
    assert (dict(module.__dict__), random.getstate()) == (before, state)


class Installs(Shows):
    """At its first call it does something else, as models of Hugging Face install hooks then."""

    first = True

    def between(self, y: Any) -> Any:
        if self.first:
            self.first, y = False, y + 1
            self.register_forward_hook(lambda module, given, out: out * 2)
        return super().between(y)


def test_what_a_first_call_does_is_done_once() -> None:
    module = Installs()
    assert check_python_state(module, (floats(*SIZE),), {}) == ("shown",)
    assert not module.first
    assert len(module._forward_hooks) == 1
    assert not hasattr(module, "shown")
    assert check_python_state(module, (floats(*SIZE),), {}) == ("shown",)


@slow
def test_what_forward_only_sets_is_a_remark() -> None:
    module = Shows()
    model = rematerialize(module, floats(*SIZE), "100%", method="greedy")
    assert model.report.unset == ("shown",)
    assert "sets and does not read: shown" in str(model.report)
    assert not hasattr(module, "shown")


def test_recording_leaves_nothing_fake_behind() -> None:
    """Neither attributes, nor lists, nor parameters of a part that is there twice."""
    module = nn.Sequential(Shows(), nn.Tanh())
    module.append(module[0])
    module[0].seen = seen = []
    module[0].register_forward_hook(lambda *given: seen.append(given[2]))
    captured = capture(module, (floats(*SIZE),), route="make_fx", costs="flops")
    assert captured.graph.ops and seen == [] and not hasattr(module[0], "shown")
    assert all(type(each) is nn.Parameter for each in module.parameters())
