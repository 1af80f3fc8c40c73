"""What is told where a module cannot be captured, and what the other route then makes of it."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from remat.errors import CaptureError  # noqa: E402
from remat.torch.capture import capture, fake_tensors  # noqa: E402

SOURCE = Path(__file__).read_text(encoding="utf-8").splitlines()


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Branches(Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y * 2 if y.sum() > 0 else y  # branches


class Selects(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)[x > 0].sum()  # selects


class NoTensor(Linear):
    def forward(self, x: Tensor) -> int:
        return len(self.linear(x))


class Detached(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).detach()


class TwoArguments(Linear):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(x) + y


class Narrow(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x[:, :3])  # narrow


class Breaks(Linear):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()  # breaks
        return self.linear(x)


class Scaled(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.factor


def line_of(mark: str) -> str:
    (number,) = [k for k, line in enumerate(SOURCE, 1) if line.endswith(f"# {mark}")]
    return rf"test_capture_errors.py, line {number}\)"


@pytest.mark.parametrize("route", [pytest.param("auto", marks=pytest.mark.slow), "make_fx"])
@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Branches, "'Branches' does what depends on the values of tensors.*" + line_of("branches")),
        (Selects, "'Selects' does what depends on the values of tensors.*" + line_of("selects")),
        (NoTensor, "'NoTensor' returns no tensor"),
        (Detached, "nothing that module 'Detached' returns depends on a parameter"),
        (TwoArguments, "fails on the sample arguments.*missing 1 required positional argument: 'y'"),
        (Narrow, "'Narrow' fails on the sample arguments.*" + line_of("narrow") + ": RuntimeError: .*reduction dim"),
    ],
)
def test_what_users_get_wrong_is_one_line(module: type[nn.Module], message: str, route: str) -> None:
    with pytest.raises(CaptureError, match=message) as raised:
        capture(module(), (torch.ones(2, 4),), route=route)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"args": torch.ones(2, 4)}, r"a tuple, not a Tensor: \(x,\) for one"),
        ({"args": (torch.ones(2, 4, device="meta"),)}, "sample argument 0 is on the meta device.*fake_tensors"),
        ({"route": "export"}, "route 'export' is not one of auto, joint, make_fx"),
        ({"mode": "eval"}, "mode 'eval' is not one of training, inference"),
        ({"mode": "inference", "route": "joint"}, "no joint graph"),
        ({"mode": "inference", "loss": 0}, "has no loss"),
        ({"loss": "loss"}, "without an item 'loss' to be the loss"),
        ({"loss": 0}, r"the loss 0 is a tensor of shape \(2, 4\), not one number"),
        ({"loss": 3}, "1 items, none of them number 3"),
        ({"loss": lambda y: y.tolist}, "the loss function returns a method, not a tensor"),
    ],
)
def test_wrong_arguments_of_capture_are_named(arguments: dict, message: str) -> None:
    route = "make_fx" if "loss" in arguments else "auto"
    with pytest.raises(CaptureError, match=message):
        capture(
            Linear(), **{"args": (torch.ones(2, 4),), **({} if "mode" in arguments else {"route": route}), **arguments}
        )


def test_what_is_no_module_or_has_nothing_to_train_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"takes a torch.nn.Module, not a function"):
        capture(lambda x: x, (torch.ones(2, 4),))
    with pytest.raises(CaptureError, match="'Linear' has no parameter that needs a gradient; mode='inference'"):
        capture(Linear().requires_grad_(False), (torch.ones(2, 4),))
    with torch.device("meta"):
        module = Linear()
    with pytest.raises(CaptureError, match=r"parameter or buffer 'linear.weight' is on the meta device"):
        capture(module, (torch.ones(2, 4),))
    with fake_tensors():
        module = Linear()
    with fake_tensors():
        args = (torch.ones(2, 4),)
    with pytest.raises(CaptureError, match="sample argument 0 is a fake tensor of another FakeTensorMode"):
        capture(module, args)


def test_where_dynamo_stops_the_other_route_goes_on_and_says_so() -> None:
    captured = capture(Breaks(), (torch.ones(2, 4),))
    assert captured.route == "make_fx"
    reason = captured.graph.meta["fallback"]
    assert re.search("Dynamo cannot follow module 'Breaks'.*" + line_of("breaks") + ": Call to .*graph_break", reason)
    with pytest.raises(CaptureError, match="Dynamo cannot follow"):
        capture(Breaks(), (torch.ones(2, 4),), route="joint")
    assert "fallback" not in capture(Linear(), (torch.ones(2, 4),)).graph.meta


def test_tensors_that_are_no_parameters_are_kept() -> None:
    module = Scaled()
    captured = capture(module, (torch.ones(2, 4),))
    ((name, tensor),) = captured.constants.items()
    assert tensor is module.factor
    assert name in {each.name for each in captured.inputs_of("buffer")}
