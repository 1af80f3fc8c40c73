"""Division of a budget over groups that run once each way, in place: one option for each group, by an exact model."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from remat.backends.highs import Highs
from remat.formulations.composites import Option
from remat.hierarchy.groups import Group
from remat.modeling import Linear, Model, Vars
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import Certificate, Schedule

#: Most models with a lower budget, if the memory of a choice exceeds what its model counted.
TIGHTENED = 5
#: Relative gap at which the search for a choice stops.
GAP = 1e-4


@dataclass(frozen=True, eq=False)
class Part:
    """A group with its options.

    Parts with an equal `tie` get the same option; they have equally many.
    """

    group: Group
    options: Sequence[Option]
    """Each with a backward part if the group has one. Ops are positions in ``graph.ops``."""
    tie: Hashable


@dataclass(frozen=True, eq=False)
class Division:
    """A choice of one option for each part.

    Attributes
    ----------
    options : tuple of int
        Option of each part.
    schedule : Schedule
    certificate : Certificate
        Of the schedule, on the whole graph.
    bound : int or None
        Least cost of any choice within the budget: only these options, all other ops once, in the reference order.
    """

    options: tuple[int, ...]
    schedule: Schedule
    certificate: Certificate
    bound: int | None


@dataclass(frozen=True, eq=False)
class _Memory:
    """Memory of one option of a part, apart from that of its surroundings."""

    cost: int
    saved: int
    forward: int
    backward: int
    needs: frozenset[int]
    """Tensors of other groups that the backward part reads."""


def divide(problem: Problem, parts: Sequence[Part], deadline: Deadline, threads: int = 1) -> Division | None:
    """Return the cheapest choice within the budget; None if there is none, or none was found before the deadline.

    Each part runs its forward and its backward once, at their places in the reference order. All other ops run once.
    If the deadline passes before the model has a solution, the options of the same number are tried for all parts.

    Parameters
    ----------
    problem : Problem
        Order fixed; each part's forward ops are contiguous in the reference order, and so are its backward ops.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(6), 7)
    >>> options = Option([1, 2], [10, 11]), Option([1, 2], [1, 10, 11])
    >>> found = divide(problem, [Part(Group("a", [1, 2], [10, 11]), options, 0)], Deadline.after(10))
    >>> found.options, found.certificate.peak, found.bound
    ((1,), 7, 14)
    """
    places = _Places(problem, parts)
    budget = problem.budget_bytes
    assert budget is not None
    bound: int | None = None
    for number in range(TIGHTENED):
        options, least = places.choice(deadline, threads, budget)
        if number == 0 and least is not None:
            bound = least
        if options is None:
            return places.alike(bound) if deadline.expired else None
        schedule = places.schedule(options)
        certificate = problem.validate(schedule)
        if certificate.accepted:
            return Division(options, schedule, certificate, bound)
        if certificate.peak is None or problem.budget_bytes is None or certificate.peak <= problem.budget_bytes:
            return None
        budget -= certificate.peak - problem.budget_bytes
    return None


def least_peak(problem: Problem, parts: Sequence[Part], deadline: Deadline, threads: int = 1) -> Division | None:
    """Return the choice of least peak, whatever its cost; None if none was found before the deadline.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> options = Option([1, 2], [10, 11]), Option([1, 2], [1, 10, 11])
    >>> part = Part(Group("a", [1, 2], [10, 11]), options, 0)
    >>> least_peak(Problem(unit_chain(6)), [part], Deadline.after(10)).certificate.peak
    7
    """
    places = _Places(problem, parts)
    options, _ = places.choice(deadline, threads, None)
    if options is None:
        return None
    schedule = places.schedule(options)
    return Division(options, schedule, problem.validate(schedule), None)


@dataclass(eq=False)
class _Places:
    """The parts and all other ops in sequence: *segments*, each an op or one pass of a part."""

    problem: Problem
    parts: Sequence[Part]
    segments: list[tuple[int | None, int]] = field(default_factory=list)
    """Part and pass (0: forward, 1: backward), or None and an op."""

    def __post_init__(self) -> None:
        arrays = self.problem.graph.arrays
        passes: dict[int, tuple[int, int]] = {}
        for number, part in enumerate(self.parts):
            passes |= dict.fromkeys(part.group.forward.tolist(), (number, 0))
            passes |= dict.fromkeys(part.group.backward.tolist(), (number, 1))
        seen: dict[tuple[int | None, int], int] = {}
        segment = np.zeros(len(arrays.cost), dtype=np.int64)
        for op in arrays.order.tolist():
            segment[op] = seen.setdefault(passes.get(op, (None, op)), len(seen))
        self.segments = list(seen)
        self.place = seen
        self.size: list[int] = arrays.size.tolist()
        self.inputs = [row.tolist() for row in arrays.op_inputs]
        self.outputs = [row.tolist() for row in arrays.op_outputs]
        self.birth: list[int] = []
        self.last: list[int] = []
        """First and last segment that touches a tensor in any case; the last is ``len(segments)`` if it is kept."""
        self.inner: list[bool] = []
        """True for tensors that only one part touches."""
        for tensor, (writers, readers) in enumerate(zip(arrays.producers, arrays.consumers, strict=True)):
            touched = segment[np.concatenate([writers, readers])]
            kept = bool(self.problem.kept[tensor])
            self.birth.append(int(segment[writers].min(initial=len(seen))) if len(writers) else -1)
            self.last.append(len(seen) if kept else int(touched.max(initial=-1)))
            owners = {self.segments[k][0] for k in touched.tolist()}
            self.inner.append(not kept and len(owners) == 1 and None not in owners)

    def schedule(self, options: Sequence[int]) -> Schedule:
        """Return the schedule of a choice, with implied frees."""
        computes: list[int] = []
        for part, which in self.segments:
            if part is None:
                computes.append(which)
            else:
                option = self.parts[part].options[options[part]]
                ops = option.forward if which == 0 else option.backward
                computes += [] if ops is None else ops.tolist()
        return Schedule.of_computes(self.problem.graph, computes, source="an option for each block")

    def alike(self, bound: int | None) -> Division | None:
        """Return the cheapest choice within the budget in which options have the same number; None if none fits."""
        found: list[Division] = []
        for number in range(max((len(part.options) for part in self.parts), default=0)):
            options = tuple(min(number, len(part.options) - 1) for part in self.parts)
            schedule = self.schedule(options)
            certificate = self.problem.validate(schedule)
            if certificate.accepted:
                found.append(Division(options, schedule, certificate, bound))
        return min(found, key=lambda each: each.certificate.cost or 0, default=None)

    @cached_property
    def memories(self) -> list[list[_Memory]]:
        """Memory of each option of each part."""
        return [[self._memory(number, option) for option in part.options] for number, part in enumerate(self.parts)]

    def _memory(self, part: int, option: Option, without: Iterable[int] = ()) -> _Memory:
        arrays = self.problem.graph.arrays
        live: set[int] = set()
        peaks = [0, 0]
        saved, needs, skipped = 0, frozenset[int](), set(without)
        for which in (1, 0):
            ops = option.forward if which == 0 else option.backward
            if ops is None or not len(ops):
                continue
            here = self.place[part, which]
            written = {tensor for op in ops.tolist() for tensor in self.outputs[op]}
            touched = written.union(*(self.inputs[op] for op in ops.tolist()))
            # memory of the surroundings, which the caller counts
            outer = skipped | {t for t in touched if not self.inner[t] and self.birth[t] < here < self.last[t]}
            live |= {t for t in written if not self.inner[t] and self.birth[t] == here and self.last[t] > here}
            held = sum(self.size[t] for t in live)
            for op in reversed(ops.tolist()):
                reads = [t for t in self.inputs[op] if t not in outer and t not in live]
                writes = [t for t in self.outputs[op] if t not in outer]
                dead = [t for t in writes if t not in live]
                held += sum(self.size[t] for t in reads)
                peaks[which] = max(peaks[which], held + sum(self.size[t] for t in dead) + int(arrays.workspace[op]))
                live.update(reads)
                held -= sum(self.size[t] for t in writes if t in live)
                live.difference_update(writes)
            if which == 1:
                needs = frozenset(t for t in live if not self.inner[t] and self.last[t] < here)
                live = {t for t in live if self.inner[t] or (self.birth[t] == self.place[part, 0] and t in needs)}
                saved = sum(self.size[t] for t in live if self.inner[t])
        cost = sum(int(arrays.cost[ops].sum()) for ops in (option.forward, option.backward) if ops is not None)
        return _Memory(cost, saved, peaks[0], peaks[1], needs)

    def choice(self, deadline: Deadline, threads: int, budget: int | None) -> tuple[tuple[int, ...] | None, int | None]:
        """Return an option of each part, and the least cost of any choice; None for what is unknown.

        `budget`: None for the least peak.
        """
        ties: dict[Hashable, list[int]] = {}
        for number, part in enumerate(self.parts):
            ties.setdefault(part.tie, []).append(number)
        model, takes = Model("one option for each part"), dict[Hashable, Vars]()
        costs, columns = [], []
        for name, numbers in ties.items():
            block = model.booleans(f"take {len(takes)}", len(self.parts[numbers[0]].options))
            takes[name] = block
            model.add(
                Linear.rows(f"one of {len(takes)}", np.zeros(len(block)), block.index, 1, lower=1, upper=1, num_rows=1)
            )
            columns += block.index.tolist()
            costs += [sum(self.memories[n][k].cost for n in numbers) for k in range(len(block))]
        take = [takes[part.tie].index for part in self.parts]
        self._limit(model, take, budget)
        fixed = self.problem.graph.base_cost - sum(
            int(self.problem.graph.arrays.cost[part.group.ops].sum()) for part in self.parts
        )
        scale = max(1.0, max(costs, default=1) / 1e4)
        if budget is not None:
            model.minimize(columns, np.array(costs) / scale)
        raw = Highs().solve(model, SolveOptions(deadline, threads, relative_gap=GAP))
        if raw.status is Status.INFEASIBLE or raw.values is None:
            return None, None
        values = raw.values
        least = None if budget is None or raw.bound is None else fixed + math.ceil(raw.bound * scale * (1 - 1e-9))
        return tuple(int(np.argmax(values[index])) for index in take), least

    def _limit(self, model: Model, take: Sequence[np.ndarray], budget: int | None) -> None:
        """Add the memory of each segment: at most the budget, or the variable to minimise."""
        rows = _Rows([], [], [])
        base = self._base()
        saved = model.continuous("saved", len(self.parts), 0, math.inf)
        spans = [(self.place[n, 0], self.place.get((n, 1), -1)) for n in range(len(self.parts))]
        for number, options in enumerate(self.memories):
            rows.add([(saved.index[number], 1.0), *((take[number][k], -o.saved) for k, o in enumerate(options))], 0, 0)
        later = self._optional(model, rows, take, spans)
        least = None if budget is not None else model.continuous("peak", 1, 0, math.inf)
        if least is not None:
            model.minimize(least.index, 1.0)
        end = math.inf if budget is None else float(budget - self.problem.constant_bytes)
        for here, (part, which) in enumerate(self.segments):
            terms: list[tuple[int, float]] = [] if least is None else [(int(least.index[0]), -1.0)]
            terms += [(saved.index[n], 1.0) for n, (ahead, back) in enumerate(spans) if ahead < here < back]
            upper = (end if budget is not None else 0.0) - base[here]
            held = [(t, column) for t, (first, reader), column in later if first < here < reader]
            mine: set[int] = set()
            if part is not None:
                mine = {t for option in self.memories[part] for t in option.needs} if which else set()
                peaks = [o.backward if which else o.forward for o in self.memories[part]]
                outer = [(column, float(self.size[t])) for t, column in held if t not in mine]
                rows.add([*terms, *outer, *zip(take[part], map(float, peaks), strict=True)], -math.inf, upper)
                again = {t for t, _ in held} & mine
                if again:  # needed here and by a later reader
                    peaks = [self._memory(part, o, again).backward for o in self.parts[part].options]
                    outer = [(column, float(self.size[t])) for t, column in held]
                    rows.add([*terms, *outer, *zip(take[part], map(float, peaks), strict=True)], -math.inf, upper)
            else:
                outer = [(column, float(self.size[t])) for t, column in held]
                rows.add([*terms, *outer], -math.inf, upper)
        model.add(rows.record("memory"))

    def _optional(
        self, model: Model, rows: _Rows, take: Sequence[np.ndarray], spans: Sequence[tuple[int, int]]
    ) -> list[tuple[int, tuple[int, int], int]]:
        """Return tensors that only some options keep: tensor, segments between which it is kept, variable.

        A tensor with several such readers has an entry for each; those behind count one another's bytes once.
        """
        readers: dict[int, list[int]] = {}
        for number, options in enumerate(self.memories):
            for tensor in {t for option in options for t in option.needs}:
                readers.setdefault(tensor, []).append(number)
        found = []
        for tensor, numbers in readers.items():
            numbers.sort(key=lambda n: spans[n][1])
            first = self.last[tensor]
            for position, number in enumerate(numbers):
                column = int(model.continuous(f"keep {tensor} {position}", 1, 0, 1).index[0])
                for behind in numbers[position:]:
                    needing = [k for k, option in enumerate(self.memories[behind]) if tensor in option.needs]
                    rows.add([(column, 1.0), *((take[behind][k], -1.0) for k in needing)], 0, math.inf)
                found.append((tensor, (first, spans[number][1]), column))
                first = spans[number][1] - 1  # at that reader itself the tensor may be kept for the next one
        return found

    def _base(self) -> list[float]:
        """Return the bytes that live in each segment in any case, apart from the part's own."""
        arrays, count = self.problem.graph.arrays, len(self.segments)
        change = np.zeros(count + 2, dtype=np.int64)
        for tensor, size in enumerate(self.size):
            if self.inner[tensor] or size == 0:
                continue
            begin, end = self.birth[tensor] + 1, self.last[tensor]
            if begin < end:
                change[begin] += size
                change[end] -= size
            for here in {self.birth[tensor], self.last[tensor]}:
                if 0 <= here < count and self.segments[here][0] is None:
                    change[here] += size
                    change[here + 1] -= size
        base = np.cumsum(change)[:count]
        return [
            float(held + (arrays.workspace[which] if part is None else 0))
            for held, (part, which) in zip(base.tolist(), self.segments, strict=True)
        ]


@dataclass(eq=False)
class _Rows:
    """Rows of one linear record."""

    terms: list[tuple[int, int, float]]
    lower: list[float]
    upper: list[float]

    def add(self, terms: Iterable[tuple[int, float]], lower: float, upper: float) -> None:
        """Add a row."""
        number = len(self.lower)
        self.terms += [(number, int(column), float(value)) for column, value in terms if value]
        self.lower.append(lower)
        self.upper.append(upper)

    def record(self, name: str) -> Linear:
        """Return all rows."""
        row, column, value = zip(*self.terms, strict=True) if self.terms else ((), (), ())
        return Linear.rows(name, row, column, value, lower=self.lower, upper=self.upper, num_rows=len(self.lower))
