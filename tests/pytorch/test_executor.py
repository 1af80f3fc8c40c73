"""Executed steps against eager autograd: bitwise equal, memory as predicted to the byte."""

import copy
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager import Record, assert_equal, eager, record, step  # noqa: E402
from generators import dropping  # noqa: E402
from models import FULL, MODELS, SMALLEST, Net, captured  # noqa: E402
from refusals import refused  # noqa: E402

from remat import Problem, solve  # noqa: E402
from remat.graphs import ComputeGraph  # noqa: E402
from remat.schedule import Rules, Schedule, Verdict, validate, with_frees  # noqa: E402
from remat.torch import Captured, Executor, OpRun, capture, fake_tensors, track_storages  # noqa: E402
from remat.torch.execute.split import split  # noqa: E402
from remat.torch.execute.step import Step, give_buffers, give_gradients  # noqa: E402
from remat.torch.memory import StorageTracker  # noqa: E402
from remat.torch.rematerialized.autograd_function import Program  # noqa: E402

aten = torch.ops.aten
SEED = 11


class Held:
    """Compare memory with the schedule after each run of an op: its maximum during the run, and the rest after it.

    If tensors move, the maximum is that since the last run.
    """

    def __init__(self, executor: Executor, tracker: StorageTracker) -> None:
        self.executor, self.tracker = executor, tracker
        self.runs = 0
        self._last = 0
        self.wrong: list[tuple[OpRun, int, int, int]] = []
        self._samples = 0

    def __call__(self, run: OpRun) -> None:
        self.runs += 1
        during = [sample.live for sample in self.tracker.timeline[self._samples :]]
        self._samples = len(self.tracker.timeline)
        most, after, predicted = max(during), self.tracker.live, int(self.executor.timeline[run.step])
        moved = self.executor.schedule.has_transfers
        largest = int(self.executor.timeline[self._last : run.step + 1].max()) if moved else predicted
        if not predicted == after <= most <= largest:
            self.wrong.append((run, most, after, predicted))
        self._last = run.step


def run_held(executor: Executor, module: Any, args: tuple[Any, ...]) -> Step:
    """Run one step and assert the predicted memory at each op and at the peak."""
    with track_storages(constants=(module, args), timeline=True) as tracker:
        held = Held(executor, tracker)
        step = executor.step(module, *args, on_op=held)
    assert not held.wrong
    assert held.runs >= len(executor.captured.graph.ops)
    assert tracker.peak == executor.predicted_peak == executor.certificate.peak
    return step


def pinned(graph: ComputeGraph, schedule: Schedule) -> Schedule:
    """Return the schedule without frees of graph outputs, which stay live when their ops repeat."""
    outputs = set(graph.outputs)
    steps = [step for step in with_frees(graph, schedule).steps() if step[0] == "compute" or step[1] not in outputs]
    kept = Schedule.from_steps(steps, source=f"{schedule.source}, outputs pinned")
    assert validate(graph, kept).verdict is Verdict.VALID
    return kept


def check_step(theirs: Record, executor: Executor, module: Any, args: tuple[Any, ...], *, bitwise: bool = True) -> None:
    """Assert results (bitwise or up to rounding) and memory at each op of one step."""
    module = copy.deepcopy(module)
    torch.manual_seed(SEED)
    step = run_held(executor, module, args)
    assert_equal(record(module, step.loss), theirs, bitwise=bitwise)
    assert sum(name.startswith("gradient") and value is not None for name, value in theirs.items()) > 3


def check_split(theirs: Record, captured: Captured, schedule: Schedule, module: Any, args: tuple[Any, ...]) -> None:
    """Assert results and certified peak of one step of the forward and backward graph."""
    module, parts = copy.deepcopy(module), split(captured, schedule)
    program, tensors = Program(parts), module.state_dict(keep_vars=True)
    inputs = [captured.inputs[position] for position in parts.forward_inputs]
    given = [args[int(each.name)] if each.kind == "input" else tensors[each.name] for each in inputs]
    tracker = track_storages(constants=(args, module))
    assert_equal(step(lambda *_: program(given)[0], module, args, seed=SEED, around=tracker), theirs)
    # no op makes the scalar 1 that starts backward(); new statistics are freed once in their buffers
    peak = validate(captured.graph, schedule).peak
    assert tracker.peak <= peak + 8
    assert parts.recomputed or tracker.peak >= 0.98 * peak


def seeded(name: str, **sizes: Any) -> Any:
    torch.manual_seed(5)
    return MODELS[name](**sizes)


def half_budget(graph: ComputeGraph) -> Schedule:
    """Return a schedule at half of the reference peak, or the nearest budget that greedy reaches."""
    for share in ("50%", "60%", "70%", "80%", "90%"):
        result = solve(Problem(graph, share), method="greedy", stop=60)
        if result.schedule is not None:
            assert result.schedule.num_computes > len(graph.ops)
            return result.schedule
    raise AssertionError("greedy found no schedule below the reference peak")


@pytest.fixture(scope="module", params=["gpt", pytest.param("resnet", marks=pytest.mark.slow)])
def small(request: pytest.FixtureRequest) -> tuple[Any, tuple[Any, ...], Captured]:
    module, args = seeded(request.param, **SMALLEST[request.param])
    return module, args, captured(request.param)[1]


def test_small_steps(small: tuple[Any, tuple[Any, ...], Captured]) -> None:
    """Reference order, and random recomputations of random ops and batch norms."""
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


def test_several_steps(small: tuple[Any, tuple[Any, ...], Captured]) -> None:
    """Gradients accumulate, statistics continue, optimizers see equal values; outer autocast has no effect."""
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


def test_loss_computed_between_the_passes() -> None:
    """The module returns a dictionary."""
    module, args = Net(), (torch.randn(16, 8),)
    captured = capture(module, args, route="joint")

    def loss(out: Any) -> Any:
        return out["y"].square().mean() + out["y"].sum()

    theirs = eager(module, args, loss=loss, seed=SEED)
    for seed in (None, 3):
        graph = captured.graph
        executor = Executor(captured, Schedule.reference(graph) if seed is None else dropping(graph, seed))
        ours = copy.deepcopy(module)
        torch.manual_seed(SEED)
        step = executor.step(ours, *args, loss=loss)
        assert_equal(record(ours, step.loss), theirs)
        assert step.outputs["loss"] is None and not step.outputs["y"].requires_grad
    with refused("execution.needs-loss"):
        executor.step(ours, *args)
    with refused("execution.loss-value"):
        executor.step(ours, *args, loss=lambda out: out["y"])
    with refused("execution.loss-in-place"):
        executor.step(ours, *args, loss=lambda out: out["y"].detach().zero_().sum() + loss(out))


def test_values_omitted_by_a_kernel() -> None:
    """A first batch norm computes no gradient of its input, unlike its fake kernel."""
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
        step = run_held(Executor(captured, schedule), module, args)
        assert torch.equal(step.outputs, expected)
        assert step.loss is None and not step.gradients


@pytest.mark.slow
@pytest.mark.parametrize("route", ["joint", "make_fx"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_all_models(name: str, route: str) -> None:
    """Reference order, half of its peak, and up to a dozen computes of one op; also as two graphs."""
    module, args = seeded(name)
    captured = capture(module, args, route=route)
    graph = captured.graph
    theirs = eager(module, args, seed=SEED)
    schedules = [Schedule.reference(graph), half_budget(graph), *(dropping(graph, seed) for seed in range(4))]
    assert max(max(Counter(schedule.computes()).values()) for schedule in schedules) > 4
    last = pinned(graph, schedules[-1])
    for schedule in (*schedules, last):
        check_step(theirs, Executor(captured, schedule), module, args)
    for schedule in (schedules[0], last) if route == "joint" else ():
        check_split(theirs, captured, schedule, module, args)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "unet", "gpt"])
def test_full_size_under_fake_tensors(name: str) -> None:
    """The tracker sees the memory that real tensors would take."""
    with fake_tensors():
        module, args = seeded(name, **FULL[name])
        captured = capture(module, args)
        assert captured.graph.reference_peak > 1_000_000_000
        for schedule in (
            Schedule.reference(captured.graph),
            dropping(captured.graph, 1, share=0.01),
            pinned(captured.graph, dropping(captured.graph, 2, share=0.02)),
        ):
            run_held(Executor(captured, schedule), module, args)
            module.zero_grad()


# -- three ops -----------------------------------------------------------------------------------------------------


class Dropped(torch.nn.Module):
    """``mm`` writes 128 bytes, ``native_dropout`` 128 and a mask of 32, ``mul`` 128; each has 32 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, mask = aten.native_dropout(x @ self.weight.t(), 0.5, True)
        return kept.view(-1) * mask.view(-1)


@pytest.fixture(scope="module")
def three() -> Captured:
    return capture(Dropped(), (torch.ones(4, 2),), mode="inference")


def steps_of(captured: Captured, text: str) -> Schedule:
    """``m d u`` compute, ``-m -d0 -d1 -u`` free."""
    mm, dropout, mul = captured.graph.op_names
    ops = {"m": mm, "d": dropout, "u": mul}
    tensors = {"m": mm, "d0": f"{dropout}.0", "d1": f"{dropout}.1", "u": mul}
    return Schedule.from_steps(
        ("free", tensors[word[1:]]) if word[0] == "-" else ("compute", ops[word]) for word in text.split()
    )


@pytest.mark.parametrize(
    "text",
    [
        "m d u",
        "m d -m -d0 m d u -u m d u",
        "m d -d0 -m m d -m u -d1 -u m d u",  # the mask is live while its op repeats: counted once
        "m m d d u u",  # live outputs are kept
    ],
)
def test_schedules_give_equal_values_and_predicted_memory(three: Captured, text: str) -> None:
    module, x = Dropped(), torch.randn(4, 2)
    torch.manual_seed(3)
    expected, state = module(x), torch.get_rng_state()
    torch.manual_seed(3)
    step = run_held(Executor(three, steps_of(three, text)), module, (x,))
    assert torch.equal(step.outputs, expected)
    assert step.loss is None
    assert torch.equal(torch.get_rng_state(), state)


def test_invalid_schedules_are_not_executed(three: Captured) -> None:
    with refused("schedule.not-executed"):
        Executor(three, steps_of(three, "d m u"))
    with refused("schedule.not-executed"):
        Executor(three, steps_of(three, "m d u"), Rules(budget=200))


@pytest.mark.parametrize(
    ("kind", "culprit", "parameters", "args"),
    [
        ("execution.missing", "weight", {}, (torch.ones(4, 2),)),
        ("execution.missing", "0", {"weight": torch.ones(8, 2)}, ()),
        ("execution.unlike-capture", "0", {"weight": torch.ones(8, 2)}, (torch.ones(5, 2),)),
        ("execution.unlike-capture", "0", {"weight": torch.ones(8, 2)}, (torch.ones(4, 2).double(),)),
        ("execution.unlike-capture", "weight", {"weight": torch.ones(2, 8).t()}, (torch.ones(4, 2),)),
        ("execution.unlike-capture", "0", {"weight": torch.ones(8, 2)}, (3,)),
    ],
)
def test_arguments_must_match_the_capture(
    three: Captured, kind: str, culprit: str, parameters: dict[str, torch.Tensor], args: tuple[object, ...]
) -> None:
    with refused(kind, culprit=f"{culprit!r}"):
        Executor(three, Schedule.reference(three.graph))(parameters, {}, args)


def test_in_place_op_is_refused() -> None:
    captured = capture(Dropped(), (torch.ones(4, 2),), mode="inference")
    captured.node_of("mm").target = aten.relu_.default
    with refused("execution.in-place"):
        Executor(captured, Schedule.reference(captured.graph))


def test_gradients_are_accumulated_as_in_autograd() -> None:
    """Added to existing ones, never aliased, in the strides of the parameter."""
    first, second, third = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(3))
    shared, turned = torch.ones(2, 3), torch.arange(6.0).view(3, 2).t()
    targets = {"first": first, "second": second, "third": third}
    give_gradients(targets, {"first": shared, "second": shared, "third": turned})
    assert first.grad is shared  # no needless copy
    assert third.grad is not None and third.grad.stride() == (3, 1) and torch.equal(third.grad, turned)
    give_gradients(targets, {"first": torch.ones(2, 3)})
    assert torch.equal(first.grad, torch.full((2, 3), 2.0))
    assert second.grad is not None and torch.equal(second.grad, torch.ones(2, 3))
    with refused("execution.gradient", culprit="fourth"):
        give_gradients(targets, {"fourth": shared})
    with refused("execution.buffer", culprit="mean"):
        give_buffers({}, {"mean": shared})
