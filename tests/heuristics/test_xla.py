"""XLA's pass: computations of its own tests, validity."""

from itertools import product

import pytest
from helpers import RUN, judged

from remat import GraphBuilder, Problem
from remat.heuristics.xla import Xla, XlaOptions
from remat.schedule import Verdict
from remat.testing.graphs import random_graph

KB = 1024


def computes(builder: GraphBuilder, budget: int, order: str = "fixed", options: XlaOptions | None = None) -> list[str]:
    problem = Problem(builder.build(), budget, order)
    schedule = Xla(options).run(problem, RUN)
    assert schedule is not None
    assert judged(problem, schedule).accepted
    return schedule.computes()


def test_single_computation() -> None:
    """``SingleComputation``: the broadcast runs again right before its last reader; 14 KB instead of 16 KB."""
    b = GraphBuilder("rematerializable")
    b.input("param", 4)
    for name, size, reads in (
        ("reshape", 4, ["param"]), ("bcast", 4 * KB, ["reshape"]), ("negate", 4 * KB, ["bcast"]),
        ("concat_1", 8 * KB, ["negate"]), ("slice_1", 4, ["concat_1"]), ("concat_2", 4 * KB + 4, ["bcast", "slice_1"]),
        ("slice_2", 4, ["concat_2"]),
    ):  # fmt: skip
        b.op(name, inputs=reads, size=size)
    first = ["reshape", "bcast", "negate", "concat_1", "slice_1"]
    assert computes(b, 14 * KB) == [*first, "bcast", "concat_2", "slice_2"]
    assert computes(b, 20 * KB) == [*first, "concat_2", "slice_2"]


def test_instruction_rematerialized_multiple_times() -> None:
    """``InstructionRematerializedMultipleTimes``: no memory for the broadcast during any of three calls."""
    b = GraphBuilder("calls")
    b.op("bcast", size=4 * KB)
    b.op("add_1", inputs=["bcast"], size=4 * KB)
    for k in (1, 2, 3):
        b.op(f"call_{k}", inputs=[f"add_{k}"], size=4 * KB, workspace=12 * KB)
        b.op(f"add_{k + 1}", inputs=["bcast", f"call_{k}"], size=4 * KB)
    again = [name for k in (1, 2, 3) for name in (f"call_{k}", "bcast", f"add_{k + 1}")]
    assert computes(b, 22 * KB) == ["bcast", "add_1", *again]


def test_unread_value_moves_only_in_a_free_order() -> None:
    """In a free order the op runs once, later; in the fixed order it keeps its first compute."""
    b = GraphBuilder("early")
    for name, reads, size in (("early", [], 4), ("a", [], 3), ("b", ["a"], 3), ("c", ["b", "early"], 1)):
        b.op(name, inputs=reads, size=size)
    assert computes(b, 8, "free") == ["a", "b", "early", "c"]
    assert computes(b, 8) == ["early", "a", "b", "early", "c"]


def test_blocks_save_memory_that_single_ops_do_not() -> None:
    """The input of the large value is as large and dead: only both together save bytes."""
    b = GraphBuilder("block")
    for name, reads, size in (("x", [], 1), ("p", ["x"], 8), ("q", ["p"], 8), ("r", ["q"], 1), ("s", ["x", "r"], 1),
                              ("t", ["q", "s"], 1)):  # fmt: skip
        b.op(name, inputs=reads, size=size, workspace=8 * (name == "s"))
    graph = b.build()
    alone = Xla().run(Problem(graph, 18), RUN)
    assert alone is not None and alone.num_computes == 6
    assert computes(b, 18, options=XlaOptions(block_size_limit=2)) == ["x", "p", "q", "r", "s", "p", "q", "t"]


@pytest.mark.parametrize("options", [XlaOptions(), XlaOptions(block_size_limit=8, block_factor=4)])
def test_schedules_are_valid_except_for_the_budget(options: XlaOptions) -> None:
    within = 0
    graphs = [random_graph(seed, plain=False, buffers=seed % 2 == 1, most_ops=8) for seed in range(20)]
    graphs += [random_graph(seed, buffers=True) for seed in (114, 117)]  # an op adds to a buffer and writes a value
    for graph, order, limit in product(graphs, ("fixed", "free"), (None, 2)):
        for budget in range(graph.structural_bound.peak, graph.reference_peak, 5):
            problem = Problem(graph, budget, order, limit)
            schedule = Xla(options).run(problem, RUN)
            assert schedule is not None
            found = judged(problem, schedule)
            assert found.verdict is not Verdict.INVALID
            within += found.accepted
    assert within >= 10
