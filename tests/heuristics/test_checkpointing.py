"""Checkpointing: closed forms on chains, published numbers on networks, all kinds of graphs."""

import random
from dataclasses import replace
from functools import cache
from math import isqrt

import pytest
from generators import training_graph
from helpers import RUN, judged, some_slow
from refusals import refused

from remat import registry
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.zoo import TRAINING, ZOO
from remat.heuristics.checkpointing.base import CheckpointingOptions, SweepOptions
from remat.heuristics.checkpointing.checkpoints import all_forward_ops, articulation_points, greedy, greedy_sweep
from remat.heuristics.checkpointing.chen import LinearizedGreedy
from remat.heuristics.checkpointing.griewank import GriewankWalther, advances, reversal
from remat.problem import Problem
from remat.problem.training_step import TrainingStep

ON_CHAINS = ("chen-sqrt", "chen-greedy", "griewank-walther")
ON_TRAINING_GRAPHS = ("checkpoint-all", "ap-all", "ap-sqrt", "ap-greedy", "linearized-sqrt", "linearized-greedy")
METHODS = (*ON_CHAINS, *ON_TRAINING_GRAPHS, "checkpoint-last")
AS_PUBLISHED = CheckpointingOptions(dead_retention=True)


def certified(problem, method, options=None):
    schedule = registry.load("heuristics", method)(options).run(problem, RUN)
    assert schedule.source == method
    return judged(problem, schedule)


def numbers(graph, method):
    """Return cost, peak with dead retention, and peak with frees at last use, of one compute sequence."""
    lean, published = certified(Problem(graph), method), certified(Problem(graph), method, AS_PUBLISHED)
    assert lean.accepted
    assert published.accepted
    assert (published.cost, published.pruned_peak) == (lean.cost, lean.peak)
    return lean.cost, published.peak, lean.peak


def stripped(graph):
    """Return the graph without phases."""
    return replace(graph, ops=[replace(op, phase="") for op in graph.ops])


# -- chains ------------------------------------------------------------------------------------------------------------

# Chen's square root on the unit chain: cost, peak with dead retention, peak.
SQRT = {
    3: (7, 5, 5), 4: (11, 5, 5), 5: (13, 5, 5), 6: (16, 6, 6), 7: (18, 6, 6), 8: (21, 7, 7), 9: (25, 7, 7),
    10: (27, 7, 7), 11: (29, 8, 7), 12: (33, 8, 8), 16: (45, 10, 9), 20: (56, 11, 10),
    25: (71, 13, 11), 30: (85, 14, 12),
}  # fmt: skip


@pytest.mark.parametrize("n", SQRT)
@pytest.mark.parametrize("method", ["chen-sqrt", "ap-sqrt", "linearized-sqrt"])
def test_square_root_on_unit_chains(method, n):
    assert numbers(unit_chain(n), method) == SQRT[n]


@pytest.mark.parametrize("n", [n if n % 5 < 2 else pytest.param(n, marks=pytest.mark.slow) for n in range(3, 31)])
def test_closed_forms_of_unit_chains(n):
    graph = unit_chain(n)
    k = isqrt(n)
    last = max(i for i in range(n) if (i + 1) % k == 0)
    recomputed = sum((i + 1) % k != 0 for i in range(last))
    assert certified(Problem(graph), "chen-sqrt").cost == 2 * n + 1 + recomputed
    assert numbers(graph, "checkpoint-all") == (2 * n + 1, n + 2, n + 2)
    assert certified(Problem(graph), "checkpoint-last").cost == (n * n + 5 * n + 2) // 2


@pytest.mark.parametrize("budget", [9, 10, 12, 17])
def test_greedy_methods_agree_on_chains(budget):
    found = [certified(Problem(unit_chain(16), budget), m) for m in ("chen-greedy", "ap-greedy", "linearized-greedy")]
    assert all(c.accepted for c in found)
    assert len({(c.cost, c.peak) for c in found}) == 1


# -- networks of the paper ---------------------------------------------------------------------------------------------

# Cost, peak with dead retention and peak of linearized-sqrt and of ap-sqrt (equal on chains); peak with dead retention
# of checkpoint-all; cost and peak of checkpoint-last.
NETWORKS = {
    "vgg16": ([(14_507_720_048_640, 15_315_501_056, 13_975_420_928)] * 2, 19_585_277_952,
              (72_153_227_591_680, 13_153_337_344)),
    "vgg19": ([(18_563_242_917_888, 17_778_581_504, 13_975_420_928)] * 2, 20_921_163_776,
              (99_802_364_772_352, 13_153_337_344)),
    "fcn8": ([(15_491_397_327_360, 12_578_012_160, 8_805_941_248), (13_398_908_321_280, 8_664_145_920, 8_287_944_704)],
             14_804_379_264, (115_569_870_791_424, 8_287_944_704)),
    "unet": ([(12_934_359_539_712, 15_066_267_648, 11_913_920_512),
              (11_861_200_199_680, 27_518_271_488, 16_815_489_024)],
             22_949_527_552, (94_941_599_547_392, 11_626_872_832)),
    "segnet": ([(3_279_616_204_800, 15_411_512_832, 10_457_843_200)] * 2, 23_496_361_472,
               (19_452_710_690_816, 8_287_944_704)),
    "mobilenet": ([(1_211_193_323_520, 18_044_108_800, 13_464_377_344)] * 2, 37_825_796_096,
                  (15_172_990_078_976, 6_635_651_072)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_published_numbers_of_networks(name):
    graph, (roots, everything, last) = ZOO[name](), NETWORKS[name]
    assert [numbers(graph, method) for method in ("linearized-sqrt", "ap-sqrt")] == roots
    assert numbers(graph, "checkpoint-all") == (graph.base_cost, everything, graph.reference_peak)
    assert numbers(graph, "checkpoint-last")[::2] == last


def test_networks_with_skips_are_no_chains():
    chains = {name for name in TRAINING if TrainingStep.of(Problem(ZOO[name]())).is_chain}
    assert chains == {"vgg16", "vgg19", "segnet", "mobilenet"}
    for method in ON_CHAINS:
        with refused("problem.no-chain", culprit="'concatenate'"):
            certified(Problem(ZOO["unet"](), "80%"), method)


# -- training graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINING)
def test_phases_are_inferred_from_edges(name):
    graph = ZOO[name]()
    given, inferred = TrainingStep.of(Problem(graph)), TrainingStep.of(Problem(stripped(graph)))
    assert (inferred.num_forward, inferred.first_backward) == (given.num_forward, given.first_backward)
    assert given.mirror.tolist() == list(range(given.num_forward))[::-1]


def without_edge(graph, tensor, op):
    ops = [replace(o, inputs=tuple(t for t in o.inputs if t != tensor)) if o.name == op else o for o in graph.ops]
    return replace(graph, ops=ops)


@pytest.mark.parametrize(("tensor", "op"), [("f1", "g1"), ("f3", "loss"), ("loss", "g3")])
def test_graph_without_mirrored_backward_pass_is_refused(tensor, op):
    graph = stripped(unit_chain(4))
    assert TrainingStep.of(Problem(graph)).num_forward == 4
    with refused("problem.no-training-graph"):
        TrainingStep.of(Problem(without_edge(graph, tensor, op)))


@pytest.mark.parametrize("keep", ["forward", "backward"])
def test_graph_without_one_phase_is_refused(keep):
    ops = [replace(op, phase=keep) for op in unit_chain(3).ops]
    missing = {"forward": "backward", "backward": "forward"}[keep]
    with refused("problem.no-training-graph", culprit=missing):
        certified(Problem(replace(unit_chain(3), ops=ops), 4), "linearized-sqrt")


def test_shared_mask_moves_no_segment():
    graph = unit_chain(6)
    ops = [replace(op, inputs=("f0", *op.inputs)) if op.name in {"g5", "g4", "g2"} else op for op in graph.ops]
    assert TrainingStep.of(Problem(replace(graph, ops=ops))).mirror.tolist() == [3, 3, 3, 1, 1, 0]


def test_loss_of_several_ops_or_none():
    graph = unit_chain(4)
    ops = [replace(op, phase="loss") if op.name == "f3" else op for op in graph.ops]
    step = TrainingStep.of(Problem(replace(graph, ops=ops)))
    assert (step.num_forward, step.first_backward) == (3, 5)
    ops = [replace(op, phase="forward") if op.name == "loss" else op for op in graph.ops]
    step = TrainingStep.of(Problem(replace(graph, ops=ops)))
    assert (step.num_forward, step.first_backward) == (5, 5)
    for part in (replace(graph, ops=ops), graph):
        for method in METHODS:
            assert certified(Problem(part), method).accepted


# -- candidates and choices --------------------------------------------------------------------------------------------


def forward_step(edges, count):
    """Return a step whose forward graph has these edges and whose only backward op reads everything."""
    b = GraphBuilder("forward")
    for v in range(count):
        b.op(f"f{v}", inputs=[f"f{u}" for u, w in edges if w == v], size=v + 1, phase="forward")
    b.op("back", inputs=[f"f{v}" for v in range(count)], size=1, phase="backward")
    return TrainingStep.of(Problem(b.build()))


@pytest.mark.parametrize(
    ("edges", "count", "expected"),
    [
        ([(0, 1), (1, 2), (2, 3)], 4, [0, 1, 2, 3]),
        ([(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)], 5, [0, 3, 4]),  # a diamond
        ([(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)], 5, [0, 3, 4]),  # a skip
        ([(0, 1), (1, 2), (1, 3), (3, 4)], 5, [0, 1, 3, 4]),  # op 2 is a dead end
        ([(0, 2), (1, 2), (2, 3)], 4, [0, 2, 3]),  # op 1 is a side entrance
        ([(1, 2), (2, 3), (3, 4)], 5, [1, 2, 3, 4]),  # op 0 is isolated
        ([(0, 1)], 2, [0, 1]),
        ([], 1, [0]),
    ],
)
def test_articulation_points(edges, count, expected):
    assert articulation_points(forward_step(edges, count)) == expected


def test_greedy_counts_all_bytes_and_stops_at_candidates():
    step = forward_step([(v, v + 1) for v in range(6)], 7)  # sizes 1..7
    assert greedy(step, range(7), 5) == [2, 4, 5, 6]
    assert greedy(step, [0, 3, 6], 5) == [3, 6]
    assert greedy(step, range(7), 100) == []
    assert list(greedy_sweep(step, [0, 3, 6], 1)) == [[3, 6]]
    choices = list(greedy_sweep(step, all_forward_ops(step), 50))
    assert choices[-1] == []  # no checkpoint when b exceeds the total size
    assert len({tuple(c) for c in choices}) == len(choices)


# -- all kinds of graphs -----------------------------------------------------------------------------------------------


def test_dead_retention_requires_plain_graphs():
    problem = Problem(training_graph(0, 10, full=True))
    with refused("problem.dead-retention"):
        certified(problem, "linearized-sqrt", AS_PUBLISHED)
    with refused("problem.dead-retention"):
        certified(Problem(unit_chain(6), max_computes=2), "linearized-sqrt", AS_PUBLISHED)
    b = GraphBuilder("two")
    b.tensor("x", 1), b.tensor("y", 1)
    b.op("f", outputs=["x", "y"], phase="forward"), b.op("g", inputs=["x"], size=1, phase="backward")
    with refused("problem.dead-retention", culprit="'f'"):
        certified(Problem(b.build()), "linearized-sqrt", AS_PUBLISHED)


# -- REVOLVE -----------------------------------------------------------------------------------------------------------

# Optimal cost of the unit chain of n forward ops for budgets 3, 4, ...; proved by exhaustive search for n < 10.
OPTIMA = {
    1: (3,), 2: (6, 5), 3: (10, 8, 7), 4: (15, 11, 10, 9), 5: (21, 14, 13, 12, 11), 6: (28, 18, 16, 15, 14, 13),
    7: (36, 22, 19, 18, 17, 16, 15), 8: (45, 26, 22, 21, 20, 19, 18, 17), 9: (55, 30, 25, 24, 23, 22, 21, 20, 19),
    10: (66, 35, 29, 27, 26, 25, 24, 23, 22, 21),
}  # fmt: skip


@cache
def least_advances(length, slots):
    """Return the least number of advances by dynamic programming."""
    if length == 1 or slots == 1:
        return length * (length - 1) // 2
    return min(k + least_advances(length - k, slots - 1) + least_advances(k, slots) for k in range(1, length))


def test_formula_equals_dynamic_programme_and_schedules_attain_it():
    for length in range(1, 60):
        for slots in range(1, 9):
            assert advances(length, slots) == least_advances(length, slots)
            assert sum(what == "advance" for what, _ in reversal(length, slots)) == least_advances(length, slots)


def test_long_chains_do_not_recurse():
    assert sum(what == "advance" for what, _ in reversal(20_000, 12_000)) == advances(20_000, 12_000)


@pytest.mark.parametrize("n", [20, 39, *some_slow(range(1, 39), 11)])
def test_optimum_of_the_unit_chain_at_every_budget(n):
    problem = Problem(unit_chain(n))
    found = [judged(problem, s) for s in GriewankWalther().candidates(problem)]
    assert all(certificate.accepted for certificate in found)
    for budget in range(3, n + 4):
        best = min(certificate.cost for certificate in found if certificate.peak <= budget)
        assert best == n + 1 + advances(n + 1, budget - 2)
        if n in OPTIMA:
            assert best == (OPTIMA[n] + (2 * n + 1,) * 3)[budget - 3]


def test_limits_of_computes_hold():
    problem = Problem(unit_chain(12), 5, max_computes=2)
    certificate = judged(problem, GriewankWalther().run(problem, RUN))
    assert certificate.verdict == "over budget"  # two computes per op allow n <= 9 at budget 5
    problem = Problem(unit_chain(12), 6, max_computes=2)
    assert judged(problem, GriewankWalther().run(problem, RUN)).accepted


# -- runs --------------------------------------------------------------------------------------------------------------


def test_sweep_tries_the_given_number_of_sizes():
    problem = Problem(unit_chain(16))
    assert len(list(LinearizedGreedy(SweepOptions(sweep=3)).candidates(problem))) == 3


def test_reference_order_differs_from_op_numbers():
    graph = ZOO["unet"]()
    rng = random.Random(5)
    shuffled = replace(graph, ops=rng.sample(graph.ops, len(graph.ops)), order=graph.order)
    assert [numbers(shuffled, method) for method in ("linearized-sqrt", "ap-sqrt")] == NETWORKS["unet"][0]
