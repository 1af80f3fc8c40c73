"""All bounds that apply to a problem, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypedDict, Unpack

from remat.bounds.base import Bound, Measure
from remat.bounds.joint import joint_bound
from remat.bounds.lp import lp_relaxation
from remat.bounds.ordered_bound import ordered_bound
from remat.bounds.peak_bounds import cut_bound, structural_bound
from remat.bounds.stage_bound import Programmes, stage_bounds
from remat.errors import ProblemError
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE, covers
from remat.problem.training_step import training_step
from remat.runtime.deadline import Deadline
from remat.runtime.text import short
from remat.schedule import OrderRule

#: Number of ops above which the stage bound precedes the other bounds on cost: it starts with few events, so its
#: programme stays small, while the others may exceed the deadline.
MANY_OPS = 5_000
#: Its share of the time in that case.
FIRST_SHARE = 0.7


class BoundOptions(TypedDict, total=False):
    """Options of :func:`bounds`, :func:`bounds_in_turn` and :func:`best_bound`.

    Attributes
    ----------
    memory_limit : int, optional
        Bytes that a linear programme may take. One that needs more than this, or more than is available, is skipped,
        and the bound's note gives the reason.
    relaxations : sequence of str
        Formulations whose linear relaxations are added as bounds; staged ones bound staged schedules only.
    enough : int, optional
        Cost (time) of a known schedule. It speeds up the stage bound; :func:`best_bound` ends once no schedule can be
        cheaper.
    isolate : bool
        Compute them in a child process (:mod:`remat.bounds.isolated`), which may hold `memory_limit` in total.
    programmes : StageProgrammes or TransferSearch, optional
        Programmes of this problem that the stage bound resumes, unless in a child process.
    """

    threads: int | None
    memory_limit: int | None
    relaxations: Sequence[str]
    enough: int | None
    isolate: bool
    programmes: Programmes | None


def bounds(problem: Problem, deadline: float | Deadline | None = None, **options: Unpack[BoundOptions]) -> list[Bound]:
    """Return every bound that applies to the schedules of `problem`, cheapest first.

    The structural bound and the cut bound on the peak come first. If there is a budget, and the structural bound does
    not exceed it, the bounds on cost follow: the joint bound, and for a fixed order the stage bound. The bounds still
    to come share the remaining time, and the stage bound has half of it. In a free order the ordered bound has what the
    joint bound leaves, except on training graphs, where the latter is almost exact. Beyond 5,000 ops the stage bound
    precedes the cut bound and the joint bound, since its programmes stay small, and the ordered bound is left out. If
    tensors can be moved to a host, only the structural bound applies and, for a fixed order, the transfer bound on the
    time.

    Parameters
    ----------
    deadline : float, Deadline or None
        Seconds for all bounds, or a deadline whose clock is running.
    **options
        See :class:`BoundOptions`.

    Returns
    -------
    list of Bound
        Each with its scope. Only the cut bound and linear relaxations may have a narrower scope than the problem.

    Raises
    ------
    RematError
        If a formulation in `relaxations` does not exist, or cannot state the problem.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> for bound in bounds(Problem(unit_chain(8), 4)):
    ...     print(bound)
    peak ≥ 3 bytes for any order, any number of computes; by the structural bound
    peak ≥ 10 bytes, more than the budget, for any order, at most 1 compute per op; by the cut bound
    cost ≥ 23 (overhead 35.29 %) for any order, any number of computes; by the joint bound
    cost ≥ 26 (overhead 52.94 %) for fixed order, any number of computes; by the stage bound
    """
    found = bounds_in_turn(problem, deadline, **options)
    return list({bound.kind: bound for bound in found}.values())


def bounds_in_turn(
    problem: Problem, deadline: float | Deadline | None = None, **options: Unpack[BoundOptions]
) -> Iterator[Bound]:
    """Yield the bounds of :func:`bounds` as they are found; a bound replaces an earlier one of the same kind.

    Each bound is computed only when the iterator is advanced, so a caller can stop at any time.
    """
    relaxations = options.get("relaxations", ())
    if isinstance(relaxations, str):
        raise ProblemError(f"relaxations must be a list of formulations, not the single name {short(relaxations)}")
    clock = Deadline.of(deadline)
    threads, memory_limit = options.get("threads"), options.get("memory_limit")
    if options.get("isolate"):
        from remat.bounds.isolated import isolated_bounds

        alone: BoundOptions = {**options, "isolate": False, "programmes": None, "relaxations": tuple(relaxations)}
        yield from isolated_bounds(partial(bounds_in_turn, problem, clock, **alone), problem, clock, memory_limit)
        return
    first = structural_bound(problem)
    yield first
    some = problem.budget_bytes is not None and not first.infeasible
    fixed = some and problem.order is OrderRule.FIXED
    if not problem.can_move:
        problem = problem.one_memory
    stage = partial(
        stage_bounds, problem, enough=options.get("enough"), threads=threads, memory_limit=memory_limit,
        programmes=options.get("programmes"),
    )  # fmt: skip
    if problem.can_move:  # the others hold for schedules in one memory
        if fixed and problem.objective.includes_time:
            yield from stage(deadline=clock)
        return
    once: list[Callable[..., Bound]] = [partial(cut_bound, problem)]
    if some:
        once.append(partial(joint_bound, problem, threads=threads, memory_limit=memory_limit))
        once += [
            partial(lp_relaxation, problem, name, threads=threads, memory_limit=memory_limit) for name in relaxations
        ]
    large = len(problem.graph.ops) > MANY_OPS
    if fixed and large:
        yield from stage(deadline=clock.earlier(FIRST_SHARE * clock.remaining))
    weight = len(once) * (2 if fixed and not large else 1)
    for left, make in zip(range(weight, 0, -1), once, strict=False):
        yield make(deadline=clock.earlier(clock.remaining / left))
    if fixed and not large:
        yield from stage(deadline=clock)
    if some and not fixed and not large and training_step(problem) is None:
        yield ordered_bound(
            problem, enough=options.get("enough"), deadline=clock, threads=threads, memory_limit=memory_limit
        )


def best_bound(
    problem: Problem,
    deadline: float | Deadline | None = None,
    *,
    on_bound: Callable[[Bound], bool | None] | None = None,
    on_note: Callable[[str], object] | None = None,
    **options: Unpack[BoundOptions],
) -> Bound:
    """Return the best bound on the cost or time of the schedules of `problem`, or a proof that none exists.

    Parameters
    ----------
    deadline : float, Deadline or None
        Seconds for all bounds, or a deadline whose clock is running.
    on_bound : callable, optional
        Called with each bound that is better than the last; if it returns true, that bound is returned.
    on_note : callable, optional
        Called with the reason when a bound is skipped or stopped early.
    **options
        See :class:`BoundOptions`.

    Returns
    -------
    Bound
        On cost, or on the time on a machine with a host; or on the peak, if that proves that no schedule keeps the
        budget.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> best_bound(Problem(unit_chain(8), 4)).value, best_bound(Problem(unit_chain(8), 2)).infeasible
    (26, True)
    """
    base = problem.graph.base_cost
    measure = Measure(problem.objective.key) if problem.can_move else Measure.COST
    best = Bound(base, "computing each op once", EVERY_SCHEDULE, base, measure=measure)
    enough = options.get("enough")
    if enough is not None and base >= enough:
        return best
    for bound in bounds_in_turn(problem, deadline, **options):
        if bound.note and on_note is not None:
            on_note(f"{bound.kind}: {bound.note}")
        if not applies(bound, problem):
            continue
        if bound.infeasible:
            return bound
        if bound.measure is measure and (bound.value or 0) > (best.value or 0):
            best = bound
            if (on_bound is not None and on_bound(best)) or (enough is not None and (best.value or 0) >= enough):
                break
    return best


def applies(bound: Bound, problem: Problem) -> bool:
    """Return True if the scope of `bound`, found for `problem`, contains every schedule that `problem` allows.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(8))
    >>> applies(cut_bound(problem), problem), applies(structural_bound(problem), problem)
    (False, True)
    """
    return covers(bound.scope, problem)
