"""Composites: what an option needs, makes and holds, and the schedule of a sequence of nodes and options."""

import random

import numpy as np
import pytest
from helpers import judged
from refusals import refused

from remat.errors import RematError
from remat.formulations.hierarchical import Composite, CompositeProblem, Option, Step, expand
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.problem import Problem
from remat.schedule import simulate
from remat.testing.graphs import random_graph

CHAIN = Problem(unit_chain(4))  # f0 f1 f2 f3 loss g3 g2 g1 g0 are ops 0 to 8
SAVE, FORGET, AHEAD = Option([1, 2], [6, 7]), Option([1, 2], [1, 2, 6, 7]), Option([1, 2])


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
def test_composites_that_do_not_do_what_they_must(composite):
    with refused("problem.composite"):
        CompositeProblem(CHAIN, [composite])


def test_a_composite_around_the_first_ops():
    CompositeProblem(CHAIN, [Composite("m", [0, 1], [6, 7], [Option([0, 1], [6, 7])])])


def test_two_composites_with_one_op():
    first, second = (Composite(name, [1, 2], [6, 7], [SAVE]) for name in "ab")
    with refused("problem.composite", culprit="f1"):
        CompositeProblem(CHAIN, [first, second])


def test_a_fixed_order_is_kept():
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


def test_what_an_option_needs_is_its_own():
    """An output that a backward part reads is there, or computed again: an option each."""
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
    assert again.memory.tolist() == [4, 5]  # a copy of x for itself; e passes
    assert again.rows[0].freed.tolist() == []
    schedule = expand(whole, [Step(0), Step(1), Step(2, 1, np.array([0]))])
    assert schedule.computes() == ["f", "g", "loss", "back"]  # x is there all the time


def test_composites_in_files():
    from remat.config.method_options import make_options

    table = {"name": "m", "forward": [1, 2], "backward": [6, 7], "options": [{"forward": [1, 2], "backward": [6, 7]}]}
    options = make_options("h-ilp", {"composites": [table]})
    assert repr(options.composites) == "(Composite('m', 2 + 2 ops, 1 options),)"
    with pytest.raises(RematError, match=r"formulations\.h-ilp\.composites\.0\.forward\.0"):
        make_options("h-ilp", {"composites": [{**table, "forward": ["f1"]}]})


def test_plain_rows_are_what_the_simulation_holds():
    """Each node once, in order: groups of random graphs, some ops twice. Never more than the rows say."""
    corrected = 0
    for seed in range(120):
        rng = random.Random(seed)
        problem = Problem(random_graph(seed, 9, buffers=seed % 2 == 0))
        order = problem.graph.arrays.order.tolist()
        a, b = sorted(rng.sample(range(len(order) + 1), 2))
        ops = order[a:b]
        again = rng.random() < 0.3 and problem.graph.arrays.recomputable[ops].all()
        sequence = ops + (ops if again else [])
        whole = CompositeProblem(problem, [Composite("group", ops, (), [Option(sequence)])])
        claims, below = claimed(whole)
        flat = expand(whole, [Step(node) for node in range(len(whole.nodes))])
        certificate = judged(problem, flat)
        assert certificate.accepted
        held = simulate(problem.graph, flat).memory
        if len(held) == len(claims):  # nothing was left out
            assert (held <= claims).all()
            if not again:
                assert (held == claims).all() or problem.graph.arrays.producers.counts.max() > 1
        assert max(claims) >= held.max()
        corrected += below
    assert corrected > 20


def claimed(whole):
    """Memory by the rows at each sub-step if each node runs once, and whether corrections made any of it less."""
    size = whole.arrays.size
    runs = [whole.runs(node)[0] for node in range(len(whole.nodes))]
    last = {}
    for node, run in enumerate(runs):
        last.update(dict.fromkeys(run.tensor.tolist(), node))
    last.update({t: len(runs) for t in np.flatnonzero(whole.problem.kept).tolist()})
    live, claims, less = set(), [], False
    for node, run in enumerate(runs):
        made = set(run.tensor.tolist()) - live
        live |= made
        gone = {t for t in live if last[t] <= node}
        for step, memory in enumerate(run.memory.tolist()):
            here = set(live)
            for t, first, until in zip(run.absent_tensor, run.absent_from, run.absent_until, strict=True):
                if first <= step < until and int(t) in made:
                    here.discard(int(t))
            here -= {
                t for t, use in zip(run.tensor.tolist(), run.last.tolist(), strict=True) if t in gone and use < step
            }
            less |= here != live
            claims.append(int(whole.arrays.input_bytes + memory + size[list(here)].sum()))
            rows = ((row.memory, live - (gone & set(row.freed)) - (made & set(row.not_made))) for row in run.rows)
            most = max(held + int(size[list(there)].sum()) for held, there in rows)
            assert claims[-1] <= most + whole.arrays.input_bytes
        live -= gone
    return np.array(claims), less
