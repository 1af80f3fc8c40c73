"""Scopes: the sets of schedules that claims of optimality and bounds cover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from remat.problem.problem import Problem
from remat.runtime.text import counted
from remat.schedule import OrderRule
from remat.schedule.certificate import Certificate


@dataclass(frozen=True)
class Scope:
    """Set of schedules that a claim of optimality or a bound covers.

    Attributes
    ----------
    order : OrderRule
        Fixed: first computes follow the reference order.
    staged : bool
        True if recomputations are confined to stages: stage ``k`` ends with the first compute of the ``k``-th op, and
        inside a stage every earlier op runs at most once, in the reference order.
    max_computes : int or None
        Largest number of computes of one op; None: not limited (beyond what stages allow).
    notes : tuple of str
        Further restrictions: members of :class:`Restriction`, :class:`AtMost` for those with a number, or other text of
        plug-ins, which is not interpreted.
    """

    order: OrderRule
    staged: bool
    max_computes: int | None = None
    notes: tuple[Restriction | AtMost | str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the scope as JSON values."""
        return {
            "order": str(self.order), "staged": self.staged, "max_computes": self.max_computes,
            "notes": [str(note) for note in self.notes],
            "at_most": {str(note.limit): note.most for note in self.notes if isinstance(note, AtMost)},
        }  # fmt: skip

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Scope:
        """Return the scope that :meth:`as_dict` described.

        Examples
        --------
        >>> Scope.from_dict(EVERY_SCHEDULE.as_dict()) == EVERY_SCHEDULE
        True
        """
        limits = [AtMost(Limit(limit), most) for limit, most in told.get("at_most", {}).items()]
        words = {str(each): each for each in (*Restriction, *limits)}
        notes = tuple(words.get(note, note) for note in told["notes"])
        return cls(OrderRule(told["order"]), told["staged"], told["max_computes"], notes)

    def __str__(self) -> str:
        parts = ["fixed order" if self.order is OrderRule.FIXED else "any order"]
        if self.staged:
            parts.append("staged recomputation")
        most, plural = self.max_computes, "s" * (self.max_computes != 1)
        parts.append("any number of computes" if most is None else f"at most {most} compute{plural} per op")
        return ", ".join([*parts, *map(str, self.notes)])


class Restriction(StrEnum):
    """Restriction of a scope beyond order, stages and computes; the value is its text."""

    OWN_LIMITS = "limits of computes by op"
    """Limits of the problem itself, where they differ between ops: no restriction for that problem."""
    FILLED_ONCE = "each accumulation buffer filled once"
    """No buffer is dropped and filled again."""
    CONTRIBUTE_ONCE = "each op that contributes to an accumulation buffer runs once"
    """No buffer is filled again, and no such op runs again for another output."""
    STAGED_TRANSFERS = "tensors written after their first computes and fetched where their writers would run again"
    """Copies stay on the host to the end."""
    WAITING_GROUPS = "groups that begin when all they read has arrived, and move what they save as a whole"
    """By one option, of the first run."""
    COMPOSITES = "groups of ops run by their given options"
    """Ops run in groups, each group by one of its options."""
    POLICIES = "selective checkpointing of the given regions"
    """One replay of each region at its entry, of all that is not saved; see :mod:`remat.problem.regions`."""
    ALL_CHECKPOINTED = "each region checkpointed"
    """No region runs without a checkpoint."""
    NO_AHEAD = "recomputation in the stage that needs it"
    """Nothing is recomputed in an earlier stage than the one that reads it."""


class Limit(StrEnum):
    """Quantity that a restriction with a number limits."""

    COST = "cost"
    STAGES = "stages"
    FETCHES = "fetches"
    WRITES = "writes"


@dataclass(frozen=True)
class AtMost:
    """Restriction with a number.

    Examples
    --------
    >>> print(AtMost(Limit.COST, 12000), AtMost(Limit.STAGES, 3), AtMost(Limit.FETCHES, 2), sep="; ")
    cost at most 12,000; at most 3 stages, each in the reference order; at most 2 fetches of each tensor
    """

    limit: Limit
    most: int

    def __str__(self) -> str:
        if self.limit is Limit.COST:
            return f"cost at most {self.most:,}"
        if self.limit is Limit.STAGES:
            return f"at most {self.most} stages, each in the reference order"
        moves = {Limit.FETCHES: "fetch", Limit.WRITES: "write"}
        return f"at most {counted(self.most, moves[self.limit])} of each tensor"


#: Every schedule of the graph, under any rules.
EVERY_SCHEDULE = Scope(OrderRule.FREE, staged=False)


def own_scope(problem: Problem) -> Scope:
    """Return the scope of exactly the schedules within the rules of `problem`.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> str(own_scope(Problem(unit_chain(2), max_computes=2)))
    'fixed order, at most 2 computes per op'
    """
    return scope_within_limits(problem, problem.order)


def scope_within_limits(problem: Problem, order: OrderRule) -> Scope:
    """Return the scope of all schedules with that rule of order and the compute limits of `problem`."""
    limit = problem.max_computes
    if limit is None or isinstance(limit, int):
        return Scope(order, False, limit)
    return Scope(order, False, None, (Restriction.OWN_LIMITS,))


def covers(scope: Scope, problem: Problem) -> bool:
    """Return True if `scope`, that of a claim about `problem`, contains every schedule within its rules.

    A claim about the fixed order covers a free one if the graph has no other order.
    """
    limited = scope.max_computes is not None and any(
        limit is None or limit > scope.max_computes for limit in problem.compute_limits
    )
    narrower = scope.order is OrderRule.FIXED and problem.order is OrderRule.FREE and not problem.graph.has_one_order
    return not (scope.staged or set(scope.notes) - {Restriction.OWN_LIMITS} or limited or narrower)


def restrictions_hold(scope: Scope, certificate: Certificate) -> bool:
    """Return True if a schedule within the rules of a problem certainly meets the restrictions in `scope.notes`.

    Restrictions that a certificate does not show (buffers, stages, text) count as violated.
    """
    return all(
        note is Restriction.OWN_LIMITS
        or (isinstance(note, AtMost) and note.limit is Limit.COST and certificate.cost <= note.most)
        for note in scope.notes
    )
