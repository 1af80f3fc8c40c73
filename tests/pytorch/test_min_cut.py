"""Method ``torch-min-cut``: choices of torch's partitioner on graphs from other sources."""

from importlib.metadata import version
from itertools import combinations

import pytest

torch = pytest.importorskip("torch")

from generators import training_graph  # noqa: E402
from helpers import RUN, accepted, judged, some_slow  # noqa: E402
from refusals import refused  # noqa: E402

from remat import GraphBuilder, Problem, SolveOptions  # noqa: E402
from remat.graphs.families import unit_chain  # noqa: E402
from remat.graphs.zoo import unet  # noqa: E402
from remat.heuristics import HeuristicRun  # noqa: E402
from remat.runtime.deadline import Deadline  # noqa: E402
from remat.schedule import Verdict  # noqa: E402
from remat.torch.capture import capture  # noqa: E402
from remat.torch.min_cut import TorchMinCut, TorchMinCutOptions, _JointGraph  # noqa: E402


def test_knapsack_of_a_chain_is_optimal() -> None:
    """The saved set costs least to recompute among all sets with at most as many bytes."""
    b, costs = GraphBuilder("chain"), [3, 8, 5, 9, 4, 7]
    for k, cost in enumerate(costs):
        b.op(f"f{k}", inputs=[f"f{k - 1}"] if k else [], size=10, cost=cost, phase="forward")
    b.op("loss", inputs=["f5"], size=10, cost=1, phase="loss")
    for k in reversed(range(6)):
        b.op(f"g{k}", inputs=[f"f{k}", f"g{k + 1}" if k < 5 else "loss"], size=10, cost=1, phase="backward")
    problem = Problem(b.build())
    joint = _JointGraph(problem)
    for memory_budget in (0.8, 0.5, 0.3):
        saved = joint.saved(memory_budget, "dp")
        extra = judged(problem, joint.schedule(saved, "torch")).cost - problem.graph.base_cost
        kept = [k for k in range(6) if f"f{k}" in saved]
        assert 0 < len(kept) < 6
        best = min(sum(costs) - sum(costs[k] for k in chosen) for chosen in combinations(range(6), len(kept)))
        assert extra == best == sum(costs) - sum(costs[k] for k in kept)


@pytest.mark.parametrize("seed", some_slow(range(8), 2))
def test_schedules_are_valid_for_every_memory_budget(seed: int) -> None:
    """Several outputs, kept statistics, ops that run once; buffers with several writers are refused."""
    graph = training_graph(seed, 10, full=True)
    problem = Problem(graph, "80%")
    if (graph.arrays.producers.counts > 1).any():
        with refused("problem.buffer", culprit="'sum'"):
            TorchMinCut().run(problem, RUN)
        problem = Problem(training_graph(seed, 10), "80%")
    joint = _JointGraph(problem)
    costs = []
    for memory_budget in TorchMinCutOptions().knobs:
        found = judged(problem, joint.schedule(joint.saved(memory_budget, "greedy"), "torch"))
        assert found.verdict is not Verdict.INVALID
        costs.append(found.cost)
    assert costs[0] <= min(costs) and costs[-1] == max(costs)
    schedule = TorchMinCut(TorchMinCutOptions(solver="greedy")).run(problem, RUN)
    assert schedule is not None and schedule.source == "torch-min-cut"


@pytest.mark.slow
def test_feasible_and_infeasible_budgets_of_a_network() -> None:
    """The knapsack counts saved bytes: its least peak is 66.7 % on the U-Net, and chains gain nothing."""
    assert accepted(Problem(unet(), "70%"), TorchMinCut().run(Problem(unet(), "70%"), RUN)).overhead < 2
    least = TorchMinCut().run(Problem(unet(), "60%"), RUN)
    assert least is not None
    assert judged(Problem(unet(), "60%"), least).verdict is Verdict.OVER_BUDGET
    assert judged(Problem(unit_chain(8), 9), TorchMinCut().run(Problem(unit_chain(8), 9), RUN)).peak == 10


def test_captured_step() -> None:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    graph = capture(net, (torch.zeros(32, 8),), route="joint", costs="flops").graph
    schedule = TorchMinCut().run(Problem(graph, "95%"), RUN)
    assert schedule is not None
    assert judged(Problem(graph, "95%"), schedule).verdict is not Verdict.INVALID
    assert (schedule.meta["torch"], schedule.meta["solver"]) == (version("torch"), "dp")


def test_errors_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(unit_chain(8), 7)
    with monkeypatch.context() as patch, refused("problem.no-torch"):
        patch.setattr("remat.torch.versions.version", lambda _: "1.0")
        TorchMinCut().run(problem, RUN)
    with monkeypatch.context() as patch, refused("problem.partitioner-failed"):
        patch.setattr("functorch.compile.min_cut_rematerialization_partition", lambda *_, **__: 1 / 0)
        TorchMinCut().run(problem, RUN)


@pytest.mark.slow
def test_no_partition_starts_without_enough_time() -> None:
    """Partitioning the U-Net takes some tenths of a second and cannot be interrupted."""
    for seconds, found in ((0.1, False), (30, True)):
        run = HeuristicRun(SolveOptions(Deadline.after(seconds), threads=1))
        assert (TorchMinCut().run(Problem(unet(), "70%"), run) is not None) is found
    assert TorchMinCut().prepared(Deadline.after(0))  # torch is loaded
