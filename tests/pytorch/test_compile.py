"""``torch.compile`` around and inside rematerialized modules, and with the package as its backend."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager import assert_equal, train  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402

from remat.torch import backend as within  # noqa: E402
from remat.torch import profiled_memory, rematerialize, track_storages  # noqa: E402

#: Dynamo is slow; the quick cases run with docs/pytorch/rematerialize.md.
pytestmark = pytest.mark.slow


def network(blocks: int = 3) -> nn.Module:
    """Return linear maps, batch norm and dropout with fixed weights."""
    torch.manual_seed(1)
    parts = [(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2)) for _ in range(blocks)]
    return nn.Sequential(*(each for part in parts for each in part))


def x() -> Any:
    torch.manual_seed(2)
    return torch.randn(64, 8)


def check(call: Any, module: nn.Module, eager: nn.Module) -> None:
    """Assert that two steps with SGD equal eager ones."""
    assert_equal(*(train(each, own, (x(),), loss=squares) for each, own in ((call, module), (eager, eager))))


def squares(out: Any) -> Any:
    return out.square().mean()


@pytest.fixture(autouse=True)
def reset_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiling_a_rematerialized_module_keeps_the_schedule(backend: str) -> None:
    """The compiler takes surrounding code and evaluation; it would draw other numbers for repeated dropout."""
    original = network()
    model = rematerialize(original, (x(),), "60%", method="greedy")
    assert model.report.recomputations
    compiled = torch.compile(model, backend=backend)
    eager, data = network(), x()
    check(compiled, original, eager)
    with track_storages(constants=(original, data)) as tracker:
        compiled(data).sum().backward()
    assert tracker.peak <= model.report.predicted_peak
    compiled.eval()
    eager.eval()
    eager.load_state_dict(original.state_dict())
    with torch.no_grad():
        assert torch.allclose(compiled(data), eager(data), atol=1e-6)
    compiled.train()
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a rematerialized step runs as it is scheduled"):
        torch.compile(model, backend="eager", fullgraph=True)(data)


@pytest.mark.parametrize("how", ["compile", "in place"])
def test_rematerializing_a_compiled_module(how: str) -> None:
    """The schedule replaces the compiler in training; evaluation uses the compiled module."""
    original = network()
    if how == "compile":
        module = torch.compile(original, backend="eager")
    else:
        module = original
        module.compile(backend="eager")
    model = rematerialize(module, (x(),), "60%", method="greedy")
    assert model.captured.route == "joint"
    assert model.state_dict().keys() == module.state_dict().keys()
    eager = network()
    check(model, original, eager)


def test_part_of_a_compiled_model() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = network(), nn.Linear(8, 1)

        def forward(self, given: Any) -> Any:
            return self.head(torch.tanh(self.encoder(given * 2)))

    original = Model()
    eager = copy.deepcopy(original)
    original.encoder = rematerialize(original.encoder, (x(),), "60%", method="greedy")
    check(torch.compile(original, backend="aot_eager"), original, eager)


# -- the package as a backend of torch.compile -------------------------------------------------------------------------


class Breaks(nn.Module):
    """Two graphs, the second of which changes its input; outputs include a view and an input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = network(), network()

    def forward(self, given: Any) -> Any:
        y = self.first(given)
        torch._dynamo.graph_break()
        return self.outputs(y, given)[0]

    def outputs(self, y: Any, given: Any) -> Any:
        z = self.second(y.mul_(2))
        return z[:32], z, given


def peak(call: Any) -> int:
    """Return the allocator's peak for the second step; the first compiles."""
    for around in (nullcontext(), profiled_memory()):
        for each in call.parameters():
            each.grad = None
        data = x()
        with around as memory:
            squares(call(data)).backward()
    return memory.peak


@pytest.mark.parametrize("make", [network, Breaks])
def test_backend_trains_as_eager(make: Any) -> None:
    """Dropout, statistics, graph breaks; the peak is as predicted; without gradients there is no schedule."""
    original, eager = make(), make()
    backend = within("70%", method="greedy")
    compiled = torch.compile(original, backend=backend)
    with torch.no_grad():
        original.eval()
        eager.eval()
        assert torch.equal(compiled(x()), eager(x()))
        original.train()
        eager.train()
    assert not backend.reports
    check(compiled, original, eager)
    assert [report.name for report in backend.reports] == [f"graph {k + 1}" for k in range(len(backend.reports))]
    assert all(report.recomputations and report.certificate.accepted for report in backend.reports)
    if make is network:
        (report,) = backend.reports
        module = rematerialize(network(), (x(),), "70%", method="greedy")
        assert (report.predicted_peak, report.recomputations) == (
            module.report.predicted_peak, module.report.recomputations,
        )  # fmt: skip
        peaks = [peak(call) for call in (compiled, module, eager)]
        assert peaks[0] == peaks[1] < 0.95 * peaks[2]
    else:
        assert len(backend.reports) == 2


def test_errors_of_the_backend() -> None:
    failed = torch._dynamo.exc.BackendCompilerFailed
    with pytest.raises(failed, match=r"ProblemError: no schedule of 'graph 1': no schedule exists: budget"):
        torch.compile(network(), backend=within("5%", method="greedy"))(x())
    with refused("problem.step-setting", culprit="all"):
        within("70%", constants="all")
    torch._dynamo.reset()
    model = torch.compile(network(), backend=within("70%", method="greedy"))
    model(x())
    with pytest.raises(failed, match=r"CaptureError: a size changes from call to call: torch.compile\(..., dynamic=Fa"):
        model(x()[:40])
    torch._dynamo.reset()
    backend = within("70%", method="greedy")
    model = torch.compile(network(), backend=backend, dynamic=False)
    model(x())
    model(x()[:40]).sum().backward()
    assert len(backend.reports) == 2
