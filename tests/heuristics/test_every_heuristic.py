"""All heuristics: valid schedules, improving reports, reasons of refusals."""

from itertools import pairwise
from typing import Any

import pytest
from generators import training_graph
from helpers import ONE, RUN, judged, some_slow
from refusals import refused

from remat import registry
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.heuristics.annealing import AnnealingOptions
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.blocks import BlockOptions
from remat.heuristics.checkpointing.base import SweepOptions
from remat.heuristics.drops import DropsOptions
from remat.heuristics.eviction import EvictionOptions
from remat.heuristics.few_stages import FewStagesOptions
from remat.heuristics.lns import LnsOptions
from remat.heuristics.lower_sets import LowerSetsOptions
from remat.heuristics.lp_rounding import LpRoundingOptions
from remat.heuristics.tree_width import TreeWidthOptions
from remat.hierarchy.method import HierarchicalOptions
from remat.hierarchy.partition.articulation import ArticulationOptions
from remat.hierarchy.partition.h_partition import HPartitionOptions
from remat.hierarchy.partition.min_cut import MinCutOptions
from remat.hierarchy.partition.modules import ModulesOptions
from remat.ordering.live_search import LiveSearch
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule, Verdict, simulate

ON_CHAINS = ("chen-sqrt", "chen-greedy", "griewank-walther")
SWEEPS = ("ap-greedy", "linearized-greedy", "chen-greedy")
ON_STEPS = (*ON_CHAINS, "ap-all", "ap-greedy", "ap-sqrt", "checkpoint-all", "linearized-greedy", "linearized-sqrt",
            "lower-sets", "block-checkpointing", "pofo", "rotor")  # fmt: skip
BY_STAGES = (*ON_STEPS[:-3], "checkpoint-last")
OPTIONS: dict[str, Any] = {"annealing": AnnealingOptions(moves=5_000), **dict.fromkeys(SWEEPS, SweepOptions(sweep=6))}


def make(name: str) -> Heuristic:
    made: Heuristic = registry.make("heuristics", name, OPTIONS.get(name))
    return made


@pytest.mark.parametrize("seed", some_slow(range(60), 2))
def test_schedules_and_reports_are_valid_on_training_steps(seed: int) -> None:
    """Several outputs, masks, buffers, kept statistics, workspaces, limits of computes."""
    graph = training_graph(seed, 10, full=True)
    for problem in (Problem(graph, "60%"), Problem(graph, "80%", max_computes=2, keep=["loss"])):
        for name in registry.heuristics():
            if (
                name in {"lns", "lp-rounding", "few-stages", "torch-min-cut"}
                or (name in ON_CHAINS and not TrainingStep.of(problem).is_chain)
                or (name == "live-search" and not LiveSearch.applies(problem))
            ):
                continue
            reported: list[Schedule] = []
            schedule = make(name).run(problem, HeuristicRun(ONE, on_schedule=reported.append))
            assert schedule is not None or name in {"annealing", "dtr", "eviction"}
            if schedule is not None:
                assert name in {schedule.source, "rotor", "transfers"}  # these may return a schedule of drops
                assert judged(problem, schedule).verdict is not Verdict.INVALID, name
            found = [judged(problem, each) for each in reported]
            assert all(each.accepted for each in found), name
            assert all((a.cost, a.peak) > (b.cost, b.peak) for a, b in pairwise(found)), name
            assert not reported or name == "annealing" or schedule == reported[-1], name


def test_training_steps_cover_all_features() -> None:
    graphs = [training_graph(seed, 10, full=True) for seed in range(8)]
    assert any(len(op.outputs) > 1 for g in graphs for op in g.ops)
    assert any((g.arrays.producers.counts > 1).any() for g in graphs)
    assert any(not op.recomputable for g in graphs for op in g.ops)
    assert any(TrainingStep.of(Problem(g)).is_chain for g in graphs)
    best = [judged(p, s) for p in (Problem(g, "90%") for g in graphs) if (s := make("linearized-greedy").run(p, RUN))]
    assert sum(c.accepted and c.recomputations > 0 for c in best) >= 2


def with_statistics(length: int, kept: bool) -> ComputeGraph:
    """Return a chain of activations whose ops also write an unread statistic."""
    b = GraphBuilder("normalized")
    for k in range(length):
        outputs = [b.tensor(f"a{k}", 1000), b.tensor(f"mean{k}", 1)]
        b.op(f"f{k}", inputs=[f"a{k - 1}"] if k else [], outputs=outputs, cost=1, phase="forward")
        if kept:
            b.output(f"mean{k}")
    b.op("loss", inputs=[f"a{length - 1}"], size=1000, cost=1, phase="loss")
    for k in reversed(range(length)):
        b.op(f"g{k}", inputs=[f"a{k}", f"g{k + 1}" if k + 1 < length else "loss"], size=1000, cost=1, phase="backward")
    return b.build()


@pytest.mark.parametrize("name", BY_STAGES)
def test_kept_statistics_retain_no_activation(name: str) -> None:
    """As in batch normalization. Retention is per tensor: computes are the same without them."""
    plain, problem = with_statistics(16, kept=False), Problem(with_statistics(16, kept=True), "60%")
    assert problem.budget_bytes is not None
    found, other = make(name).run(problem, RUN), make(name).run(Problem(plain, problem.budget_bytes - 16), RUN)
    assert found is not None and other is not None
    assert found.computes() == other.computes()
    certificate = judged(problem, found)
    assert certificate.verdict is not Verdict.INVALID
    assert certificate.peak <= simulate(plain, other).peak + 16
    assert (certificate.recomputations > 0) == (name not in {"checkpoint-all", "ap-all"})  # all ops are points


@pytest.mark.parametrize("name", ["chen-sqrt", "checkpoint-last"])
def test_kept_tensor_is_computed_once(name: str) -> None:
    problem = Problem(unit_chain(9), keep=["f0"])
    schedule = make(name).run(problem, RUN)
    assert schedule is not None and judged(problem, schedule).accepted
    assert schedule.computes().count("f0") == 1
    assert schedule.computes().count("f1") >= 2


@pytest.mark.parametrize("name", [*BY_STAGES, "tree-width"])
def test_expired_deadline_still_gives_a_schedule_of_small_graphs(name: str) -> None:
    problem = Problem(unit_chain(30), 12)
    schedule = make(name).run(problem, RUN.until(Deadline.after(0)))
    assert schedule is not None and judged(problem, schedule).verdict is not Verdict.INVALID


@pytest.mark.parametrize("name", [*BY_STAGES, "rotor", "block-checkpointing", "drops"])
def test_callback_stops_the_run_at_the_last_report(name: str) -> None:
    reported: list[Schedule] = []

    def stop(schedule: Schedule) -> bool:
        reported.append(schedule)
        return True

    problem = Problem(unit_chain(16), 18)
    assert make(name).run(problem, HeuristicRun(ONE, on_schedule=stop)) == reported[-1]
    assert len(reported) == 1


@pytest.mark.parametrize("name", ON_STEPS)
def test_graphs_other_than_training_steps_are_refused(name: str) -> None:
    with refused("problem.no-training-graph"):
        make(name).run(Problem(layered(12, seed=1), "80%"), RUN)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        *((AnnealingOptions, each) for each in (
            {"moves": 0}, {"heat": 0.0}, {"cold": -1.0}, {"soft": 1e-4, "hard": 1e-3}, {"hard": 0.0}, {"again": 1.1},
            {"again": -0.1}, {"heat": float("nan")},
        )),
        *((LpRoundingOptions, each) for each in (
            {"formulation": "retention-intervals"}, {"allowances": ()}, {"allowances": (1.0,)}, {"thresholds": 0.5},
            {"thresholds": (-0.1,)}, {"samples": -1}, {"algorithm": "guess"},
        )),
        *((HPartitionOptions, each) for each in (
            {"max_top": 0}, {"max_group": 1}, {"alpha": -1}, {"min_group": 30}, {"max_top": "many"},
        )),
        (MinCutOptions, {"balance": 0}), (MinCutOptions, {"max_group": 1}), (ArticulationOptions, {"max_side": -1}),
        (ModulesOptions, {"max_members": 1}), (BlockOptions, {"blocks": "layers"}), (BlockOptions, {"k": 0}),
        (DropsOptions, {"leanings": (0.0,)}), (DropsOptions, {"leanings": ()}), (LnsOptions, {"seconds": 0}),
        (SweepOptions, {"sweep": 0}), (EvictionOptions, {"most_computes": 0}), (FewStagesOptions, {"more": 0}),
        (LowerSetsOptions, {"sets": 2}), (TreeWidthOptions, {"most_computes": 0}),
        (HierarchicalOptions, {"options": 0}), (HierarchicalOptions, {"seconds": 0}),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: Any, given: dict[str, Any]) -> None:
    with refused("problem.option", culprit=next(iter(given))):
        options(**given)


def test_greedy_on_chains() -> None:
    """One byte below the peak of the reference order costs one recomputation."""
    for n in range(3, 12):
        problem = Problem(unit_chain(n), n + 1)
        schedule = make("greedy").run(problem, RUN)
        assert schedule is not None and judged(problem, schedule).cost == 2 * n + 2
