"""Allocators: addresses pass the check, and proofs of the exact search agree with exhaustive search."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from remat.allocation.canonical import KERNELS, CanonicalSearch
from remat.allocation.fits import FirstFit, FitOptions, quick
from remat.allocation.problem import AllocationProblem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Buffers, Memory, check_addresses
from remat.testing.allocator_checks import dense_buffers, least_arena, random_buffers

OPTIONS = SolveOptions(threads=1)


def buffers(rows: list[tuple[int, int, int]]) -> Buffers:
    """Make buffers from rows of two steps, in any order, and bytes."""
    return Buffers.of(
        [f"b{k}" for k in range(len(rows))], [min(r[:2]) for r in rows], [max(r[:2]) + 1 for r in rows],
        [r[2] for r in rows],
    )  # fmt: skip


def rows_of(count: int, steps: int = 6) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    step = st.integers(0, steps)
    return st.lists(st.tuples(step, step, st.integers(0, 5)), min_size=1, max_size=count)


@given(rows_of(5), st.sampled_from([1, 4]))
@settings(max_examples=25)
def test_canonical_search_proves_the_least_arena(rows: list[tuple[int, int, int]], alignment: int) -> None:
    problem = AllocationProblem(buffers(rows), alignment=alignment)
    least, seen = least_arena(problem.buffers, alignment), []
    found = CanonicalSearch().allocate(problem, OPTIONS, None, lambda a: seen.append(a.arena))
    assert seen == sorted(set(seen), reverse=True)
    assert (found.price, found.bound, found.proved) == (least, least, True)
    assert check_addresses(found.addresses).accepted
    within = (Memory(capacity=least),)
    fits = CanonicalSearch().allocate(AllocationProblem(buffers(rows), within, alignment), OPTIONS)
    assert check_addresses(fits.addresses).accepted
    if least >= alignment:
        below = (Memory(capacity=least - 1),)
        none = CanonicalSearch().allocate(AllocationProblem(buffers(rows), below, alignment), OPTIONS)
        assert none.addresses is None
        assert none.impossible


def arena_above_peak() -> Buffers:
    """Eleven buffers whose least arena is 11, though no step holds more than 10."""
    lower = [4, 2, 3, 1, 1, 5, 6, 4, 1, 0, 2]
    upper = [8, 4, 6, 3, 5, 8, 8, 8, 3, 2, 6]
    return Buffers.of("abcdefghijk", lower, upper, [4, 2, 1, 3, 2, 1, 3, 2, 2, 3, 1])


def test_arena_above_the_peak_is_proved() -> None:
    found = CanonicalSearch().allocate(AllocationProblem(arena_above_peak()), OPTIONS)
    assert (arena_above_peak().peak(), found.price, found.bound, found.proved) == (10, 11, 11, True)
    within = AllocationProblem(arena_above_peak(), (Memory(capacity=10),))
    none = CanonicalSearch().allocate(within, OPTIONS)
    assert none.impossible == "no placement fits into 10 bytes: all were tried"


@given(rows_of(9, steps=4), st.integers(0, 14), st.booleans())
@settings(max_examples=25)
def test_quick_rules_respect_capacities_and_allowed_memories(
    rows: list[tuple[int, int, int]], capacity: int, pinned: bool
) -> None:
    found = buffers(rows)
    allowed = np.ones((len(found), 2), dtype=bool)
    if pinned:
        allowed[::2, 0] = False
    problem = AllocationProblem(found, (Memory("fast", capacity), Memory("slow")), 2, allowed)
    answer = quick(problem)
    assert check_addresses(answer.addresses).accepted
    assert allowed[np.arange(len(found)), answer.addresses.memory].all()
    assert answer.price is not None
    assert answer.price >= answer.bound


def test_contradictory_capacities() -> None:
    found = buffers([(0, 2, 5), (1, 3, 5)])
    low = AllocationProblem(found, (Memory("all", 9),))
    answer = FirstFit().allocate(low)
    assert answer.addresses is None
    assert answer.impossible == "step 1: 10 bytes are held, but there are 9 (all)"
    assert answer.notes == ("the smallest arena found has 10 bytes",)
    split = AllocationProblem(found, (Memory("x", 4), Memory("y", 7)))
    assert "fits into no memory" not in split.contradiction
    assert AllocationProblem(found, (Memory("x", 4), Memory("y", 4))).contradiction
    assert "'b0' has 5 bytes and fits into no memory" in (
        AllocationProblem(found, tuple(Memory(name, 4) for name in "wxyz")).contradiction
    )


def test_invalid_arguments() -> None:
    found = buffers([(0, 2, 5)])
    two = AllocationProblem(found, (Memory("x"), Memory("y")))
    for kind, call, arguments in (
        ("problem.no-memory-allowed", AllocationProblem, (found, (Memory(),), 1, np.zeros((1, 1), dtype=bool))),
        ("problem.two-memories", AllocationProblem, (found, (Memory("x"), Memory("x")))),
        ("problem.alignment", AllocationProblem, (found, (Memory(),), 0)),
        ("problem.unknown-order", FitOptions, ("best",)),
        ("problem.several-memories", CanonicalSearch().allocate, (two,)),
    ):
        with refused(kind):
            call(*arguments)


def test_expired_deadline_returns_the_start() -> None:
    problem = AllocationProblem(random_buffers(3, 400, 30, 500))
    start = FirstFit(FitOptions("size")).allocate(problem)
    found = CanonicalSearch().allocate(problem, SolveOptions(deadline=Deadline.after(0)), start.addresses)
    assert found.price == start.price


def test_unreached_capacity_notes_the_smallest_arena() -> None:
    problem = AllocationProblem(dense_buffers(0, 300), (Memory(capacity=1024),))
    late = SolveOptions(deadline=Deadline.after(0))
    found, greedy = CanonicalSearch().allocate(problem, late), quick(problem, late).notes
    assert (found.addresses, found.notes) == (None, greedy)
    assert "the smallest arena found has" in greedy[0]


def test_search_runs_in_python_until_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KERNELS, "loaded", False)
    monkeypatch.setattr(KERNELS, "begin", lambda: True)
    monkeypatch.setattr(KERNELS, "compiled", lambda: None)
    monkeypatch.setattr(CanonicalSearch, "prepared", lambda *_: pytest.fail("waits for the compiler"))
    found = CanonicalSearch().allocate(AllocationProblem(arena_above_peak()), OPTIONS)
    assert (found.price, found.bound, found.proved) == (11, 11, True)


@pytest.mark.parametrize("seed", [107, 110])
def test_dense_buffers_are_placed_without_gaps(seed: int) -> None:
    problem = AllocationProblem(dense_buffers(seed, 200))
    found = CanonicalSearch().allocate(problem, OPTIONS)
    assert (found.price, found.proved) == (1024, True)
    assert check_addresses(found.addresses).accepted


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("name", "ABCDEFGHIJK")
def test_hard_instances_fit_their_capacity(shared, name: str) -> None:
    from remat.schedule.buffer_tables import read_table

    if not (table := shared / f"data/allocation/{name}.1048576.csv").exists():
        pytest.skip(f"instance {name} is not among the data")
    problem = AllocationProblem(read_table(table)[0], (Memory(capacity=1_048_576),))
    answer = CanonicalSearch().allocate(problem, SolveOptions(deadline=Deadline.after(30), threads=1))
    assert check_addresses(answer.addresses).accepted
