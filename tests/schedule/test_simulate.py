"""The semantics of schedules, rule by rule, on graphs small enough to follow by hand."""

import numpy as np
import pytest
from refusals import refused

from remat.graphs import GraphBuilder
from remat.schedule import Rule, Schedule, simulate, validate, with_frees


def steps(text):
    """``a b -a`` computes a and b and frees a."""
    return Schedule.from_steps([("free", w[1:]) if w[0] == "-" else ("compute", w) for w in text.split()])


@pytest.fixture
def chain():
    """a (8) -> b (4) -> c (2) -> d (1)."""
    b = GraphBuilder("chain")
    for name, size, before in (("a", 8, []), ("b", 4, ["a"]), ("c", 2, ["b"]), ("d", 1, ["c"])):
        b.op(name, inputs=before, size=size, cost=size)
    return b.build()


@pytest.fixture
def buffer():
    """Ops p, q and r add to an accumulation buffer `sum`; p also writes `extra`; `use` reads both."""
    b = GraphBuilder("buffer")
    b.tensor("sum", 10)
    b.tensor("extra", 3)
    b.op("p", outputs=["sum", "extra"], cost=1)
    b.op("q", outputs=["sum"], cost=1)
    b.op("r", outputs=["sum"], cost=1)
    b.op("use", inputs=["sum", "extra"], size=1, cost=1)
    return b.build()


def first(graph, schedule, **rules):
    violation = simulate(graph, schedule, **rules).violations[0]
    return violation.step, violation.rule, violation.op, violation.tensor


def made(*ops, **options):
    """Ops as (name, inputs, sizes of the outputs, workspace)."""
    b = GraphBuilder("made", **options)
    for name, inputs, sizes, *workspace in ops:
        outputs = {name if len(sizes) == 1 else f"{name}{k}": size for k, size in enumerate(sizes)}
        b.op(name, inputs=inputs, outputs=outputs, workspace=sum(workspace))
    return b.build()


SQUARE = made(("x", [], [8]), ("y", ["x", "x"], [2]), ("z", ["y"], [1]))
DIAMOND = made(("a", [], [5]), ("l", ["a"], [1]), ("r", ["a"], [1]), ("j", ["l", "r"], [1]))
SEVERAL = made(("a", [], [2, 30]), ("b", ["a0"], [1]), ("c", ["a1", "b"], [1]))
UNREAD = made(("a", [], [2, 30]), ("b", ["a0"], [1]))
WORKSPACE = made(("a", [], [1], 20), ("b", ["a"], [1], 5))


@pytest.mark.parametrize(
    ("graph", "words", "memory"),
    [
        pytest.param(SQUARE, "x y z", [8, 10, 3], id="read twice by one op"),
        pytest.param(DIAMOND, "a l r j", [5, 6, 7, 3], id="freed after the later of two readers"),
        pytest.param(UNREAD, "a b", [32, 3], id="an unread output is freed after its step"),
        pytest.param(SEVERAL, "a b a c", [32, 3, 33, 32], id="recomputing an op regenerates all its outputs"),
        pytest.param(WORKSPACE, "a b -a", [21, 7, 1], id="workspace is held only while its op runs"),
    ],
)
def test_memory_by_hand(graph, words, memory):
    assert simulate(graph, steps(words)).memory.tolist() == memory


def test_frees_and_constant_memory(chain):
    assert list(with_frees(SQUARE, steps("x y z")).steps()).count(("free", "x")) == 1
    done = simulate(chain, steps("a b -a c -b d"))
    assert done.memory.tolist() == [8, 12, 4, 6, 2, 3]  # at a free step what is left
    assert done.is_compute.tolist() == [True, True, False, True, False, True]
    # one free that is written means that all are
    assert simulate(chain, steps("a b -a c d")).memory.tolist() == [8, 12, 4, 6, 7]
    assert simulate(WORKSPACE, steps("a b -a")).live_at_peak == (("a", 1),)
    constant = made(("a", [], [1]), constant_memory=100)
    assert simulate(constant, steps("a")).peak == 1
    assert simulate(constant, steps("a"), count_constant_memory=True).peak == 101


def test_the_peak_is_sampled_after_allocation_and_before_frees(chain):
    """Not before the new tensor is added, and no output slides into the place of a dying input."""
    done = simulate(chain, steps("a b c d"))
    assert done.memory.tolist() == [8, 12, 6, 3]
    assert (done.peak, done.peak_step, done.peak_op) == (12, 1, "b")
    assert done.live_at_peak == (("a", 8), ("b", 4))


def test_each_instance_ends_at_its_own_last_use(chain):
    done = simulate(chain, steps("a b a b c d"))
    spans = zip(done.intervals.tensor.tolist(), done.intervals.start.tolist(), done.intervals.end.tolist(), strict=True)
    assert [(chain.tensor_names[t], *span) for t, *span in spans] == [
        ("a", 0, 2), ("b", 1, 2), ("a", 2, 4), ("b", 3, 5), ("c", 4, 6), ("d", 5, 6),
    ]  # fmt: skip
    assert done.free_step.tolist() == [1, 1, 3, 4, 5, 5]


def test_computing_a_live_value_allocates_nothing_but_costs(chain):
    done = simulate(chain, steps("a b a c d -a"))
    assert done.memory.tolist() == [8, 12, 12, 14, 15, 7]
    assert (done.redundant, done.cost, done.recomputations) == (1, 8 + 15, 1)
    assert done.violations == ()


def test_dead_retention_shows_in_the_pruned_peak(chain):
    certificate = validate(chain, steps("a b c d -a -b -c -d"))
    assert (certificate.peak, certificate.pruned_peak) == (15, 12)


def test_keeping_all_to_the_end_is_not_the_reference_peak(chain):
    everything = validate(chain, steps("a b c d -d"))
    assert everything.peak == sum(t.size for t in chain.tensors) == 15
    assert chain.reference_peak == 12


def test_graph_inputs_are_there_from_the_start_and_stay():
    b = GraphBuilder("input")
    b.input("x", 7)
    b.op("a", size=1)
    b.op("b", inputs=["x", "a"], size=2)
    b.op("c", inputs=["b"], size=4)
    g = b.build()
    assert simulate(g, steps("a b c")).memory.tolist() == [8, 10, 13]
    assert first(g, steps("a -x b c")) == (1, Rule.FREE_GRAPH_INPUT, None, "x")
    assert len(simulate(g, steps("a -x b c")).violations) == 1


def test_graph_outputs_and_kept_tensors_stay(chain):
    outputs = chain.with_outputs(["b"])
    assert simulate(outputs, steps("a b c d")).memory.tolist() == [8, 12, 6, 7]
    assert simulate(chain, steps("a b c d"), keep={"b"}).memory.tolist() == [8, 12, 6, 7]
    assert first(outputs, steps("a b c -b d")) == (None, Rule.OUTPUT_NOT_LIVE, None, "b")
    with refused("problem.kept-tensor", culprit="zzz"):
        simulate(chain, steps("a"), keep={"zzz"})


def test_only_the_last_instance_of_an_output_is_kept(chain):
    done = simulate(chain.with_outputs(["a"]), steps("a b a c d"))
    assert done.memory.tolist() == [8, 12, 12, 14, 11]
    assert done.redundant == 0  # the first instance ended at its last use


def test_a_buffer_is_allocated_whole_at_its_first_contribution(buffer):
    done = simulate(buffer, steps("q p r use"))
    assert done.memory.tolist() == [10, 13, 13, 14]
    assert done.violations == ()


@pytest.mark.parametrize("order", ["p q r", "q p r", "r q p"])
def test_contributions_come_in_any_order(buffer, order):
    assert simulate(buffer, steps(order + " use")).violations == ()


def test_a_buffer_is_read_only_when_complete(buffer):
    assert first(buffer, steps("p r use q")) == (2, Rule.INPUT_INCOMPLETE, "use", "sum")
    assert "lacks contributions of 'q' (1 of 3 producers)" in simulate(buffer, steps("p r use q")).violations[0].message


def test_a_contribution_to_an_instance_that_has_it_is_masked(buffer):
    done = simulate(buffer, steps("p -extra p q r use -sum"))
    assert done.memory.tolist() == [13, 10, 13, 13, 13, 14, 4]
    assert (done.masked, done.redundant, done.violations) == (1, 0, ())


def test_a_freed_buffer_needs_all_contributions_anew(buffer):
    partly = steps("p q r use -sum q r use")
    assert first(buffer, partly) == (7, Rule.INPUT_INCOMPLETE, "use", "sum")
    assert "contributions of 'p'" in simulate(buffer, partly).violations[0].message
    assert simulate(buffer, steps("p q r use -sum q r p use")).violations == ()


def test_a_contribution_without_a_reader_lives_for_its_own_step(buffer):
    # The first q is not part of what `use` reads: after it, the instance is collected afresh by q, p and r.
    done = simulate(buffer, steps("q q p r use"))
    assert done.memory.tolist() == [10, 10, 13, 13, 14]
    assert done.masked == 0
    # A read between contributions holds the whole instance until the last read.
    b = GraphBuilder("between")
    b.tensor("sum", 10)
    b.op("p", outputs=["sum"])
    b.op("q", outputs=["sum"])
    b.op("use", inputs=["sum"], size=1)
    done = simulate(b.build(), steps("p q use q use"))
    assert done.memory.tolist() == [10, 10, 11, 10, 11]
    assert (done.masked, done.violations) == (1, ())


def test_messages_name_step_op_and_tensor(chain):
    messages = [str(v) for v in simulate(chain, steps("b a -c c -a b -a zzz -yyy")).violations]
    assert messages == [
        "step 0: op 'b' reads tensor 'a', which was never produced",
        "step 2 frees tensor 'c', which was never produced",
        "step 5: op 'b' reads tensor 'a', which was freed at step 4",
        "step 6 frees tensor 'a', which was freed at step 4",
        "step 7 computes op 'zzz', which graph 'chain' does not have",
        "step 8 frees tensor 'yyy', which graph 'chain' does not have",
        "op 'd' is never computed",
    ]


def test_no_steps(chain):
    done = simulate(chain, Schedule.from_steps([]))
    assert (done.peak, done.peak_step, done.peak_op, done.live_at_peak, done.cost) == (0, None, None, (), 0)
    assert {v.rule for v in done.violations} == {Rule.OP_NOT_COMPUTED}


def test_an_unknown_op_is_no_peak_of_an_op(chain):
    done = simulate(chain.with_outputs(["a"]), steps("a zzz"))
    assert (done.peak_step, done.peak_op) == (0, "a")


def test_costs_beyond_64_bits_are_exact():
    b = GraphBuilder("dear")
    b.op("a", size=1, cost=2**61)
    g = b.build()
    many = Schedule.of_computes(g, np.zeros(100, dtype=np.int64))
    assert simulate(g, many).cost == 100 * 2**61


def test_steps_out_of_range_are_refused(chain):
    with refused("schedule.step-range"):
        Schedule.of_computes(chain, [0, 4])
    with refused("schedule.step-range"):
        Schedule.for_graph(chain, np.array([2], dtype=np.int8), np.array([0]))
    with refused("schedule.step", culprit="free"):
        Schedule.from_steps([("compute", "a"), ("free", 3)])
    with refused("schedule.step-name"):
        Schedule.from_steps([("compute", "\ud800")])
