"""The default method and `minimize` are never worse than block checkpointing, from the least budget upward."""

import pytest

from remat import SolveOptions, minimize, solve
from remat.graphs.zoo.convolutional import resnet_ops
from remat.graphs.zoo.gpt import gpt
from remat.graphs.zoo.transformers import transformer
from remat.hierarchy.blocks import BlockCheckpointing
from remat.problem import Problem
from remat.schedule import validate
from remat.solving.stop import AnyOf, MaxSeconds, TargetCost

ONE = SolveOptions(threads=1)
TRANSFORMERS = [
    *((f"gpt-{layers}", lambda layers=layers: gpt(layers=layers)) for layers in (6, 12, 24, 48, 96)),
    *((f"transformer-{layers}", lambda layers=layers: transformer(layers=layers)) for layers in (6, 36)),
]
RESNETS = [(f"resnet-{depth}", lambda depth=depth: resnet_ops(depth=depth)) for depth in (50, 101, 152)]


def check(graph, budgets, seconds):
    """Each of some budgets, evenly from the least that blocks have; there, and for the least peak, who is better."""
    frontier = BlockCheckpointing().frontier(Problem(graph))
    for number in range(budgets):
        plan = frontier[number * (len(frontier) - 1) // max(1, budgets)]
        problem = Problem(graph, plan.peak)
        result = solve(problem, stop=AnyOf(TargetCost(plan.cost), MaxSeconds(seconds)), options=ONE)
        assert result.certificate is not None, plan
        assert result.certificate.cost <= plan.cost, plan
        assert validate(graph, result.schedule, problem.rules).accepted
    least = minimize(graph, stop=AnyOf(TargetCost(frontier[0].peak), MaxSeconds(seconds)), options=ONE)
    assert least.peak <= frontier[0].peak
    assert least.peak < frontier[0].peak or least.cost <= frontier[0].cost


@pytest.mark.parametrize("graph", [gpt(layers=4), resnet_ops(8, (64, 64, 3), depth=50)], ids=["gpt", "resnet"])
def test_blocks_beat_nothing(graph):
    """Before: no schedule at the least budget of the transformer, and a peak that was higher by a tenth."""
    check(graph, 2, 20)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make"), TRANSFORMERS + RESNETS, ids=[name for name, _ in TRANSFORMERS + RESNETS])
def test_blocks_beat_nothing_of_the_zoo(name, make):
    check(make(), 5, 60)
