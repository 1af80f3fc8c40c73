"""Global constraints of CP-SAT, under the names of the MiniZinc library in ``share/cpsat``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minizinc_solvers.cpsat_model import HIGHEST, Affine, CpSatBuilder
from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.refusals import constant_set, whole, wholes


def all_different(b: CpSatBuilder, array: Any) -> None:
    """All values of `array` differ."""
    b.put_all(b.add().all_diff.exprs, b.affines(array))


# -- tasks -------------------------------------------------------------------------------------------------------------


def _interval(b: CpSatBuilder, start: Affine, size: Affine, presence: int | None) -> int:
    """Return the number of a new interval constraint from `start` with size `size`."""
    if not size.coefficient:
        end = start.scaled(1, size.offset)
    elif not start.coefficient:
        end = size.scaled(1, start.offset)
    else:
        (a, c), (p, q) = b.bounds(start), b.bounds(size)
        end = Affine(b.new_variable(a + p, c + q), 1, 0)
        b.linear([start, size, end.scaled(-1)], [(0, 0)])
    number = len(b.proto.constraints)
    interval = b.add(*([] if presence is None else [presence])).interval
    b.put(interval.start, start)
    b.put(interval.size, size)
    b.put(interval.end, end)
    return number


def _same_length(*arrays: list[Any]) -> None:
    if len({len(array) for array in arrays}) > 1:
        raise FlatZincError(f"has arrays of different lengths: {', '.join(str(len(array)) for array in arrays)}")


def _cumulative(b: CpSatBuilder, presences: list[int] | None, tasks: tuple[Any, Any, Any], limit: Any) -> None:
    starts, sizes, demands = (b.affines(array) for array in tasks)
    capacity = b.affine(limit)
    _same_length(starts, sizes, demands, *([presences] if presences is not None else []))
    if not starts:
        return
    for term in [*sizes, *demands]:
        b.linear([term], [(0, HIGHEST)])
    b.linear([capacity], [(0, HIGHEST)])
    intervals = [
        _interval(b, start, size, None if presences is None else presences[k])
        for k, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    constraint = b.add().cumulative
    constraint.intervals.extend(intervals)
    b.put_all(constraint.demands, demands)
    b.put(constraint.capacity, capacity)


def cumulative(b: CpSatBuilder, starts: Any, sizes: Any, demands: Any, capacity: Any) -> None:
    """Tasks need at most `capacity` at any time."""
    _cumulative(b, None, (starts, sizes, demands), capacity)


def cumulative_opt(  # noqa: PLR0917 -- the predicate has as many
    b: CpSatBuilder, presences: Any, starts: Any, sizes: Any, demands: Any, capacity: Any
) -> None:
    """:func:`cumulative` for the tasks that are present."""
    _cumulative(b, b.literals(presences), (starts, sizes, demands), capacity)


def disjunctive(b: CpSatBuilder, starts: Any, sizes: Any) -> None:
    """Tasks of positive size do not overlap; those of size 0 may be anywhere."""
    disjunctive_opt(b, [True] * len(b.affines(starts)), starts, sizes)


def disjunctive_opt(b: CpSatBuilder, presences: Any, starts: Any, sizes: Any) -> None:
    """:func:`disjunctive` for the tasks that are present."""
    _cumulative(b, b.literals(presences), (starts, sizes, [1] * len(b.affines(starts))), 1)


def disjunctive_strict(b: CpSatBuilder, starts: Any, sizes: Any) -> None:
    """No task lies inside another, including tasks of size 0."""
    disjunctive_strict_opt(b, [True] * len(b.affines(starts)), starts, sizes)


def disjunctive_strict_opt(b: CpSatBuilder, presences: Any, starts: Any, sizes: Any) -> None:
    """:func:`disjunctive_strict` for the tasks that are present."""
    tasks = b.literals(presences), b.affines(starts), b.affines(sizes)
    _same_length(*tasks)
    for size in tasks[2]:
        b.linear([size], [(0, HIGHEST)])
    intervals = [_interval(b, start, size, presence) for presence, start, size in zip(*tasks, strict=True)]
    b.add().no_overlap.intervals.extend(intervals)


def diffn(b: CpSatBuilder, lefts: Any, bottoms: Any, widths: Any, heights: Any) -> None:
    """Rectangles of positive width and height do not overlap."""
    sides = [b.affines(array) for array in (lefts, bottoms, widths, heights)]
    _same_length(*sides)
    horizontal = [_interval(b, start, size, None) for start, size in zip(sides[0], sides[2], strict=True)]
    vertical = [_interval(b, start, size, None) for start, size in zip(sides[1], sides[3], strict=True)]
    constraint = b.add().no_overlap_2d
    constraint.x_intervals.extend(horizontal)
    constraint.y_intervals.extend(vertical)


# -- permutations ------------------------------------------------------------------------------------------------------


def _circuit(b: CpSatBuilder, first: Any, array: Any, loops: bool) -> None:
    successors, low = b.affines(array), whole(first)
    if not successors:
        return
    arcs: list[tuple[int, int, int]] = []
    for tail, successor in enumerate(successors):
        b.linear([successor], [(low, low + len(successors) - 1)])
        for head in range(len(successors)):
            literal = b.equals(successor, low + head)
            if tail == head and not loops:
                b.clause([~literal])
            elif literal != ~b.true:
                arcs.append((tail, head, literal))
    constraint = b.add().circuit
    constraint.tails.extend([tail for tail, _, _ in arcs])
    constraint.heads.extend([head for _, head, _ in arcs])
    constraint.literals.extend([literal for _, _, literal in arcs])


def circuit(b: CpSatBuilder, first: Any, array: Any) -> None:
    """The successors `array` of nodes numbered from `first` form one cycle through all nodes."""
    _circuit(b, first, array, loops=False)


def subcircuit(b: CpSatBuilder, first: Any, array: Any) -> None:
    """:func:`circuit`, except for nodes that are their own successors."""
    _circuit(b, first, array, loops=True)


def inverse(b: CpSatBuilder, first: Any, array: Any, first_back: Any, array_back: Any) -> None:
    """``array[i] = j`` where ``array_back[j] = i``; the arrays are numbered from `first` and `first_back`."""
    forth, back = b.affines(array), b.affines(array_back)
    if len(forth) != len(back):
        b.impossible()
        return
    size = len(forth)

    def from_zero(terms: list[Affine], low: int) -> list[int]:
        numbers = [b.new_variable(0, size - 1) for _ in terms]
        for number, term in zip(numbers, terms, strict=True):
            b.linear([term, Affine(number, -1, 0)], [(low, low)])
        return numbers

    if size:
        numbers = from_zero(forth, whole(first_back)), from_zero(back, whole(first))
        constraint = b.add().inverse
        constraint.f_direct.extend(numbers[0])
        constraint.f_inverse.extend(numbers[1])


# -- tables ------------------------------------------------------------------------------------------------------------


def table(b: CpSatBuilder, array: Any, rows: Any) -> None:
    """`array` is one of the rows, which are concatenated in `rows`."""
    _table(b, b.affines(array), wholes(rows))


def table_reif(b: CpSatBuilder, array: Any, rows: Any, truth: Any) -> None:
    """`truth` is true if and only if `array` is one of the rows."""
    terms, values, literal = b.affines(array), wholes(rows), b.literal(truth)
    _table(b, terms, values, literal)
    _table(b, terms, values, ~literal, negated=True)


def table_imp(b: CpSatBuilder, array: Any, rows: Any, truth: Any) -> None:
    """If `truth`, `array` is one of the rows."""
    _table(b, b.affines(array), wholes(rows), b.literal(truth))


def _table(b: CpSatBuilder, terms: list[Affine], values: list[int], *enforce: int, negated: bool = False) -> None:
    if len(values) % len(terms) if terms else values:
        raise FlatZincError(f"has {len(values)} values, which are not rows of {len(terms)}")
    if not terms:
        return
    if not values:
        if not negated:
            b.impossible(*enforce)
        return
    constraint = b.add(*enforce).table
    b.put_all(constraint.exprs, terms)
    constraint.values.extend(values)
    constraint.negated = negated


def regular(  # noqa: PLR0917 -- the predicate has as many
    b: CpSatBuilder, array: Any, states: Any, symbols: Any, moves: Any, start: Any, accepting: Any
) -> None:
    """An automaton accepts `array`: from state q, symbol s leads to ``moves[q, s]``; 0 is a dead end."""
    terms, targets, width = b.affines(array), wholes(moves), whole(symbols)
    if width < 1 or len(targets) != whole(states) * width:
        raise FlatZincError(f"has {len(targets)} moves, not one for each state and symbol")
    ends = [state for low, high in constant_set(accepting).ranges for state in range(low, high + 1)]
    if not terms:
        if whole(start) not in ends:
            b.impossible()
        return
    for term in terms:
        b.linear([term], [(1, width)])
    constraint = b.add().automaton
    b.put_all(constraint.exprs, terms)
    constraint.starting_state = whole(start)
    constraint.final_states.extend(ends)
    arcs = [(k // width + 1, target, k % width + 1) for k, target in enumerate(targets) if target > 0]
    constraint.transition_tail.extend([tail for tail, _, _ in arcs])
    constraint.transition_head.extend([head for _, head, _ in arcs])
    constraint.transition_label.extend([label for _, _, label in arcs])


#: Global constraints by the name of their predicate.
GLOBALS: dict[str, Callable[..., None]] = {
    "fzn_all_different_int": all_different,
    "fzn_cumulative": cumulative,
    "fzn_disjunctive": disjunctive,
    "fzn_disjunctive_strict": disjunctive_strict,
    "remat_table_int": table,
    "remat_table_int_reif": table_reif,
    "remat_table_int_imp": table_imp,
    "remat_table_bool": table,
    "remat_table_bool_reif": table_reif,
    "remat_table_bool_imp": table_imp,
    "remat_regular": regular,
    "remat_cumulative_opt": cumulative_opt,
    "remat_disjunctive_opt": disjunctive_opt,
    "remat_disjunctive_strict_opt": disjunctive_strict_opt,
    "remat_diffn": diffn,
    "remat_circuit": circuit,
    "remat_subcircuit": subcircuit,
    "remat_inverse": inverse,
}
