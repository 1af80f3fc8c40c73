"""Simulator against a second one, on random valid and invalid schedules."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_oracle import MOVES, as_schedule, mutated, naive, random_graph, random_steps, random_valid_steps

from remat.schedule import Rules, StepKind, Verdict, simulate, validate, with_frees

randoms = st.integers(0, 2**32).map(Random)
examples = settings(max_examples=100, deadline=None)


def assert_same(graph, schedule, random):
    steps = list(schedule.steps())
    keep = frozenset(t for t in graph.tensor_names if random.random() < 0.1)
    counted = random.random() < 0.5
    expected = naive(graph, steps, keep, graph.constant_memory if counted else 0)
    got = simulate(graph, schedule, keep=keep, count_constant_memory=counted, max_violations=10**4)

    assert got.memory.tolist() == expected.memory
    key = str  # faults of one step have no order
    assert sorted(((v.step, v.rule, v.op, v.tensor) for v in got.violations), key=key) == sorted(
        expected.faults, key=key
    )
    for v in got.violations:
        named = [repr(name) for name in (v.op, v.tensor) if name] + [f"step {v.step}"] * (v.step is not None)
        assert all(word in v.message for word in named), v.message
    assert got.more_violations == 0
    names = graph.tensor_names
    intervals = zip(
        got.intervals.tensor.tolist(), got.intervals.start.tolist(), got.intervals.end.tolist(), strict=True
    )
    assert sorted((names[t], a, b) for t, a, b in intervals) == sorted(expected.instances)
    assert (got.redundant, got.masked) == (expected.redundant, expected.masked)
    computed = [name for word, name in steps if word == "compute"]
    assert got.counts.tolist() == [computed.count(name) for name in graph.op_names]
    assert got.cost == sum(op.cost * computed.count(op.name) for op in graph.ops)
    allocating = [m for m, (word, _) in zip(expected.memory, steps, strict=True) if word in ("compute", "fetch")]
    assert got.peak == max(allocating, default=0)
    assert (got.host is not None) == any(word in MOVES for word, _ in steps)
    if got.host is not None:
        assert got.host.memory.tolist() == expected.host
    if allocating:
        held = sum(size for _, size in got.live_at_peak) + (graph.constant_memory if counted else 0)
        workspace = graph.ops[graph.op_index[got.peak_op]].workspace if got.peak_op else 0
        assert (held + workspace, expected.memory[got.peak_step]) == (got.peak, got.peak)
    assert got.recomputations == sum(computed.count(o) - 1 for o in {*computed} & {*graph.op_names})
    return got


@examples
@given(randoms)
def test_random_and_valid_schedules(random):
    graph = random_graph(random)
    assert_same(graph, as_schedule(random, graph, random_steps(random, graph)), random)
    valid = random_valid_steps(random, graph, frees=random.random() < 0.7)
    assert assert_same(graph, as_schedule(random, graph, valid), random).violations == ()


@examples
@given(randoms)
def test_random_and_valid_moves(random):
    graph = random_graph(random)
    assert_same(graph, as_schedule(random, graph, random_steps(random, graph, ("free", *MOVES))), random)
    valid = random_valid_steps(random, graph, frees=random.random() < 0.7, moves=True)
    assert assert_same(graph, as_schedule(random, graph, valid), random).violations == ()
    assert_same(graph, as_schedule(random, graph, mutated(random, graph, valid)), random)


#: Parts of the mutated programs: each takes 10 s of processor time, far below the limit of a test on a loaded machine.
PARTS, PROGRAMS = 10, 100_000


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_programs(part):
    verdicts = set()
    for seed in range(part, PROGRAMS, PARTS):
        random = Random(seed)
        graph = random_graph(random)
        valid = random_valid_steps(random, graph, frees=random.random() < 0.7, moves=True)
        verdicts.add(
            bool(assert_same(graph, as_schedule(random, graph, mutated(random, graph, valid)), random).violations)
        )
    assert verdicts == {True, False}


@examples
@given(randoms)
def test_implied_frees_need_least_memory(random):
    graph = random_graph(random)
    valid = random_valid_steps(random, graph, frees=True, moves=random.random() < 0.5)
    schedule = as_schedule(random, graph, valid)
    written = simulate(graph, schedule)
    pruned = simulate(graph, schedule.without_frees())
    assert pruned.violations == ()
    assert (pruned.memory <= written.memory[written.kinds != StepKind.FREE]).all()
    certificate = validate(graph, schedule)
    assert certificate.verdict is Verdict.VALID
    assert certificate.pruned_peak == pruned.peak <= certificate.peak


@examples
@given(randoms)
def test_explicit_form_of_implied_frees(random):
    graph = random_graph(random)
    valid = random_valid_steps(random, graph, frees=False, moves=random.random() < 0.5)
    schedule = as_schedule(random, graph, valid)
    written = with_frees(graph, schedule)
    assert written.without_frees() == schedule
    implied, explicit = simulate(graph, schedule), simulate(graph, written)
    assert explicit.violations == ()
    assert explicit.memory[explicit.kinds != StepKind.FREE].tolist() == implied.memory.tolist()
    assert sorted(explicit.free_tensor.tolist()) == sorted(implied.free_tensor.tolist())
    assert with_frees(graph, written) == written


@examples
@given(randoms)
def test_violations_are_truncated_and_counted(random):
    graph = random_graph(random)
    schedule = as_schedule(random, graph, random_steps(random, graph))
    rules = Rules(budget=random.randint(0, 30), order="fixed", max_computes=1)
    whole = validate(graph, schedule, rules, max_violations=10**4)
    assert whole.more_violations == 0
    for limit in (0, 1, 3):
        part = validate(graph, schedule, rules, max_violations=limit)
        assert part.violations == whole.violations[:limit]
        assert part.more_violations == len(whole.violations) - len(part.violations)
        assert part.verdict == whole.verdict
