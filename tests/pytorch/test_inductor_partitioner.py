"""Inductor's partitioner by a schedule: gradients of plain torch.compile, dropout included."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402
from test_host_transfers import forward_moves  # noqa: E402
from torch import nn  # noqa: E402

from remat.heuristics.base import Heuristic, HeuristicRun  # noqa: E402
from remat.problem import Problem  # noqa: E402
from remat.schedule import Machine, Schedule  # noqa: E402
from remat.torch import capture, inductor, private, profiled_memory  # noqa: E402
from remat.torch.private import inductor_config  # noqa: E402
from remat.torch.rematerialized import inductor_transfers  # noqa: E402


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_gradients_are_those_of_plain_compilation() -> None:
    layers = [part for _ in range(3) for part in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.3))]
    module, x = nn.Sequential(*layers, MeanSquare()), torch.randn(256, 32)
    within = inductor("80%", method="eviction")
    found = [gradients(module, x, options) for options in (within, {})]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    (report,) = within["custom_partitioner_fn"].reports
    assert report.certificate.accepted and report.recomputations > 0
    assert report.compiled_peak <= 0.8 * report.reference_peak


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_computed_peak_of_the_program_is_that_of_the_allocator() -> None:
    """Backward passes of depthwise convolutions in channels-last need 50 times the workspace of others."""
    blocks = [Depthwise(32) for _ in range(2)]
    module, x = nn.Sequential(nn.Conv2d(3, 32, 4, 4), *blocks, MeanSquare()), torch.randn(4, 3, 64, 64)
    layout = inductor_config.layout_optimization
    within = inductor("65%", method="eviction")
    expected = gradients(module, x, {})
    torch._dynamo.reset()
    run = torch.compile(module, options=within, dynamic=False)
    module.zero_grad()  # not in place: expected gradients stay
    run(x).backward()  # compiles
    module.zero_grad()
    with profiled_memory() as memory:
        run(x).backward()
    (report,) = within["custom_partitioner_fn"].reports
    assert len(report.attempts) > 1 and report.compiled_peak <= report.budget
    assert memory.peak is not None and abs(memory.peak - report.compiled_peak) <= 16  # its gradient
    assert inductor_config.layout_optimization is layout
    for parameter, gradient in zip(module.parameters(), expected[1:], strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-3)


class Scaled(nn.Module):
    """Scale for each column: its gradient reads the rows of a saved value one by one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_saved_values_count_whole_where_an_op_reads_a_part() -> None:
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(2, 4096, bias=False), Scaled(4096), MeanSquare())
    within = inductor("100%", method="eviction")
    run, x = torch.compile(module, options=within, dynamic=False), torch.randn(4, 2)
    run(x).backward()  # compiles
    module.zero_grad()
    with profiled_memory() as memory:
        run(x).backward()
    (report,) = within["custom_partitioner_fn"].reports
    assert memory.peak is not None and abs(memory.peak - report.compiled_peak) <= 16


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_compiled_graphs_move_tensors_in_the_order_of_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of this test copy at the wait, so a value read too soon, or freed too soon, changes gradients."""
    monkeypatch.setattr(inductor_transfers, "has_link", lambda _: True)
    layers = [part for _ in range(3) for part in (nn.Linear(64, 64), nn.Softmax(-1), nn.Dropout(0.3))]
    module, x = nn.Sequential(*layers, MeanSquare()), torch.randn(512, 64)
    within = inductor("95%", method=Moves(), machine="rate=unlimited")
    with recorded_moves() as moved:
        found = [gradients(module, x, options) for options in (within, {})]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    (report,) = within["custom_partitioner_fn"].reports
    assert report.certificate.accepted and report.certificate.rules.machine == Machine(full_duplex=False)
    planned = [step for step in report.result.schedule.steps() if step[0] in {"offload", "fetch"}]
    assert moved == planned_moves(planned) and len(planned) >= 2


def test_tensors_of_a_cpu_do_not_move() -> None:
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (torch.randn(8, 4),))
    with refused("execution.inductor-device"):
        inductor_transfers.movable(captured)


class Moves(Heuristic):
    """Moves every other value that the backward pass reads."""

    name, moves = "moves", True

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule:
        return forward_moves(problem.graph)


class Depthwise(nn.Module):
    """Block of a ConvNeXt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spread = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.spread(x).permute(0, 2, 3, 1))
        return x + self.narrow(nn.functional.gelu(self.wide(y))).permute(0, 3, 1, 2)


class MeanSquare(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


def gradients(module: nn.Module, x: torch.Tensor, options: Any) -> list[torch.Tensor]:
    """Return the loss and the gradients of one compiled step."""
    torch._dynamo.reset()
    module.zero_grad()
    torch.manual_seed(1)
    loss = torch.compile(module, options=options, dynamic=False)(x).sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in module.parameters())]


def planned_moves(steps: list[tuple[str, str]]) -> list[tuple[str, int]]:
    """Return the calls for the transfers of a schedule, with the number of the tensor among those moved."""
    numbers: dict[str, int] = {}
    return [(kind, numbers.setdefault(name, len(numbers))) for kind, name in steps]


@contextmanager
def recorded_moves() -> Iterator[list[tuple[str, int]]]:
    """Register kernels of ``torch.ops.ao`` for tensors of a CPU; yield transfers with the number of the host copy.

    A copy holds NaN until its wait, which must come before it is read.
    """
    moved: list[tuple[str, int]] = []
    under_way: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    numbers: dict[int, int] = {}

    def begin(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        under_way[target.data_ptr()] = source, target.fill_(float("nan"))
        return target

    def offload(tensor: torch.Tensor) -> torch.Tensor:
        copy = begin(tensor, torch.empty(tensor.shape, dtype=tensor.dtype))
        numbers[copy.data_ptr()] = len(numbers)
        moved.append(("offload", numbers[copy.data_ptr()]))
        return copy

    def reload(tensor: torch.Tensor, device: torch.device, size: list[int], stride: list[int]) -> torch.Tensor:
        assert tensor.data_ptr() not in under_way
        moved.append(("fetch", numbers[tensor.data_ptr()]))
        return begin(tensor, torch.empty_strided(size, stride, dtype=tensor.dtype, device=device))

    def wait_tensor(tensor: torch.Tensor, keepalive: None, last_use_of_storage: torch.Tensor) -> torch.Tensor:
        source, target = under_way.pop(tensor.data_ptr())
        assert keepalive is None and last_use_of_storage.data_ptr() == source.data_ptr()
        target.copy_(source)
        return tensor

    assert private.offload_operators
    with torch.library._scoped_library("ao", "IMPL") as library:
        for function in (offload, reload, wait_tensor):
            library.impl(function.__name__, function, "CPU")
        yield moved
    assert not under_way
