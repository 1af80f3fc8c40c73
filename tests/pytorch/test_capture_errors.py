"""What is told where a module cannot be captured, and what the other route then makes of it."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402
from torch import Tensor, nn  # noqa: E402

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


def place_of(mark: str) -> str:
    (number,) = [k for k, line in enumerate(SOURCE, 1) if line.endswith(f"# {mark}")]
    return f"{__file__}, line {number}"


@pytest.mark.parametrize("route", [pytest.param("auto", marks=pytest.mark.slow), "make_fx"])
@pytest.mark.parametrize(
    ("module", "kind", "mark"),
    [
        (Branches, "capture.data-dependent", "branches"),
        (Selects, "capture.data-dependent", "selects"),
        (NoTensor, "capture.no-output", ""),
        (Detached, "capture.detached", ""),
        (TwoArguments, "capture.fails", ""),
        (Narrow, "capture.fails", "narrow"),
    ],
)
def test_what_users_get_wrong_is_named(module: type[nn.Module], kind: str, mark: str, route: str) -> None:
    with refused(kind, culprit=module.__name__, hide={place_of(mark): "<place>"} if mark else {}):
        capture(module(), (torch.ones(2, 4),), route=route)


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
def test_wrong_arguments_of_capture_are_named(kind: str, arguments: dict) -> None:
    route = {} if "mode" in arguments else {"route": "make_fx" if "loss" in arguments else "auto"}
    with refused(kind):
        capture(Linear(), **{"args": (torch.ones(2, 4),), **route, **arguments})


def test_what_is_no_module_or_has_nothing_to_train_is_refused() -> None:
    with refused("capture.no-module"):
        capture(lambda x: x, (torch.ones(2, 4),))
    with refused("capture.no-gradient", culprit="Linear"):
        capture(Linear().requires_grad_(False), (torch.ones(2, 4),))
    with torch.device("meta"):
        module = Linear()
    with refused("capture.meta-device", culprit="linear.weight"):
        capture(module, (torch.ones(2, 4),))
    with fake_tensors():
        module = Linear()
    with fake_tensors():
        args = (torch.ones(2, 4),)
    with refused("capture.other-fake-mode"):
        capture(module, args)


def test_where_dynamo_stops_the_other_route_goes_on_and_says_so() -> None:
    captured = capture(Breaks(), (torch.ones(2, 4),))
    assert captured.route == "make_fx"
    with refused("capture.dynamo", culprit="Breaks", hide={place_of("breaks"): "<place>"}) as raised:
        capture(Breaks(), (torch.ones(2, 4),), route="joint")
    assert captured.graph.meta["fallback"] == str(raised.value)
    assert "fallback" not in capture(Linear(), (torch.ones(2, 4),)).graph.meta


def test_tensors_that_are_no_parameters_are_kept() -> None:
    module = Scaled()
    captured = capture(module, (torch.ones(2, 4),))
    ((name, tensor),) = captured.constants.items()
    assert tensor is module.factor
    assert name in {each.name for each in captured.inputs_of("buffer")}
