"""Losses and copies into parts of tensors, whose kernels keep more memory than fake kernels state."""

import inspect

import pytest
from helpers import few

torch = pytest.importorskip("torch")

from eager import eager  # noqa: E402
from test_executor import SEED, check_step  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from remat.graphs import ComputeGraph  # noqa: E402
from remat.schedule import Schedule  # noqa: E402
from remat.torch import Executor, capture, rematerialize  # noqa: E402

ROWS, WIDTH = 6, 8
SIGNS = torch.where(torch.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) % 3 > 0, 1.0, -1.0)
CLASSES = torch.arange(ROWS) % WIDTH
TARGETS = {
    "cross_entropy": (CLASSES,),
    "nll_loss": (CLASSES,),
    "multi_margin_loss": (CLASSES,),
    "multilabel_margin_loss": (CLASSES.repeat(WIDTH, 1).T.contiguous(),),
    "soft_margin_loss": (SIGNS,),
    "hinge_embedding_loss": (SIGNS,),
    "margin_ranking_loss": (SIGNS / 2, SIGNS),
    "cosine_embedding_loss": (SIGNS, SIGNS[:, 0]),
    "triplet_margin_loss": (SIGNS, SIGNS.flip(0)),
    "triplet_margin_with_distance_loss": (SIGNS, SIGNS.flip(0)),
}
#: The first reads values of the variance in Python; the others' targets are sequences and weights.
LEFT_OUT = {"gaussian_nll_loss", "ctc_loss", "linear_cross_entropy"}
#: torch decomposes them into ops with other rounding.
DECOMPOSED = {"multi_margin_loss", "multilabel_margin_loss"}
LOSSES = sorted(
    name
    for name, each in vars(functional).items()
    if not name.startswith("_") and inspect.isfunction(each) and "reduction" in inspect.signature(each).parameters
)


def body() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Sigmoid())


class WithLoss(nn.Module):
    """A small network with its loss inside."""

    def __init__(self, loss: str, reduction: str) -> None:
        super().__init__()
        self.body, self.loss, self.reduction = body(), getattr(functional, loss), reduction

    def forward(self, x: Tensor, *targets: Tensor) -> Tensor:
        return self.loss(self.body(x), *targets, reduction=self.reduction)


class IntoParts(nn.Module):
    """Write results into rows, columns, a diagonal and nested parts of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        out = torch.zeros(ROWS, 4 * WIDTH)
        out[:, :WIDTH] = h
        out[:, WIDTH : 2 * WIDTH].copy_(h)
        out[1, 2 * WIDTH : 3 * WIDTH] = h[0]
        out[:, 3 * WIDTH :].mul_(2)
        out.diagonal().copy_(h[:, 0])
        out[:, 0][2:4] = h[:2, 1]
        out.t()[1:3].add_(1)
        out[2:4] = h[0, 0]
        return out.square().sum() + h.exp().sum()


def check(module: nn.Module, *targets: Tensor, route: str, bitwise: bool = True) -> ComputeGraph:
    """Assert the predicted memory at each op of a step; return the captured graph."""
    args = (torch.linspace(0, 1, ROWS * WIDTH).reshape(ROWS, WIDTH), *targets)
    captured = capture(module, args, route=route, costs="flops")
    executor = Executor(captured, Schedule.reference(captured.graph))
    check_step(eager(module, args, seed=SEED), executor, module, args, bitwise=bitwise)
    return captured.graph


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize(
    ("loss", "route", "reduction"),
    few([(loss, "make_fx", "mean") for loss in LOSSES if loss not in LEFT_OUT], 6)
    + few(
        [(loss, "joint", "sum") for loss in ("mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy")],
        1,
    ),
)
def test_memory_of_losses(loss: str, route: str, reduction: str) -> None:
    targets = TARGETS.get(loss, (SIGNS.clamp(0, 1),))
    graph = check(WithLoss(loss, reduction), *targets, route=route, bitwise=loss not in DECOMPOSED)
    assert graph.tensors[graph.tensor_index[graph.outputs[0]]].size == 4


@pytest.mark.parametrize("route", ["joint", "make_fx"])
def test_memory_of_copies_into_parts(route: str) -> None:
    graph = check(IntoParts(), route=route)
    # each would clone the whole destination
    assert not any(op.type == "aten.copy.default" for op in graph.ops if op.phase == "forward")


def test_verification_with_a_mean_loss() -> None:
    args = torch.rand(512, WIDTH), torch.rand(512, WIDTH)
    made = rematerialize(WithLoss("mse_loss", "mean"), args, "100%", verify=True, costs="flops")
    assert made.report.verification.bitwise
