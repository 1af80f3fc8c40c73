"""Steps by the executor against steps of eager autograd: equal to the bit, and in memory as predicted to the byte."""

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager import Record, assert_equal, eager, record  # noqa: E402
from execution_checks import Held, pinned  # noqa: E402
from generators import dropping  # noqa: E402
from models import FULL, MODELS  # noqa: E402
from refusals import refused  # noqa: E402

from remat import Problem, solve  # noqa: E402
from remat.graphs import ComputeGraph  # noqa: E402
from remat.schedule import Schedule  # noqa: E402
from remat.torch import Captured, Executor, capture, fake_tensors, track_storages  # noqa: E402

SEED = 11
SMALL: Mapping[str, Mapping[str, Any]] = {"gpt": {"layers": 1, "width": 8, "length": 8}, "resnet": {"blocks": (1,)}}


def check_step(theirs: Record, executor: Executor, module: Any, args: tuple[Any, ...]) -> None:
    """One step: results to the bit, and what is held at each op to the byte."""
    module = copy.deepcopy(module)
    torch.manual_seed(SEED)
    with track_storages(constants=(module, args), timeline=True) as tracker:
        held = Held(executor, tracker)
        step = executor.step(module, *args, on_op=held)
    assert_equal(record(module, step.loss), theirs)
    assert sum(name.startswith("gradient") and value is not None for name, value in theirs.items()) > 3
    assert not held.wrong
    assert held.runs >= len(executor.captured.graph.ops)
    assert tracker.peak == executor.predicted_peak == executor.certificate.peak


def seeded(name: str, **sizes: Any) -> Any:
    torch.manual_seed(5)
    return MODELS[name](**sizes)


def half_budget(graph: ComputeGraph) -> Schedule:
    """At half of the reference peak, or as near to it as greedy comes."""
    for share in ("50%", "60%", "70%", "80%", "90%"):
        result = solve(Problem(graph, share), method="greedy", stop=60)
        if result.schedule is not None:
            assert result.schedule.num_computes > len(graph.ops)
            return result.schedule
    raise AssertionError("greedy finds nothing below the reference peak")


@pytest.fixture(scope="module", params=sorted(SMALL))
def small(request: pytest.FixtureRequest) -> tuple[Any, tuple[Any, ...], Captured]:
    module, args = seeded(request.param, **SMALL[request.param])
    return module, args, capture(module, args, route="joint")


def test_small_steps(small: tuple[Any, tuple[Any, ...], Captured]) -> None:
    """In the reference order, and with random recomputations, in which random ops and batch norms run again."""
    module, args, captured = small
    graph = captured.graph
    theirs = eager(module, args, seed=SEED)
    check_step(theirs, Executor(captured, Schedule.reference(graph)), module, args)
    schedule = dropping(graph, 1)
    counts = Counter(schedule.computes())
    special = [op for op in (*captured.random_ops, *graph.meta["effects"]) if counts[op] > 1]
    assert special and max(counts.values()) > 2
    check_step(theirs, Executor(captured, schedule), module, args)
    check_step(theirs, Executor(captured, pinned(graph, schedule)), module, args)


def test_steps_that_follow_one_another(small: tuple[Any, tuple[Any, ...], Captured]) -> None:
    """Gradients add up, statistics go on, an optimizer sees the same; autocast outside does not reach inside."""
    module, args, captured = small
    executor = Executor(captured, dropping(captured.graph, 2))
    ours, theirs = copy.deepcopy(module), copy.deepcopy(module)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (ours, theirs)]
    torch.manual_seed(SEED)
    state = torch.get_rng_state()
    for number in range(4):
        torch.set_rng_state(state)
        with torch.autocast("cpu", enabled=number == 1):
            executor.step(ours, *args)
        torch.set_rng_state(state)
        theirs(*args).backward()
        state = torch.get_rng_state()
        if number % 2:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert_equal(record(ours), record(theirs))


def test_a_loss_from_outside() -> None:
    """The module returns a dictionary; the loss is made of it between the passes."""
    module, args = seeded("bert", layers=1, width=8, length=8, loss=False)
    captured = capture(module, args, route="joint")

    def loss(out: Any) -> Any:
        return out["logits"].square().mean() + out["pooled"].sum()

    theirs = eager(module, args, loss=loss, seed=SEED)
    for seed in (None, 3):
        graph = captured.graph
        executor = Executor(captured, Schedule.reference(graph) if seed is None else dropping(graph, seed))
        ours = copy.deepcopy(module)
        torch.manual_seed(SEED)
        step = executor.step(ours, *args, loss=loss)
        assert_equal(record(ours, step.loss), theirs)
        assert sorted(step.outputs) == ["logits", "pooled"]
        assert not any(value.requires_grad for value in step.outputs.values())
    with refused("execution.needs-loss"):
        executor.step(ours, *args)
    with refused("execution.loss-value"):
        executor.step(ours, *args, loss=lambda out: out["logits"])
    with refused("execution.loss-in-place"):
        executor.step(ours, *args, loss=lambda out: out["logits"].detach().zero_().sum() + loss(out))


def test_values_that_a_kernel_leaves_out() -> None:
    """A batch norm that comes first makes no gradient of its input, though its fake kernel does."""
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1), torch.nn.Flatten(0))
    args = (torch.randn(16, 8),)
    captured = capture(module, args, route="make_fx", loss=lambda out: out.square().mean())
    theirs = eager(module, args, loss=lambda out: out.square().mean(), seed=SEED)
    check_step(theirs, Executor(captured, Schedule.reference(captured.graph)), module, args)


def test_inference() -> None:
    module, args = seeded("unet", levels=2, loss=False)
    module.eval()
    captured = capture(module, args, mode="inference")
    with torch.no_grad():
        expected = module(*args)
    for schedule in (Schedule.reference(captured.graph), dropping(captured.graph, 1, share=0.3)):
        executor = Executor(captured, schedule)
        with track_storages(constants=(module, args)) as tracker:
            step = executor.step(module, *args)
        assert torch.equal(step.outputs, expected)
        assert tracker.peak == executor.predicted_peak
        assert step.loss is None and not step.gradients


@pytest.mark.slow
@pytest.mark.parametrize("route", ["joint", "make_fx"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_all_models(name: str, route: str) -> None:
    """In the reference order, at half of its peak, and with up to a dozen computes of one op."""
    module, args = seeded(name)
    captured = capture(module, args, route=route)
    graph = captured.graph
    theirs = eager(module, args, seed=SEED)
    schedules = [Schedule.reference(graph), half_budget(graph), *(dropping(graph, seed) for seed in range(4))]
    assert max(max(Counter(schedule.computes()).values()) for schedule in schedules) > 4
    for schedule in (*schedules, pinned(graph, schedules[-1])):
        check_step(theirs, Executor(captured, schedule), module, args)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "unet", "gpt"])
def test_full_size_without_memory(name: str) -> None:
    """Under fake tensors the tracker sees what real ones would take: the models of the benchmark, to the byte."""
    with fake_tensors():
        module, args = seeded(name, **FULL[name])
        captured = capture(module, args)
        assert captured.graph.reference_peak > 1_000_000_000
        for schedule in (
            Schedule.reference(captured.graph),
            dropping(captured.graph, 1, share=0.01),
            pinned(captured.graph, dropping(captured.graph, 2, share=0.02)),
        ):
            executor = Executor(captured, schedule)
            with track_storages(constants=(module, args), timeline=True) as tracker:
                held = Held(executor, tracker)
                executor.step(module, *args, on_op=held)
            assert not held.wrong
            assert tracker.peak == executor.predicted_peak
            module.zero_grad()
