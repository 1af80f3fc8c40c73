"""Errors of capture, and the fallback to the other route."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from remat.torch.capture import capture, fake_tensors  # noqa: E402

ARGS = (torch.ones(2, 4),)


class Does(nn.Module):
    """Module that applies a function to a linear map and the arguments."""

    def __init__(self, function: Callable[..., Any] = lambda linear, x: linear(x)) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, *args: Tensor) -> Any:
        return self.function(self.linear, *args)

    def places(self) -> dict[str, str]:
        """Return replacements for the lines of the function and of its call."""
        lines = (self.function.__code__.co_firstlineno, Does.forward.__code__.co_firstlineno + 1)
        return {f"{__file__}, line {line}": "<place>" for line in lines}


@pytest.mark.parametrize("route", [pytest.param("auto", marks=pytest.mark.slow), "make_fx"])
@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("capture.data-dependent", lambda linear, x: linear(x) if linear(x).sum() > 0 else x),
        ("capture.data-dependent", lambda linear, x: linear(x)[x > 0].sum()),
        ("capture.no-output", lambda linear, x: len(linear(x))),
        ("capture.detached", lambda linear, x: linear(x).detach()),
        ("capture.fails", lambda linear, x, y: linear(x) + y),
        ("capture.fails", lambda linear, x: linear(x[:, :3])),
    ],
)
def test_errors_of_modules(kind: str, function: Callable[..., Any], route: str) -> None:
    module = Does(function)
    with refused(kind, culprit="Does", hide=module.places()):
        capture(module, ARGS, route=route)


def test_user_line_precedes_lines_of_packages() -> None:
    """``torch_geometric`` shares a prefix with ``torch``; without user lines its line is named."""
    installed = Path(torch.__file__).parent.with_name("torch_geometric") / "conv.py"
    names: dict[str, Any] = {}
    exec(compile("def conv(linear, x):\n    return linear(x)[x.sum(1).nonzero()]", installed, "exec"), names)
    places = {f"{installed}, line 2": "<installed>"}
    module = Does(names["conv"])
    for _ in range(2):
        with refused("capture.data-dependent", culprit="Does", hide=places | module.places()):
            capture(module, ARGS, route="make_fx")
        module.forward = functools.partial(module.function, module.linear)  # no line of this file remains


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("capture.arguments", {"args": torch.ones(2, 4)}),
        ("capture.meta-device", {"args": (torch.ones(2, 4, device="meta"),)}),
        ("capture.route", {"route": "export"}),
        ("capture.mode", {"mode": "eval"}),
        ("capture.inference-alone", {"mode": "inference", "route": "joint"}),
        ("capture.inference-alone", {"mode": "inference", "loss": 0}),
        ("capture.loss-item", {"loss": "loss"}),
        ("capture.loss-value", {"loss": 0}),
        ("capture.loss-item", {"loss": 3}),
        ("capture.loss-value", {"loss": lambda y: y.tolist}),
    ],
)
def test_errors_of_arguments(kind: str, arguments: dict) -> None:
    route = {} if "mode" in arguments else {"route": "make_fx" if "loss" in arguments else "auto"}
    with refused(kind):
        capture(Does(), **{"args": ARGS, **route, **arguments})


def test_errors_of_module_kinds() -> None:
    with torch.device("meta"):
        meta = Does()
    with fake_tensors():
        fake = Does()
    with fake_tensors():
        other = (torch.ones(2, 4),)
    for kind, culprit, module, args in (
        ("capture.no-module", "function", lambda x: x, ARGS),
        ("capture.no-gradient", "Does", Does().requires_grad_(False), ARGS),
        ("capture.meta-device", "linear.weight", meta, ARGS),
        ("capture.other-fake-mode", "sample argument 0", fake, other),
    ):
        with refused(kind, culprit=culprit):
            capture(module, args)


def test_fallback_after_dynamo_errors() -> None:
    module = Does(lambda linear, x: (torch._dynamo.graph_break(), linear(x))[1])
    captured = capture(module, ARGS)
    assert captured.route == "make_fx"
    with refused("capture.dynamo", culprit="Does", hide=module.places()) as raised:
        capture(module, ARGS, route="joint")
    assert captured.graph.meta["fallback"] == str(raised.value)
    assert "fallback" not in capture(Does(), ARGS).graph.meta


def test_tensor_attributes_become_constants() -> None:
    module = Does(lambda linear, x: linear(x) * linear.factor)
    module.linear.factor = torch.ones(4)
    captured = capture(module, ARGS)
    ((name, tensor),) = captured.constants.items()
    assert tensor is module.linear.factor
    assert name in {each.name for each in captured.inputs_of("buffer")}
