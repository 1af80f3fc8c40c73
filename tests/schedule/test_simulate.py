"""Semantics of schedules, rule by rule, on graphs small enough to follow by hand."""

import numpy as np
import pytest
from helpers import steps
from refusals import refused

from remat.graphs import GraphBuilder
from remat.schedule import Rule, Schedule, simulate


def graph_of(*ops, **options):
    """Return a graph of ops (name, inputs, output sizes, workspace); costs are the sizes of first outputs."""
    b = GraphBuilder("chain", **options)
    for name, inputs, sizes, *workspace in ops:
        outputs = {name if len(sizes) == 1 else f"{name}{k}": size for k, size in enumerate(sizes)}
        b.op(name, inputs=inputs, outputs=outputs, workspace=sum(workspace), cost=sizes[0])
    return b.build()


def buffer_graph(*ops, **tensors):
    """Return a graph of ops (name, inputs, outputs) that write the given tensors."""
    b = GraphBuilder("buffer")
    for name, size in tensors.items():
        b.tensor(name, size)
    for name, inputs, outputs in ops:
        b.op(name, inputs=inputs, outputs=outputs, cost=1)
    return b.build()


def fed():
    b = GraphBuilder("input")
    b.input("x", 7)
    b.op("a", size=1)
    b.op("b", inputs=["x", "a"], size=2)
    b.op("c", inputs=["b"], size=4)
    return b.build()


CHAIN = graph_of(("a", [], [8]), ("b", ["a"], [4]), ("c", ["b"], [2]), ("d", ["c"], [1]))
SQUARE = graph_of(("x", [], [8]), ("y", ["x", "x"], [2]), ("z", ["y"], [1]))
DIAMOND = graph_of(("a", [], [5]), ("l", ["a"], [1]), ("r", ["a"], [1]), ("j", ["l", "r"], [1]))
SEVERAL = graph_of(("a", [], [2, 30]), ("b", ["a0"], [1]), ("c", ["a1", "b"], [1]))
UNREAD = graph_of(("a", [], [2, 30]), ("b", ["a0"], [1]))
WORKSPACE = graph_of(("a", [], [1], 20), ("b", ["a"], [1], 5))
FED = fed()
#: Ops p, q and r write an accumulation buffer; p also writes `extra`; `use` reads both.
BUFFER = buffer_graph(
    ("p", [], ["sum", "extra"]), ("q", [], ["sum"]), ("r", [], ["sum"]), ("use", ["sum", "extra"], ["end"]),
    sum=10, extra=3, end=1,
)  # fmt: skip
BETWEEN = buffer_graph(("p", [], ["sum"]), ("q", [], ["sum"]), ("use", ["sum"], ["end"]), sum=10, end=1)


@pytest.mark.parametrize(
    ("graph", "words", "memory", "redundant", "masked"),
    [
        # the peak is sampled after allocation; no output reuses a dying input
        pytest.param(CHAIN, "a b c d", [8, 12, 6, 3], 0, 0, id="sampled after allocation and before frees"),
        pytest.param(CHAIN, "a b -a c -b d", [8, 12, 4, 6, 2, 3], 0, 0, id="free steps count the remaining memory"),
        pytest.param(CHAIN, "a b -a c d", [8, 12, 4, 6, 7], 0, 0, id="explicit frees disable implied ones"),
        pytest.param(CHAIN, "a b a c d -a", [8, 12, 12, 14, 15, 7], 1, 0, id="a live value allocates nothing"),
        pytest.param(CHAIN.with_outputs(["b"]), "a b c d", [8, 12, 6, 7], 0, 0, id="graph outputs stay live"),
        pytest.param(
            CHAIN.with_outputs(["a"]), "a b a c d", [8, 12, 12, 14, 11], 0, 0, id="only their last instance stays"
        ),
        pytest.param(SQUARE, "x y z", [8, 10, 3], 0, 0, id="read twice by one op"),
        pytest.param(DIAMOND, "a l r j", [5, 6, 7, 3], 0, 0, id="freed after the later of two readers"),
        pytest.param(UNREAD, "a b", [32, 3], 0, 0, id="an unread output is freed after its step"),
        pytest.param(SEVERAL, "a b a c", [32, 3, 33, 32], 0, 0, id="recomputing an op regenerates all its outputs"),
        pytest.param(WORKSPACE, "a b -a", [21, 7, 1], 0, 0, id="workspace is held only while its op runs"),
        pytest.param(FED, "a b c", [8, 10, 13], 0, 0, id="graph inputs are always live"),
        pytest.param(BUFFER, "q p r use", [10, 13, 13, 14], 0, 0, id="a buffer is allocated at its first contribution"),
        pytest.param(BUFFER, "p q r use", [13, 13, 13, 14], 0, 0, id="contributions come in any order"),
        pytest.param(BUFFER, "p -extra p q r use -sum", [13, 10, 13, 13, 13, 14, 4], 0, 1, id="masked"),
        pytest.param(BUFFER, "p q r use -sum q r p use", [13, 13, 13, 14, 4, 14, 14, 14, 14], 1, 0, id="filled again"),
        # `use` does not read the first q, after which a new instance starts
        pytest.param(BUFFER, "q q p r use", [10, 10, 13, 13, 14], 0, 0, id="a contribution without a reader"),
        pytest.param(BETWEEN, "p q use q use", [10, 10, 11, 10, 11], 1, 1, id="a read between contributions"),
    ],
)
def test_memory_by_hand(graph, words, memory, redundant, masked):
    done = simulate(graph, steps(words))
    assert done.memory.tolist() == memory
    assert (done.redundant, done.masked, done.violations) == (redundant, masked, ())


def test_messages_name_step_op_and_tensor():
    messages = [str(v) for v in simulate(CHAIN, steps("b a -c c -a b -a zzz -yyy")).violations]
    assert messages == [
        "step 0: op 'b' reads tensor 'a', which was never produced",
        "step 2 frees tensor 'c', which was never produced",
        "step 5: op 'b' reads tensor 'a', which was freed at step 4",
        "step 6 frees tensor 'a', which was freed at step 4",
        "step 7 computes op 'zzz', which graph 'chain' does not have",
        "step 8 frees tensor 'yyy', which graph 'chain' does not have",
        "op 'd' is never computed",
    ]
    for words, lacking in (
        ("p r use q", "'q' (1 of 3 producers)"),
        ("p q r use -sum q r use", "'p' (1 of 3 producers)"),
    ):
        (violation, *_) = simulate(BUFFER, steps(words)).violations
        assert f"lacks contributions of {lacking}" in violation.message


def test_no_steps():
    done = simulate(CHAIN, Schedule.from_steps([]))
    assert (done.peak, done.peak_step, done.peak_op, done.live_at_peak, done.cost) == (0, None, None, (), 0)
    assert {v.rule for v in done.violations} == {Rule.OP_NOT_COMPUTED}
    unknown = simulate(CHAIN.with_outputs(["a"]), steps("a zzz"))
    assert (unknown.peak_step, unknown.peak_op) == (0, "a")


def test_exact_costs_beyond_64_bits():
    b = GraphBuilder("dear")
    b.op("a", size=1, cost=2**61)
    g = b.build()
    many = Schedule.of_computes(g, np.zeros(100, dtype=np.int64))
    assert simulate(g, many).cost == 100 * 2**61


def test_steps_out_of_range_are_refused():
    with refused("schedule.step-range"):
        Schedule.of_computes(CHAIN, [0, 4])
    with refused("schedule.step-range"):
        Schedule.for_graph(CHAIN, np.array([5], dtype=np.int8), np.array([0]))
    with refused("schedule.step", culprit="free"):
        Schedule.from_steps([("compute", "a"), ("free", 3)])
    with refused("schedule.step-name"):
        Schedule.from_steps([("compute", "\ud800")])
    with refused("problem.kept-tensor", culprit="zzz"):
        simulate(CHAIN, steps("a"), keep={"zzz"})
