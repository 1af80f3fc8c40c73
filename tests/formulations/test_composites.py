"""Composites: validity, inputs and memory of options, and expanded schedules."""

import numpy as np
import pytest
from claims import proved
from refusals import refused

from remat.errors import RematError
from remat.formulations.composites import Composite, CompositeProblem, Option, Step, expand
from remat.formulations.h_ilp import HIlp
from remat.formulations.h_intervals.formulation import HierarchicalIntervals, HierarchicalIntervalsOptions
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.modeling import violations
from remat.problem import Problem
from remat.schedule import Schedule

CHAIN = Problem(unit_chain(4))  # f0 f1 f2 f3 loss g3 g2 g1 g0 are ops 0 to 8
SAVE, RECOMPUTE, AHEAD = Option([1, 2], [6, 7]), Option([1, 2], [1, 2, 6, 7]), Option([1, 2])


@pytest.mark.parametrize(
    "composite",
    [
        Composite("m", [1, 2], [6, 7]),
        Composite("m", [1, 99], [6, 7], [SAVE]),
        Composite("m", [], [6, 7], [SAVE]),
        Composite("m", [1, 2], [2, 6], [SAVE]),
        Composite("m", [1, 2], [6, 7], [AHEAD]),
        Composite("m", [1, 2], [], [SAVE]),
        Composite("m", [1, 2], [6, 7], [SAVE, Option([2])]),
        Composite("m", [1, 2], [6, 7], [Option([1], [6, 7], "x")]),
        Composite("m", [1, 2], [6, 7], [Option([1, 2], [6])]),
        Composite("m", [1, 2], [6, 7], [Option([1, 3, 2], [6, 7])]),
        Composite("m", [1, 2], [6, 7], [Option([1, 2], [7, 6])]),
        Composite("m", [1, 3], [5, 7], [Option([1, 3], [5, 7])]),
    ],
)
def test_invalid_composites(composite):
    with refused("problem.composite"):
        CompositeProblem(CHAIN, [composite])


def test_composite_of_the_first_ops():
    CompositeProblem(CHAIN, [Composite("m", [0, 1], [6, 7], [Option([0, 1], [6, 7])])])


def test_overlapping_composites_are_refused():
    first, second = (Composite(name, [1, 2], [6, 7], [SAVE]) for name in "ab")
    with refused("problem.composite", culprit="f1"):
        CompositeProblem(CHAIN, [first, second])


def test_composites_against_the_fixed_order_are_refused():
    b = GraphBuilder("fork")
    b.op("a", size=1)
    b.op("left", inputs=["a"], size=1)
    b.op("right", inputs=["a"], size=1)
    b.op("left end", inputs=["left"], size=1)
    b.op("end", inputs=["left end", "right"], size=1)
    graph = b.build()
    left = Composite("left", [1, 3], (), [Option([1, 3])])
    with refused("problem.order-rule", culprit="left"):
        CompositeProblem(Problem(graph), [left])
    free = CompositeProblem(Problem(graph, order="free"), [left])
    assert [node.name for node in free.nodes] == ["a", "left", "right", "end"]
    turned = Composite("m", [1, 2], (), [Option([2, 1])])
    with refused("problem.order-rule", culprit="m"):
        CompositeProblem(Problem(graph), [turned])


def test_options_have_their_own_inputs():
    """One option of the backward part reads an output of the forward part, the other recomputes it."""
    b = GraphBuilder("two outputs")
    b.op("f", outputs={"x": 4})
    b.op("g", inputs=["x"], outputs={"y": 2})
    b.op("loss", inputs=["x", "y"], outputs={"d": 1})
    b.op("back", inputs=["x", "d"], outputs={"e": 1})
    layer = Composite("layer", [0, 1], [3], [Option([0, 1], [3]), Option([0, 1], [0, 3])])
    whole = CompositeProblem(Problem(b.build()), [layer])
    assert whole.layers == ((0, 2),)
    reads, again = whole.runs(2)
    assert reads.tensor[reads.needs].tolist() == [0, 2]
    assert again.tensor[again.needs].tolist() == [2]
    assert again.memory.tolist() == [4, 5]  # its own copy of x; e is an output
    assert again.rows[0].freed.tolist() == []
    schedule = expand(whole, [Step(0), Step(1), Step(2, 1, np.array([0]))])
    assert schedule.computes() == ["f", "g", "loss", "back"]  # x stays alive
    options = HierarchicalIntervalsOptions([Composite("layer", [0, 1], [3], [Option([0, 1], [0, 3])])])
    formulation = HierarchicalIntervals(Problem(whole.problem.graph), options)
    assert formulation.decode(formulation.encode(schedule)).computes() == schedule.computes()


@pytest.mark.parametrize(("limit", "cost"), [(1, None), (2, 11)])
@pytest.mark.parametrize("kind", [HIlp, HierarchicalIntervals])
def test_limits_of_computes_hold_inside_options(kind, limit, cost):
    layer = Composite("layer", [1, 2], [6, 7], [Option([1, 2], [1, 2, 6, 7])])
    problem = Problem(unit_chain(4), 100, max_computes={"f1": limit})
    assert proved(kind(problem, kind.options_type(composites=(layer,)))) == cost


def test_budget_does_not_constrain_the_least_peak():
    layer = Composite("layer", [1, 2], [6, 7], [SAVE, RECOMPUTE])
    problem = Problem(CHAIN.graph, "50%", objective="least-peak")
    formulation = HierarchicalIntervals(problem, HierarchicalIntervalsOptions((layer,)))
    assert violations(formulation.build(), formulation.encode(Schedule.reference(problem.graph))) == []


def test_composites_in_configurations():
    from remat.config.levels import make_options

    table = {"name": "m", "forward": [1, 2], "backward": [6, 7], "options": [{"forward": [1, 2], "backward": [6, 7]}]}
    options = make_options("h-ilp", {"composites": [table]})
    assert repr(options.composites) == "(Composite('m', 2 + 2 ops, 1 options),)"
    with pytest.raises(RematError, match=r"formulations\.h-ilp\.composites\.0\.forward\.0"):
        make_options("h-ilp", {"composites": [{**table, "forward": ["f1"]}]})
