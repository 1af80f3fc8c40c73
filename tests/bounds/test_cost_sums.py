"""Sums of costs: against enumeration, and bounds on costs far above the tolerance of a solver."""

import itertools
import random
from dataclasses import replace

import pytest

from remat.bounds import joint_bound, stage_bound
from remat.bounds.cost_sums import attained, has_sum
from remat.graphs.families import unit_chain
from remat.modeling import Model
from remat.problem import Problem


@pytest.mark.parametrize("seed", range(20))
def test_sums_match_enumeration(seed):
    choice = random.Random(seed)
    for _ in range(50):
        terms = {choice.randint(0, 20) * choice.choice((1, 4, 6)): choice.randint(1, 3) for _ in range(4)}
        sums = {
            sum(times * value for times, value in zip(often, terms, strict=True))
            for often in itertools.product(*(range(most + 1) for most in terms.values()))
        }
        least = choice.randint(0, 99)
        most = least + choice.randint(0, 9)
        assert has_sum(terms, least, most) == any(least <= each <= most for each in sums)


def test_more_costs_or_steps_than_can_be_searched_leave_the_bound():
    assert has_sum({2 * cost: 1 for cost in range(1, 200)}, 1, 1)
    half = 21 * 10**9 // 2  # between the sums of ten and of eleven costs
    assert has_sum({10**9 + 2 * cost: 9 for cost in range(60)}, half, half)


@pytest.mark.parametrize(
    ("bound", "known", "value"),
    [(5 * 10**9 - 9, 5 * 10**9, 5 * 10**9), (5 * 10**9 - 9, 5 * 10**9 - 1, 5 * 10**9 - 1), (4, 5 * 10**9, 4)],
)
def test_bound_within_tolerance_rounded_up(bound, known, value):
    model = Model("sums")
    model.minimize(model.booleans("again", 9).index, 10**9)
    assert attained(model, bound, known) == value
    share = Model("shares")
    share.minimize(share.continuous("again", 9, 0, 1).index, 10**9)
    assert attained(share, bound, known) == bound


def test_bounds_are_exact_on_large_costs_without_a_common_divisor():
    """A tolerance of 1e-9 of the extra cost is more than one unit of cost."""
    chain, unit = unit_chain(8), 10**11
    ops = [replace(op, cost=unit + (op.name == "loss")) for op in chain.ops]
    problem = Problem(replace(chain, ops=ops), 4)
    base = problem.graph.base_cost
    assert stage_bound(problem, threads=1).value == base + 9 * unit  # as with unit costs
    assert joint_bound(problem, threads=1).value == base + 6 * unit
