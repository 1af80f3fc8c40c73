"""Options of a group: certified schedules for several budgets, and a selection among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from remat.errors import ProblemError
from remat.formulations.composites import Composite, CompositeProblem, Option
from remat.hierarchy.effort import Effort, answered
from remat.hierarchy.quotient import choice_of
from remat.hierarchy.subproblem import SubProblem
from remat.problem import Problem
from remat.problem.op_sequence import allowed_computes
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule
from remat.schedule.simulate import simulate

#: Changes of options to try per child of a group, for each budget.
GROUP_MOVES = 1


@dataclass(frozen=True)
class Budgets:
    """Grid of budgets for a group."""

    peaks: int = 4
    """Number of peaks, from the least to that of the reference order."""
    saved: int = 6
    """Number of limits on the bytes held between forward and backward part, from the interfaces alone to the amount
    that the reference order holds."""

    def of(self, part: SubProblem) -> list[Problem]:
        """Return the sub-problem with each of the feasible budgets, largest first.

        Examples
        --------
        >>> from remat.graphs.families import unit_chain
        >>> from remat.hierarchy.groups import Group
        >>> part = SubProblem.of(Problem(unit_chain(6)), Group("g", np.arange(1, 5), np.arange(8, 12)))
        >>> [problem.budget_bytes for problem in Budgets(3, 2).of(part)]
        [7, 7, 5, 4]
        """
        least, most = part.problem.structural_peak, part.problem.reference_peak
        peaks = steps(least, most, self.peaks)
        if part.outside is None:
            return [part.asking(peak) for peak in peaks]
        limits = steps(part.held_least, part.held_reference, self.saved)
        return [part.asking(peak, held) for held in limits for peak in peaks if peak >= held]


def steps(least: int, most: int, count: int) -> list[int]:
    """Return `count` distinct numbers from `most` down to `least`, evenly spaced.

    Examples
    --------
    >>> steps(4, 10, 3), steps(5, 5, 3), steps(4, 10, 1)
    ([10, 7, 4], [5], [10])
    """
    if count == 1 or most <= least:
        return [most]
    return sorted({least + (most - least) * k // (count - 1) for k in range(count)}, reverse=True)


@dataclass(frozen=True, eq=False)
class Measured:
    """An option of a sub-problem with its cost and memory; ops and tensors are those of the sub-problem."""

    option: Option
    cost: int
    """Sum over both parts."""
    forward_peak: int
    """Largest bytes of tensors inside the group plus workspace during the forward part."""
    backward_peak: int
    """Largest bytes of tensors inside the group plus workspace during the backward part."""
    saved: int
    """Bytes of tensors inside the group held between the parts."""
    needs: frozenset[int]
    """Interfaces read by the backward part."""

    @property
    def peak(self) -> int:
        """Larger peak of the two parts."""
        return max(self.forward_peak, self.backward_peak)

    def dominates(self, other: Measured) -> bool:
        """Return True if it is at least as good in all respects, and both or neither have a backward part."""
        return (
            (self.option.backward is None) == (other.option.backward is None)
            and self.cost <= other.cost
            and self.forward_peak <= other.forward_peak
            and self.backward_peak <= other.backward_peak
            and self.saved <= other.saved
            and self.needs <= other.needs
        )


def measured(part: SubProblem, options: Iterable[Option]) -> list[Measured]:
    """Measure the options; skip invalid ones (an op is missing, or a value is read before it exists).

    The ops of `options` are numbers of the sub-problem.
    """
    outside = part.outside
    size = len(part.ops)
    cut = size if outside is None else outside
    forward, backward = np.arange(cut), np.arange(cut + 1, size)
    found = []
    for option in options:
        some = [option]
        if len(backward) and option.backward is None:  # a composite needs an option with a backward part
            some.append(Option(forward, backward))
        try:
            whole = CompositeProblem(part.problem, [Composite("group", forward, backward, some)])
        except ProblemError:
            continue
        ahead = whole.runs(int(whole.node_of[0]))[0]
        cost, backward_peak, needs = ahead.cost, 0, frozenset[int]()
        if option.backward is not None:
            back = whole.runs(int(whole.node_of[cut + 1]))[0]
            cost, backward_peak, needs = cost + back.cost, back.peak, frozenset(back.tensor[back.needs].tolist())
        found.append(Measured(option, cost, ahead.peak, backward_peak, ahead.saved, needs))
    return found


def undominated(options: Iterable[Measured]) -> list[Measured]:
    """Return the options that no other dominates, cheapest first; the first of equal ones."""
    kept: list[Measured] = []
    for one in sorted(options, key=lambda o: (o.option.backward is None, o.cost, o.saved, o.peak)):
        if not any(other.dominates(one) for other in kept):
            kept.append(one)
    return kept


def repriced(options: list[Measured], cost: Int) -> list[Measured]:
    """Return the options at the costs of another group of their class, without those that are then dominated.

    `cost` has shape (ops of the sub-problem,).

    Examples
    --------
    >>> all_saved = Measured(Option([0, 1], [2]), 30, 4, 4, 2, frozenset())
    >>> again = Measured(Option([0, 1], [1, 2]), 40, 4, 4, 1, frozenset())
    >>> [one.cost for one in repriced([all_saved, again], np.array([10, 11, 9]))]
    [30, 41]
    """
    costs = [
        int(cost[one.option.forward].sum() + (0 if one.option.backward is None else cost[one.option.backward].sum()))
        for one in options
    ]  # fmt: skip
    if costs == [one.cost for one in options]:
        return options
    return undominated(replace(one, cost=own) for one, own in zip(options, costs, strict=True))


def farthest_first(options: Sequence[Measured], count: int) -> list[Measured]:
    """Return at most `count` options that differ most in peak and saved bytes.

    The cheapest comes first, then those of highest and lowest peak, then repeatedly the one farthest from those
    selected, by peak and saved bytes as shares of their ranges. The first option without a backward part
    (*fast-forward*) is added.

    Examples
    --------
    >>> def option(cost, peak, saved):
    ...     return Measured(Option([0], [1]), cost, peak, peak, saved, frozenset())
    >>> some = [option(2, 9, 8), option(3, 8, 4), option(4, 5, 1), option(5, 4, 0), option(6, 2, 0)]
    >>> [one.cost for one in farthest_first(some, 3)], len(farthest_first(some, 9))
    ([2, 3, 6], 5)
    """
    fast = [one for one in options if one.option.backward is None]
    rest = [one for one in options if one.option.backward is not None]
    if not rest:  # a group without a backward part
        fast, rest = [], fast
    if len(rest) <= count:
        return [*rest, *fast[:1]]
    ranges = [max(1, max(values) - min(values)) for values in ([one.peak for one in rest], [one.saved for one in rest])]
    left = list(rest)
    taken = [left.pop(0)]
    for pick in (max, min):
        if len(taken) < count:
            end = pick(left, key=lambda one: (one.peak, one.saved))
            if pick is min or end.peak > taken[0].peak:
                left.remove(end)
                taken.append(end)
    while left and len(taken) < count:
        farthest = max(
            left,
            key=lambda one: min(
                abs(one.peak - t.peak) / ranges[0] + abs(one.saved - t.saved) / ranges[1] for t in taken
            ),
        )
        left.remove(farthest)
        taken.append(farthest)
    return [*sorted(taken, key=lambda one: (one.cost, one.saved, one.peak)), *fast[:1]]


def shared_out(total: int, sizes: Sequence[int], least: int = 2) -> list[int]:
    """Share out `total` options among groups in proportion to their numbers of ops, with at least `least` each.

    Examples
    --------
    >>> shared_out(20, [30, 60, 10]), shared_out(4, [5, 5, 5])
    ([6, 12, 2], [2, 2, 2])
    """
    whole = max(1, sum(sizes))
    return [max(least, round(total * size / whole)) for size in sizes]


def plain_options(part: SubProblem) -> list[Option]:
    """Return three options: save all, recompute all, and the forward part alone that saves nothing (*fast-forward*).

    Op numbers are those of the sub-problem. Ops that may run only once or contribute to a buffer are not recomputed.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.hierarchy.groups import Group
    >>> whole = Problem(unit_chain(6), max_computes={"f4": 1})
    >>> part = SubProblem.of(whole, Group("g", np.arange(1, 5), np.arange(8, 12)))
    >>> [(one.name, one.backward.tolist()) for one in plain_options(part) if one.backward is not None]
    [('save all', [5, 6, 7, 8]), ('recompute all', [0, 1, 2, 5, 6, 7, 8])]
    """
    graph, outside = part.problem.graph, part.outside
    arrays, size = graph.arrays, len(part.ops)
    if outside is None:
        return [Option(np.arange(size))]
    forward, backward = np.arange(outside), np.arange(outside + 1, size)
    needed = np.zeros(size, dtype=np.bool_)
    wanted = part.problem.kept.copy()
    wanted[arrays.op_inputs[outside]] = True
    for op in range(outside - 1, -1, -1):
        if wanted[arrays.op_outputs[op]].any():
            needed[op] = True
            wanted[arrays.op_inputs[op]] = True
    again = forward[allowed_computes(part.problem, 2)[:outside] > 1]
    return [
        Option(forward, backward, "save all"),
        Option(forward, np.concatenate([again, backward]), "recompute all"),
        Option(np.flatnonzero(needed), None, "fast-forward"),
    ]


def options_of(
    part: SubProblem, budgets: Budgets, effort: Effort, deadline: Deadline, composites: Sequence[Composite] = ()
) -> list[Measured]:
    """Return undominated options of a group: the plain ones, and the best schedule for each budget.

    Budgets are solved in one run, smallest first. Each starts from the cheapest earlier schedule that keeps it.

    `composites`: children of the group, in op numbers of the sub-problem; for methods that accept composites.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.hierarchy.groups import Group
    >>> part = SubProblem.of(Problem(unit_chain(6)), Group("g", np.arange(1, 5), np.arange(8, 12)))
    >>> found = options_of(part, Budgets(3, 3), Effort(("eviction",)), Deadline.after(10))
    >>> sorted((one.saved, one.cost) for one in found if one.option.backward is not None)
    [(0, 11), (0, 12), (0, 12), (0, 14), (1, 10), (3, 8)]
    """
    options, frontier = plain_options(part), _Frontier(part)
    for problem in reversed(budgets.of(part)):
        best = frontier.start(problem)
        if composites and not deadline.expired:
            choice = choice_of(problem, composites, deadline.earlier(effort.seconds), effort=effort, moves=GROUP_MOVES)
            best = _cheaper(problem, best, choice.schedule if choice is not None and choice.fits else None)
        for method in effort.methods:
            if deadline.expired:
                break
            found = answered(problem, method, effort, deadline, start=best, composites=composites)
            best = _cheaper(problem, best, found)
        if best is not None:
            frontier.add(best)
            options.append(part.cut(best))
    return undominated(measured(part, options))


@dataclass(frozen=True, eq=False)
class _Frontier:
    """Schedules of a sub-problem for one budget after another, smallest first."""

    part: SubProblem
    known: list[tuple[int, int, int, list[int]]] = field(default_factory=list)
    """Cost, peak, bytes held at `outside`, and computes of each schedule."""

    def add(self, schedule: Schedule) -> None:
        """Record a schedule."""
        graph, outside = self.part.problem.graph, self.part.outside
        computes = [graph.op_index[op] for op in schedule.computes()]
        run = simulate(graph, Schedule.of_computes(graph, computes))
        # `outside` has no workspace in this graph; in graphs with a budget its workspace limits the bytes held.
        held = 0 if outside is None else int(run.memory[run.is_compute][computes.index(outside)])
        self.known.append((run.cost, run.peak, held, computes))

    def start(self, problem: Problem) -> Schedule | None:
        """Return the cheapest schedule so far that keeps the budget of `problem`, as a schedule of its graph."""
        budget, outside = problem.budget_bytes, self.part.outside
        assert budget is not None
        limit = budget if outside is None else budget - problem.graph.ops[outside].workspace
        fits = [(cost, computes) for cost, peak, held, computes in self.known if peak <= budget and held <= limit]
        return Schedule.of_computes(problem.graph, min(fits)[1]) if fits else None


def _cheaper(problem: Problem, one: Schedule | None, other: Schedule | None) -> Schedule | None:
    """Return the cheaper of two schedules, the first of equal ones, or None if both are None."""
    found = [each for each in (one, other) if each is not None]
    return min(found, key=lambda each: problem.simulate(each).cost, default=None)
