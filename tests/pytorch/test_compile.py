"""``torch.compile`` around, within and beside rematerialized modules."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from remat.torch import rematerialize, track_storages  # noqa: E402

slow = pytest.mark.slow
BACKENDS = ["eager", pytest.param("aot_eager", marks=slow), pytest.param("inductor", marks=slow)]


def network(blocks: int = 3) -> nn.Module:
    """Linear maps, batch norm, dropout; the same weights each time."""
    torch.manual_seed(1)
    parts = [(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2)) for _ in range(blocks)]
    return nn.Sequential(*(each for part in parts for each in part))


def x() -> Any:
    torch.manual_seed(2)
    return torch.randn(64, 8)


def steps(call: Any, module: nn.Module, count: int = 2) -> list[Any]:
    """Losses, gradients and statistics of steps with SGD."""
    torch.manual_seed(3)
    trainer, found, data = torch.optim.SGD(module.parameters(), lr=0.1), [], x()
    for _ in range(count):
        trainer.zero_grad()
        loss = call(data).square().mean()
        loss.backward()
        found += [loss.detach(), *(each.grad.clone() for each in module.parameters())]
        trainer.step()
    return [*found, *(each.clone() for each in module.state_dict().values())]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_afterwards_a_step_runs_as_it_is_scheduled(backend: str) -> None:
    """The compiler takes what is around, and evaluation; dropout that runs again would draw other numbers with it."""
    original = network()
    model = rematerialize(original, (x(),), "60%", method="greedy")
    assert model.report.recomputations
    compiled = torch.compile(model, backend=backend)
    eager, data = network(), x()
    assert same(steps(compiled, original), steps(eager, eager))
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


@slow
@pytest.mark.parametrize("how", ["compile", "in place"])
def test_a_module_that_was_compiled_before_is_captured_through(how: str) -> None:
    """The schedule takes the compiler's place in training; evaluation is that of the compiled module."""
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
    assert same(steps(model, original), steps(eager, eager))


@slow
def test_a_part_of_a_compiled_model() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = network(), nn.Linear(8, 1)

        def forward(self, given: Any) -> Any:
            return self.head(torch.tanh(self.encoder(given * 2)))

    original = Model()
    eager = copy.deepcopy(original)
    original.encoder = rematerialize(original.encoder, (x(),), "60%", method="greedy")
    assert same(steps(torch.compile(original, backend="aot_eager"), original), steps(eager, eager))
