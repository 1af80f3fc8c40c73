"""Schedules that torch would choose for a captured step: partitioner, saved sets, tags of policies."""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from helpers import few  # noqa: E402
from models import MODELS  # noqa: E402
from refusals import refused  # noqa: E402
from torch._functorch._activation_checkpointing import ac_logging_utils  # noqa: E402
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts  # noqa: E402

from remat.errors import ScheduleError  # noqa: E402
from remat.experiments.trade_off import Point  # noqa: E402
from remat.schedule import Schedule  # noqa: E402
from remat.schedule.validate import validate  # noqa: E402
from remat.torch.capture import capture, fake_tensors  # noqa: E402
from remat.torch.captured import BEGIN_BACKWARD, Captured  # noqa: E402
from remat.torch.peers import (  # noqa: E402
    SOLVERS,
    at_equal_peak,
    compare_peers,
    default_partition_schedule,
    partitioner_schedule,
    schedule_of_saved_set,
    schedule_of_trace,
    tagged_saved_set,
    tagged_schedule,
)
from remat.torch.peers import partitioner as by_torch  # noqa: E402

MATMULS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def policy(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in MATMULS else CheckpointPolicy.PREFER_RECOMPUTE


def checkpointed(module: torch.nn.Module, **options: Any) -> torch.nn.Module:
    for layer in module.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, **{"use_reentrant": False, **options})
    return module


def again(schedule: Schedule) -> set[str]:
    names = schedule.computes()
    return {name for name in names if names.count(name) > 1}


class Layers(torch.nn.Module):
    """Minimal transformer: matrix products, dropout, additions; ends of layers begin the next."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        nn = torch.nn
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 16)) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


@pytest.fixture(scope="module")
def step() -> Captured:
    with fake_tensors():
        module, args = Layers(2), (torch.zeros(8, 4, 16),)
    return capture(module, args, route="joint", costs="flops")


@pytest.fixture(scope="module")
def selective() -> Captured:
    """Two layers in regions of selective checkpointing that save the outputs of matrix products."""
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    with fake_tensors():
        module, args = checkpointed(Layers(2), context_fn=contexts), (torch.zeros(8, 4, 16),)
    return capture(module, args, route="joint", costs="flops")


def test_partitioner_gives_certified_schedules(step: Captured) -> None:
    found = {budget: partitioner_schedule(step, budget) for budget in (1, 0.3, 0)}
    for schedule in found.values():
        assert validate(step.graph, schedule).accepted
        computes = schedule.computes()
        assert set(computes) == set(step.graph.op_names)
        begin = computes.index(BEGIN_BACKWARD)
        assert all(computes[begin + 1 :].count(op) <= 1 for op in computes)  # at most once more
    assert again(found[1]) < again(found[0.3]) < again(found[0])
    # issue 197838 of PyTorch: with nothing saved, the peak equals that with everything saved
    points = {budget: Point.of(step.graph, schedule) for budget, schedule in found.items()}
    assert points[0.3].peak < points[0].peak == step.graph.reference_peak


@pytest.mark.parametrize(("budget", "solver"), [(0.3, "dp"), pytest.param(0.1, "greedy", marks=pytest.mark.slow)])
def test_recomputations_match_torch(
    step: Captured, monkeypatch: pytest.MonkeyPatch, budget: float, solver: str
) -> None:
    """By names in both of torch's graphs, and by the saved values that it logs."""
    made: list[Any] = []
    logged: list[dict[str, Any]] = []

    def partitioned(*args: Any, **options: Any) -> Any:
        made.extend(real(*args, **options))
        return made

    def log(_kind: str, metadata_fn: Any, payload_fn: Any) -> None:
        logged.append(json.loads(payload_fn()))

    real = by_torch.min_cut_rematerialization_partition
    monkeypatch.setattr(by_torch, "min_cut_rematerialization_partition", partitioned)
    # the partitioner reads AOT_PARTITIONER_DEBUG, which enables the log, at import
    monkeypatch.setattr(torch._functorch.partitioners, "AOT_PARTITIONER_DEBUG", True)
    monkeypatch.setattr(ac_logging_utils, "trace_structured", log)
    names = {node.name for node in step.module.graph.nodes}
    schedule = partitioner_schedule(step, budget, solver)
    assert {node.name for node in step.module.graph.nodes} == names  # torch works on a copy
    first, second = ({node.name for node in graph.graph.nodes if node.op == "call_function"} for graph in made)
    assert again(schedule) == {name for name in first & second if name in step.graph.op_index}
    assert (schedule.meta["budget"], schedule.meta["solver"]) == (budget, solver)
    # names random ops that torch repeats without their state
    assert set(schedule.meta["unsafe"]) == again(schedule) & set(step.random_ops)
    assert schedule.meta["unsafe"]
    saved = schedule_of_saved_set(step, logged[0]["Min Cut Solution Saved Values"])
    assert again(saved) == again(schedule)
    found, expected = validate(step.graph, saved), validate(step.graph, schedule)
    assert (found.verdict, found.peak, found.cost) == (expected.verdict, expected.peak, expected.cost)


@pytest.mark.slow
def test_both_partitioners_follow_tags_of_a_policy(selective: Captured) -> None:
    """Tagged random ops become wrappers, which are mapped back; starts of regions stay."""
    tagged = tagged_schedule(selective)
    for theirs in (partitioner_schedule(selective, 1), default_partition_schedule(selective)):
        assert validate(selective.graph, theirs).accepted
        assert again(theirs) == again(tagged)
        assert theirs.meta["unsafe"] == []
    point, other = (Point.of(selective.graph, each) for each in (tagged, partitioner_schedule(selective, 1)))
    assert (point.certified, point.peak, point.cost) == (True, other.peak, other.cost)
    assert point.peak < selective.graph.reference_peak
    assert again(tagged).intersection(selective.random_ops)
    matmuls = [op.name for op in selective.graph.ops if op.type == "aten.addmm.default" and op.phase == "forward"]
    assert set(matmuls) <= set(tagged_saved_set(selective))
    assert not again(tagged).intersection(matmuls)


def test_saved_sets_by_tensors_nodes_and_views(step: Captured) -> None:
    nothing = schedule_of_saved_set(step, [])
    assert validate(step.graph, nothing).accepted
    everything = schedule_of_saved_set(step, step.graph.tensor_index)
    assert everything.computes() == list(step.graph.op_names)
    view = next(
        node for node in step.module.graph.nodes
        if node.op == "call_function" and step.op_of(node) is None and step.homes[node] == ("addmm",)
    )  # fmt: skip
    expected = schedule_of_saved_set(step, ["addmm"]).computes()
    assert schedule_of_saved_set(step, [view]).computes() == schedule_of_saved_set(step, [view.name]).computes()
    assert schedule_of_saved_set(step, [view]).computes() == expected != nothing.computes()


def test_errors(step: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("capture.partitioner"):
        partitioner_schedule(step, 2)
    with refused("capture.partitioner", culprit="best"):
        partitioner_schedule(step, 0.5, "best")
    with refused("schedule.saved-set", culprit="nowhere"):
        schedule_of_saved_set(step, ["nowhere"])
    with refused("schedule.no-tags"):
        tagged_schedule(step)
    inference = dataclasses.replace(step, results=())
    with refused("capture.partitioner", culprit="joint"):
        partitioner_schedule(inference, 0.5)
    real = by_torch.min_cut_rematerialization_partition

    def renamed(*args: Any, **options: Any) -> Any:
        forward, backward = real(*args, **options)
        next(node for node in forward.graph.nodes if node.name == "addmm").name = "addmm_of_another"
        return forward, backward

    monkeypatch.setattr(by_torch, "min_cut_rematerialization_partition", renamed)
    with refused("schedule.partitioner-node", culprit="addmm_of_another"):
        partitioner_schedule(step, 1)

    def broken(*_args: Any, **_options: Any) -> Any:
        raise AssertionError("no luck")

    monkeypatch.setattr(by_torch, "min_cut_rematerialization_partition", broken)
    with refused("capture.partitioner-failed"):
        partitioner_schedule(step, 1)
    found = compare_peers(step, [], [], knobs=[1], others={"me": schedule_of_saved_set(step, [])})
    assert [(point.who, point.fault) for point in found.points] == [
        ("torch's partitioner (dp)", "torch's partitioner failed: no luck"), ("me", ""),
    ]  # fmt: skip


def test_comparison_at_the_peaks_of_torch(step: Captured) -> None:
    found = compare_peers(
        step, methods=["greedy"], knobs=(1, 0.3, 0.1, 0), others={"none": lambda s: Schedule.reference(s.graph)}
    )
    assert set(found.by_maker()) == {"torch's partitioner (dp)", "none", "greedy"}
    assert all(point.certified for point in found.points)
    remarks = next(point.remarks for point in found.points if point.knob == "0.3")
    assert "drawn again without its state" in remarks[0]
    pairs = at_equal_peak(found, "torch's partitioner (dp)")
    assert [pair.peer.knob for pair in pairs] == ["1", "0.3", "0.1", "0"]
    assert all(pair.ours.peak <= pair.peer.peak for pair in pairs)
    assert pairs[0].ratio is None  # no overhead to compare
    assert pairs[-1].ratio == 0  # the reference order beats saving nothing
    ours = sorted((point.peak, point.overhead) for point in found.by_maker()["greedy"])
    assert [over for _, over in ours] == sorted((over for _, over in ours), reverse=True)


class Normed(Layers):
    """With batch norm, whose statistics eager checkpointing updates twice."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        for layer in self.layers:
            layer.append(torch.nn.BatchNorm1d(4))


class Constants(Layers):
    """With constants in each layer: a trace copies them, again where it recomputes, from tensors with other names."""

    def __init__(self, layers: int, factor: float = 2.0) -> None:
        super().__init__(layers)
        for layer in self.layers:
            layer[1].forward = lambda x: torch.where(x > 0, x, torch.tensor(-1.0)) * torch.tensor(factor)
            layer[3].forward = lambda x: x.mean(-1, keepdim=True) * torch.tensor([factor] * 16)


@functools.cache
def traced(
    kind: Callable[[int], Layers], *, batch: int = 8, checkpoints: bool = False, reentrant: bool = False
) -> Captured:
    with fake_tensors():
        module = checkpointed(kind(2), use_reentrant=reentrant) if checkpoints else kind(2)
    x = torch.zeros(batch, 4, 16, requires_grad=reentrant)
    return capture(module, (x,), route="make_fx", loss=lambda out: out, costs="flops")


@pytest.mark.parametrize(
    ("kind", "reentrant"), [(Constants, False), *few([(Layers, False), (Normed, False), (Layers, True)], 1)]
)
def test_eager_checkpointing_is_a_schedule(kind: type[Layers], reentrant: bool) -> None:
    """As in the trace, including dropout and the second update of statistics.

    The reentrant kind runs only within ``backward()``, which accumulates its gradients.
    """
    base, trace = (traced(kind, checkpoints=each, reentrant=reentrant) for each in (False, True))
    schedule = schedule_of_trace(base, trace)
    point, own = Point.of(base.graph, schedule), Point.of(trace.graph, Schedule.reference(trace.graph))
    assert (point.certified, schedule.meta["dropped"]) == (True, [])
    assert again(schedule).intersection(base.random_ops)
    assert [each.name for each in trace.results_of("gradient")] == [each.name for each in base.results_of("gradient")]
    if not reentrant:
        assert point.cost == own.cost
        assert len(trace.graph.ops) == schedule.num_computes > len(base.graph.ops)
    if kind is Normed:
        assert again(schedule).intersection(base.graph.meta["effects"])
    elif not reentrant:
        assert point.peak == own.peak < base.graph.reference_peak


def test_trace_of_another_step_is_refused() -> None:
    with refused("schedule.other-trace", culprit="Layers", hide={"view_4": "view_8"}):  # as torch counts from 2.14 on
        schedule_of_trace(traced(Layers), traced(Layers, batch=4))
    with pytest.raises(ScheduleError, match="different inputs"):
        schedule_of_trace(traced(Constants), traced(functools.partial(Constants, factor=3.0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_all_models_at_all_budgets(name: str) -> None:
    with fake_tensors():
        module, args = MODELS[name]()
    found = compare_peers(module, [], [], args=args, solvers=SOLVERS, knobs=(1, 0.7, 0.4, 0.2, 0.1, 0))
    assert len(found.points) == 30
    assert [point.fault for point in found.points if not point.certified] == []
