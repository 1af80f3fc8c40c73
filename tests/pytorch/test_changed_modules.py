"""Rematerialized modules that change after the capture, and unusual calls: results stay those of the plain module."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402
from test_training_stacks import QUICK, Net, assert_same, batches, made, trained  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from remat.torch import rematerialize, rematerialize_blocks  # noqa: E402

DATA = batches(8, 8)


def halves(module: nn.Module, given: Any, output: Any) -> Any:
    return output * 0.5


CHANGES: dict[str, Callable[[Net], Any]] = {
    "probability of dropout": lambda model: setattr(model.layers[2], "p", 0.5),
    "number": lambda model: setattr(model, "scale", 3.0),
    "hook of a submodule": lambda model: model.layers[0].register_forward_hook(halves),
    "gradient hook of a submodule": lambda model: model.layers[1].register_full_backward_hook(
        lambda module, inputs, outputs: (inputs[0] * 0.5,)
    ),
    "hook of the module": lambda model: model.register_forward_hook(halves),
    "parameter": lambda model: model.layers[0].requires_grad_(False),
}


def test_changes_are_captured_again() -> None:
    """Training equals eager before the changes and after each of them."""
    eager, model = made(2), rematerialize(made(2), DATA[0], "70%", **QUICK)
    for change in (lambda each: None, *CHANGES.values()):
        for each in (eager, model):
            change(each)
        assert_same(trained(model, DATA), trained(eager, DATA))


class Branches(nn.Module):
    """Takes the branch that a list names, as the adapters of PEFT do."""

    def __init__(self) -> None:
        super().__init__()
        self.active = ["first"]
        self.parts = nn.ModuleDict({name: nn.Linear(16, 16) for name in ("first", "second")})

    def forward(self, x: Any) -> Any:
        for name in self.active:
            x = torch.tanh(self.parts[name](x))
        return x


def test_branches_by_an_attribute() -> None:
    """An equal value in another list is no change, and copies need no capture of their own."""
    plain = Branches()
    model = rematerialize(copy.deepcopy(plain), DATA[0][:1], "1MiB", **QUICK)
    first, other = model.report, copy.deepcopy(model)
    for active in (["first"], ["second"], ["second", "first"]):
        plain.active, model.active = active, list(active)
        found = []
        for each in (plain, model):
            each.zero_grad()
            each(DATA[0][0]).sum().backward()
            found.append([p.grad for p in each.parameters()])
        assert [grad is None for grad in found[1]] == [grad is None for grad in found[0]]
        assert_same(*([grad for grad in grads if grad is not None] for grads in found))
        assert (model.report is first) == (active == ["first"])
    other(DATA[0][0]).sum().backward()
    assert other.report is first


@dataclass
class Inner:
    power: float = 2.0


@dataclass
class Configuration:
    scale: float = 1.0
    name: str = "first"
    inner: Inner = field(default_factory=Inner)


class Configured(nn.Module):
    """Layers that read a common configuration, and an object in it."""

    def __init__(self, config: Configuration | None = None) -> None:
        super().__init__()
        self.config = config or Configuration()
        self.linear = nn.Linear(16, 16)
        self.layers = nn.ModuleList([] if config else (Configured(self.config) for _ in range(2)))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(self.linear(x)).abs() ** self.config.inner.power * self.config.scale


CONFIGURED: dict[str, Callable[[Configured], Any]] = {
    "attribute": lambda module: setattr(module.config, "scale", 3.0),
    "attribute of an object in it": lambda module: setattr(module.config.inner, "power", 3.0),
    "object": lambda module: setattr(module.config, "inner", Inner(1.5)),
    "configuration of one layer": lambda module: setattr(module.layers[1], "config", Configuration(3.0)),
}


@pytest.mark.parametrize("blocks", [False, True])
def test_attributes_of_configurations(blocks: bool) -> None:
    """Those that forward reads are compared, each in turn; others, and an equal configuration, are no change."""
    plain, x = Configured(), DATA[0][0]
    module = copy.deepcopy(plain)
    if blocks:
        found: Any = rematerialize_blocks(module, "1MiB", (x,), other_shapes="capture", **QUICK)
        model: Any = module
    else:
        found = model = rematerialize(module, x, "1MiB", **QUICK)

    def assert_equal() -> None:
        grads = []
        for each in (plain, model):
            each.zero_grad()
            each(x).sum().backward()
            grads.append([p.grad for p in each.parameters()])
        assert_same(*grads)

    for each in (plain, module):
        each.config.name = "other"
    assert_equal()
    assert len(found.reports) == 1 and copy.deepcopy(module.config) == plain.config
    for kind in ["object"] if blocks else CONFIGURED:
        for each in (plain, module):
            CONFIGURED[kind](each)
        assert_equal()


def test_further_arguments_are_captured_once() -> None:
    """A trainer may pass an argument that the sample lacks; other shapes are still refused, and named."""
    x, target = DATA[0]
    eager, model = made(2), rematerialize(made(2), (x,), "90%", **QUICK)
    for _ in range(2):
        assert_same(trained(model, DATA), trained(eager, DATA))
    assert len(model.reports) == 2 and len({each.budget for each in model.reports}) == 1
    with refused("execution.unlike-sample", culprit="'x' has shape (100, 16)"):
        model(x[:100], target)


def test_replaced_parameters_of_functional_call_have_gradients() -> None:
    """Also if such a call is the sample."""
    found = []
    for model in (made(2), rematerialize(made(2), None, "70%", **QUICK)):
        own = {name: (2 * each.detach()).requires_grad_() for name, each in model.named_parameters()}
        torch.manual_seed(2)
        torch.func.functional_call(model, own, DATA[0]).backward()
        found.append([each.grad for each in own.values()])
        assert all(each.grad is None for each in model.parameters())
    assert_same(*found)


def test_sample_within_a_checkpoint_and_export_in_training() -> None:
    eager, model = made(2), rematerialize(made(2), None, "70%", **QUICK)
    found = [
        trained(each, DATA, lambda x, y, each=each: checkpoint(each, x, y, use_reentrant=False))
        for each in (model, eager)
    ]
    assert_same(*found)
    graphs = [torch.export.export(each, DATA[0]).graph_signature for each in (model, eager)]
    assert graphs[0].parameters == graphs[1].parameters == tuple(name for name, _ in eager.named_parameters())


def test_frozen_modules_run_as_they_are() -> None:
    eager, model = made(2), rematerialize(made(2), None, "70%", **QUICK)
    for each in (eager, model):
        each.requires_grad_(False)
        torch.manual_seed(2)
    assert not model(*DATA[0]).requires_grad and model.reports == []
    x = DATA[0][0].clone().requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None and len(model.reports) == 1


def test_transforms_of_functions_are_refused() -> None:
    model = rematerialize(made(2), DATA[0], "70%", **QUICK)
    own = {name: each.detach() for name, each in model.named_parameters()}
    with refused("execution.transform"):
        torch.func.grad(lambda given: torch.func.functional_call(model, given, DATA[0]))(own)
    with refused("execution.transform"), torch.autograd.forward_ad.dual_level():
        model(torch.autograd.forward_ad.make_dual(*DATA[0]), DATA[0][1])


def test_hooks_of_blocks_run_once_and_remain() -> None:
    """Hooks registered before, after, and before a call of another shape; handles stay valid after restore."""
    eager = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))
    model = copy.deepcopy(eager)
    seen: list[Any] = []
    for each in (model, eager):
        each[1].register_forward_hook(halves)
    found = rematerialize_blocks(model, "1MiB", other_shapes="capture", method="eviction", costs="flops")
    handles = []

    def compare(rows: int) -> None:
        x = DATA[0][0][:rows]
        assert_same([model(x).detach()], [eager(x).detach()])

    compare(128)
    for each in (model, eager):
        handles += [each[2].register_forward_hook(halves), each[0][0].register_forward_hook(halves)]
    model.register_state_dict_post_hook(lambda *given: seen.append(len(given)))
    compare(128), compare(100), compare(128)
    found.restore()
    compare(128)
    for handle in handles:
        handle.remove()
    compare(128)
    model.state_dict()
    assert seen == [4]
    assert type(model[0]) is nn.Sequential


def test_state_dict_hooks_of_either_side_run() -> None:
    plain, seen = made(2), []
    model = rematerialize(plain, None, "70%", **QUICK)
    for each in (plain, model):
        each.register_state_dict_post_hook(lambda *given: seen.append(given))
    model.state_dict()
    assert len(seen) == 2


def test_blocks_called_outside_of_their_model() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2)))
    rematerialize_blocks(model, "1MiB", DATA[0][:1], other_shapes="capture", method="eviction", costs="flops")
    with refused("execution.outside-model", culprit="restore()"):
        model[0](DATA[0][0][:50])


def test_changed_attribute_is_refused_without_a_budget_for_another_schedule() -> None:
    given = rematerialize(made(2), DATA[0], "70%", **QUICK).schedule
    model = rematerialize(made(2), DATA[0], schedule=given)
    model.scale = 3.0
    with refused("execution.python-state", culprit="attribute 'scale' is 3.0"):
        model(*DATA[0])


def test_blocks_that_another_tool_converted_are_not_restored() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2)))
    found = rematerialize_blocks(model, "1MiB", DATA[0][:1], time_limit=1)
    block = model[0]
    block.__class__ = type("Sharded", (type(block),), {})
    with refused("execution.not-restored", culprit="Sharded"):
        found.restore()
