"""`auto`, `hierarchical` and `minimize` against block checkpointing, from its least budget upward."""

import pytest
from helpers import ONE

from remat import minimize, solve
from remat.graphs.zoo.convolutional import resnet_ops
from remat.graphs.zoo.transformers import gpt, transformer
from remat.heuristics.blocks import BlockCheckpointing
from remat.problem import Problem
from remat.schedule import validate
from remat.solving.stop import AnyOf, MaxSeconds, TargetCost

TRANSFORMERS = [
    *((f"gpt-{layers}", lambda layers=layers: gpt(layers=layers)) for layers in (6, 12, 24, 48, 96)),
    *((f"transformer-{layers}", lambda layers=layers: transformer(layers=layers)) for layers in (6, 36)),
]
RESNETS = [(f"resnet-{depth}", lambda depth=depth: resnet_ops(depth=depth)) for depth in (50, 101, 152)]


def check(graph, budgets, seconds, method="auto"):
    """Assert cost at evenly spaced budgets of the frontier, and least peak, no worse than those of blocks."""
    frontier = BlockCheckpointing().frontier(Problem(graph))
    for number in range(budgets):
        plan = frontier[number * (len(frontier) - 1) // max(1, budgets)]
        problem = Problem(graph, plan.peak)
        result = solve(problem, method, stop=AnyOf(TargetCost(plan.cost), MaxSeconds(seconds)), options=ONE)
        assert result.certificate is not None, plan
        assert result.certificate.cost <= plan.cost, plan
        assert validate(graph, result.schedule, problem.rules).accepted
    target = AnyOf(TargetCost(frontier[0].peak), MaxSeconds(seconds))
    least = minimize(graph, stop=target, options=ONE, method=method)
    assert least.peak <= frontier[0].peak
    assert least.peak < frontier[0].peak or least.cost <= frontier[0].cost


@pytest.mark.parametrize(
    "graph",
    [gpt(layers=4), pytest.param(resnet_ops(8, (64, 64, 3), depth=50), marks=pytest.mark.slow)],
    ids=["gpt", "resnet"],
)
def test_at_least_as_good_as_blocks(graph):
    check(graph, 2, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "budgets", "method"),
    [
        *(pytest.param(make, 5, "auto", id=name) for name, make in TRANSFORMERS + RESNETS),
        *(pytest.param(make, 3, "hierarchical", id=f"{name}-hierarchical") for name, make in TRANSFORMERS),
    ],
)
def test_at_least_as_good_as_blocks_on_the_zoo(make, budgets, method):
    check(make(), budgets, 60, method)


def test_blocks_run_before_groups():
    """Drops alone find nothing in time near the least budget."""
    plan = BlockCheckpointing().frontier(Problem(gpt(layers=3)))[0]
    result = solve(Problem(gpt(layers=3), plan.peak), "hierarchical", stop=AnyOf(TargetCost(plan.cost), MaxSeconds(60)))
    assert result.cost <= plan.cost
    assert "partition" not in [step.name for step in result.steps]
