"""Largest batch and longest sequence within a memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from remat.errors import CaptureError, GraphError, RematError
from remat.experiments.max_batch import most_cost
from remat.problem import Problem
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Schedule
from remat.schedule.certificate import Certificate
from remat.solving.solve import solve
from remat.solving.stop import AnyOf, MaxSeconds, TargetCost
from remat.torch.private import pytree

#: Times that the extrapolation of an eager step to the memory is refined by a run at the size that it gives.
REFINEMENTS = 5
#: Shares of an extrapolated size at which it is certified.
CONFIRMED = (1.0, 0.98, 0.9)
#: Sizes beyond this are not searched.
LARGEST = 2**40


class Limits(NamedTuple):
    """Seconds and options of searches."""

    seconds: float
    solver: SolveOptions


@dataclass(frozen=True)
class Dimension:
    """A size of the sample that can grow: the batch or the length of sequences.

    Attributes
    ----------
    name : str
        ``"batch"`` or ``"sequence"``.
    size : int
        Size in the sample.
    places : tuple of (int, int)
        Positions of tensors among the leaves of ``(args, kwargs)``, and their axes of that size.
    """

    name: str
    size: int
    places: tuple[tuple[int, int], ...]

    def sample(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], size: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments at another size, as new tensors of the same kind."""
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        for number in {number for number, _ in self.places}:
            shape = list(leaves[number].shape)
            for which, axis in self.places:
                if which == number:
                    shape[axis] = size
            leaves[number] = leaves[number].detach().new_empty(shape).requires_grad_(leaves[number].requires_grad)
        return pytree.tree_unflatten(leaves, spec)


def dimensions(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Dimension, ...]:
    """Return the sizes of a sample that can grow.

    The batch is axis 0 of the first tensor, and of all others of that size there. If the first tensor has two axes and
    integers (tokens), its axis 1 is the length of sequences, with all later axes of that size in other tensors.
    """
    tensors = [
        (number, leaf)
        for number, leaf in enumerate(pytree.tree_leaves((tuple(args), dict(kwargs))))
        if isinstance(leaf, torch.Tensor) and leaf.dim()
    ]
    if not tensors:
        return ()
    first = tensors[0][1]
    batch = first.shape[0]
    found = [Dimension("batch", batch, tuple((number, 0) for number, leaf in tensors if leaf.shape[0] == batch))]
    if first.dim() == 2 and not first.is_floating_point():
        length = first.shape[1]
        places = [(n, axis) for n, leaf in tensors for axis in range(1, leaf.dim()) if leaf.shape[axis] == length]
        found.append(Dimension("sequence", length, tuple(places)))
    return tuple(found)


@dataclass(frozen=True)
class Largest:
    """Largest size of one dimension within a memory; the other dimension is that of the sample.

    Attributes
    ----------
    dimension : str
        ``"batch"`` or ``"sequence"``.
    sample : int
        Size in the sample.
    plain : int or None
        Largest size that fits without recomputation; 0 if none does, None if unknown.
    size : int or None
        Largest size for which a schedule was found and certified that costs at most one extra forward pass; 0 if none
        was, None if unknown.
    overhead : float or None
        Extra cost of that schedule in %.
    certificate : Certificate or None
        Of that schedule, for the step captured at that size.
    limit : int or None
        Beyond this size, one op alone seems too large. It comes from extrapolated sizes, so it is no proof; None if
        unknown.
    note : str
        Why a size is unknown, or what limits it other than memory.
    """

    dimension: str
    sample: int
    plain: int | None
    size: int | None
    overhead: float | None = None
    certificate: Certificate | None = None
    limit: int | None = None
    note: str = ""


@dataclass
class Family:
    """Steps of one module at several sizes of one dimension.

    Parameters
    ----------
    dimension : Dimension
    problem_at : callable
        Captures the step at a size and returns its problem without a budget.
    total_at : callable
        Returns the bytes of an eager step at a size, or None if unknown.
    memory, resident : int
        Bytes of the device, and of the optimizer's state.
    """

    dimension: Dimension
    problem_at: Callable[[int], Problem]
    total_at: Callable[[int], int | None]
    memory: int
    resident: int

    def __post_init__(self) -> None:
        self._problems: dict[int, Problem] = {}
        self._predicted: dict[int, Problem] = {}
        self._totals: dict[int, int | None] = {}
        self.refused = ""

    def problem(self, size: int) -> Problem | None:
        """Return the problem at a size with the rest of the memory as budget; None if the module refuses the size."""
        if size not in self._problems:
            try:
                self._problems[size] = self.problem_at(size)
            except CaptureError as error:
                self._refuse(size, error)
                return None
        return self._within_memory(self._problems[size])

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Sizes through which numbers are extrapolated; a size of 1 often has another graph."""
        first = max(self.dimension.size, 2)
        return first, 2 * first, 3 * first

    def predicted(self, size: int) -> Problem | None:
        """Return the problem at a size, extrapolated from those at three sizes; None if the module refuses one.

        Raise GraphError if the ops are not the same at all three.
        """
        if size not in self._predicted:
            known = [each for each in map(self.problem, self.sizes) if each is not None]
            if len(known) < 3:
                return None
            self._predicted[size] = _extrapolated_problem(self.sizes, known, size)
        return self._within_memory(self._predicted[size])

    def _within_memory(self, problem: Problem) -> Problem:
        """Return a problem with the memory that state and constants leave as budget."""
        return replace(problem, budget=max(self.memory - self.resident - problem.graph.constant_memory, 0))

    def _refuse(self, size: int, error: CaptureError) -> None:
        self.refused = f"the module refuses {self.dimension.name} {size:,}: {error}"

    def structurally_fits(self, size: int) -> bool:
        """Return True unless some op of the extrapolated step alone exceeds the memory."""
        problem = self.predicted(size)
        return problem is not None and problem.structural_peak <= (problem.budget_bytes or 0)

    def plain(self) -> int | None:
        """Return the largest size whose eager step fits; None if unknown."""
        points = {size: self._total(size) for size in self.sizes}
        near = self.sizes[0]
        for _ in range(REFINEMENTS):
            known = {size: total for size, total in points.items() if total is not None}
            if len(known) < 3:
                return None
            nearest = sorted(known, key=lambda size: abs(size - near))[:3]
            values = [known[size] for size in nearest]
            near = largest(lambda size: extrapolated(nearest, values, size) <= self.memory, near=near)  # noqa: B023
            if near in points or near == 0:
                break
            points[near] = self._total(near)
            if points[near] is None:
                break

        def fits(size: int) -> bool:
            total = self._total(size)
            return total is not None and total <= self.memory

        return largest(fits, near=near)

    def _total(self, size: int) -> int | None:
        if size not in self._totals:
            try:
                self._totals[size] = self.total_at(size)
            except CaptureError as error:
                self._refuse(size, error)
                self._totals[size] = None
        return self._totals[size]


def _extrapolated_problem(places: Sequence[int], known: Sequence[Problem], size: int) -> Problem:
    """Return the problem at a size, with bytes and costs extrapolated from those at three places."""
    graphs = [each.graph for each in known]
    if any(each.op_names != graphs[0].op_names for each in graphs):
        raise GraphError("the ops of the step change with this size")
    graph = graphs[0]
    bytes_of = [{tensor.name: tensor.size for tensor in each.tensors} for each in graphs]

    def at(values: Sequence[int]) -> int:
        return max(extrapolated(places, values, size), 0)

    grown = replace(
        graph,
        tensors=[replace(each, size=at([sizes[each.name] for sizes in bytes_of])) for each in graph.tensors],
        ops=[
            replace(op, cost=at([each.ops[k].cost for each in graphs]),
                    workspace=at([each.ops[k].workspace for each in graphs]), in_place=())
            for k, op in enumerate(graph.ops)
        ],
        constant_memory=at([each.constant_memory for each in graphs]),
    )  # fmt: skip
    return replace(known[0], graph=grown, budget=None)


def extrapolated(places: Sequence[int], values: Sequence[int], at: int) -> int:
    """Return the value at a place of the polynomial of degree two through three points, rounded up."""
    (x, y, z), (u, v, w) = places, values
    numerator = (
        u * (at - y) * (at - z) * (y - z) - v * (at - x) * (at - z) * (x - z) + w * (at - x) * (at - y) * (x - y)
    )
    denominator = (x - y) * (x - z) * (y - z)
    return -(-numerator // denominator)


def largest(fits: Callable[[int], bool], *, near: int) -> int:
    """Return the largest size that fits, searching up or down from a guess by doubling steps; 0 if none does.

    It assumes that all smaller sizes fit, too.
    """
    low, high = 0, 0
    step, size = 1, max(near, 1)
    if fits(size):
        low = size
        while low < LARGEST and fits(size := low + step):
            low, step = size, 2 * step
        high = size
    else:
        high = size
        while high > 1 and not fits(size := max(high - step, 1)):
            high, step = size, 2 * step
        low = size if high > 1 else 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_size(family: Family, schedules: Iterable[Schedule], limits: Limits) -> Largest:
    """Return the largest sizes of a family, with and without recomputation.

    Schedules of the sample's step are translated first; then larger sizes are solved until the deadline. Both use
    extrapolated steps. The answer is certified on the step captured at its size.

    Parameters
    ----------
    schedules : iterable of Schedule
        Schedules of the step at the sample's size.
    limits : Limits
        With a deadline on the clock of ``time.monotonic``.
    """
    dimension = family.dimension
    plain = family.plain()
    try:
        if family.predicted(family.sizes[0]) is None:
            return Largest(dimension.name, dimension.size, plain, None, note=family.refused)
        limit = largest(family.structurally_fits, near=max(plain or 0, family.sizes[0]))
        search = _Recomputation(family)
        for schedule in schedules:
            search.take(schedule, max(search.size, family.sizes[0]))
        search.improve(limits, limit)
        size, certificate = search.confirmed()
    except RematError as error:
        return Largest(dimension.name, dimension.size, plain, None, note=str(error))
    if certificate is None and plain:  # the eager step itself needs no schedule
        size = plain
    overhead = None if certificate is None else certificate.overhead
    return Largest(dimension.name, dimension.size, plain, size, overhead, certificate, max(limit, size), family.refused)


class _Recomputation:
    """Search for the largest size with a schedule that costs at most one extra forward pass."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.size = 0
        self._schedule: Schedule | None = None

    def take(self, schedule: Schedule, near: int) -> None:
        """Extrapolate the largest size at which a schedule fits and is cheap enough."""

        def fits(size: int) -> bool:
            problem = self._family.predicted(size)
            return problem is not None and _fits(problem, schedule) is not None

        size = largest(fits, near=near)
        if size > self.size:
            self.size, self._schedule = size, schedule

    def improve(self, limits: Limits, limit: int) -> None:
        """Solve sizes between the best one and the limit, until none is left or time is over."""
        low, high = self.size, limit + 1
        while high - low > 1 and (left := limits.seconds - time.monotonic()) > 1:
            size = (low + high) // 2
            problem = self._family.predicted(size)
            assert problem is not None
            most = most_cost(problem.graph)
            found = solve(problem, "auto", stop=AnyOf(TargetCost(most), MaxSeconds(left / 2)), options=limits.solver)
            if found.schedule is not None and _fits(problem, found.schedule) is not None:
                self.take(found.schedule, size)
                low = max(self.size, size)
            else:
                high = size

    def confirmed(self) -> tuple[int, Certificate | None]:
        """Certify the best schedule on the step captured at its size, or at a slightly smaller one; 0 if it fails."""
        if self._schedule is None:
            return 0, None
        for share in CONFIRMED:
            size = int(share * self.size)
            problem = self._family.problem(size) if size else None
            if problem is not None and set(problem.graph.op_names) == set(self._schedule.computes()):
                certificate = _fits(problem, self._schedule)
                if certificate is not None:
                    return size, certificate
        return 0, None


def _fits(problem: Problem, schedule: Schedule) -> Certificate | None:
    """Return the certificate of a schedule that keeps the budget and costs at most one extra forward pass."""
    found = problem.validate(schedule.signed_for(problem.graph))
    return found if found.accepted and found.cost <= most_cost(problem.graph) else None
