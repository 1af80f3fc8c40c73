"""Schedules of ``save_and_offload_only_these_names``: each name is saved, moved to the host or recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from remat.graphs import ComputeGraph
from remat.jax.saved_names import SavedNames
from remat.runtime.deadline import Deadline
from remat.schedule import Certificate, Schedule
from remat.schedule.saved_sets import with_moves

#: Most names whose choices are all tried: 729 of them.
MOST_EXACT = 6


class Choice(NamedTuple):
    """Names that are saved on the device, and names that move to the host; others are recomputed."""

    saved: frozenset[str] = frozenset()
    moved: frozenset[str] = frozenset()


class MovedNames:
    """Choices for the names of a function, and their schedules on a machine.

    Parameters
    ----------
    sets : SavedNames
        The saved sets; its problem has a machine.
    """

    def __init__(self, sets: SavedNames) -> None:
        self.sets, self.names, self.problem = sets, sets.names, sets.problem
        self.certificate = lru_cache(maxsize=None)(self._certificate)

    def schedule(self, choice: Choice, computes: Sequence[str] | None = None) -> Schedule:
        """Return the schedule of a choice; `computes`: ops in JAX's order, by default those of :class:`SavedNames`."""
        if computes is None:
            computes = self.sets.schedule(choice.saved | choice.moved).computes()
        graph = self.problem.graph
        moved = frozenset[str]().union(*(self.sets.tensors[name] for name in choice.moved))
        return with_moves(graph, computes, _moves(graph, computes, moved), source="jax.checkpoint")

    def _certificate(self, choice: Choice) -> Certificate:
        return self.problem.validate(self.schedule(choice))

    def best(self, deadline: Deadline) -> tuple[Choice | None, bool]:
        """Return the fastest choice within budget and host, or None, and True if all choices were tried."""
        if len(self.names) > MOST_EXACT:
            return self._searched(deadline), False
        found = [each for each in self._choices() if self.certificate(each).accepted]
        return min(found, key=self._rank, default=None), True

    def least(self) -> tuple[int, Choice]:
        """Return the least peak of the choices tried, if none fits, and its choice."""
        exact = len(self.names) <= MOST_EXACT
        tried = list(self._choices()) if exact else [Choice(), Choice(frozenset(self.names))]
        return min(((self.certificate(each).peak, each) for each in tried), key=lambda pair: pair[0])

    def _rank(self, choice: Choice) -> tuple[int, int, int]:
        return *self.problem.objective.rank(self.certificate(choice)), len(choice.moved)

    def _choices(self) -> Iterator[Choice]:
        for kinds in product("srm" if self.problem.can_move else "sr", repeat=len(self.names)):
            by = {kind: frozenset(n for n, k in zip(self.names, kinds, strict=True) if k == kind) for kind in "sm"}
            yield Choice(by["s"], by["m"])

    def _searched(self, deadline: Deadline) -> Choice | None:
        """Move or recompute names until budget and host are kept, the most bytes for the least time first.

        Then change single names as long as that saves time.
        """
        choice = Choice(frozenset(self.names))
        while not self.certificate(choice).accepted:
            before = self.certificate(choice)
            if not choice.saved:
                return self._fitted_without_host(choice)

            def price(each: Choice, before: Certificate = before) -> float:
                after = self.certificate(each)
                return (self.problem.value(after) - self.problem.value(before) + 1) / max(before.peak - after.peak, 0.5)

            choice = min((each for each in self._neighbours(choice) if len(each.saved) < len(choice.saved)), key=price)
        while not deadline.expired:
            better = next(
                (each for each in self._neighbours(choice)
                 if self.certificate(each).accepted and self._rank(each) < self._rank(choice)), None,
            )  # fmt: skip
            if better is None:
                break
            choice = better
        return choice

    def _fitted_without_host(self, choice: Choice) -> Choice | None:
        """Return the choice that recomputes everything if it fits."""
        return Choice() if choice.moved and self.certificate(Choice()).accepted else None

    def _neighbours(self, choice: Choice) -> Iterator[Choice]:
        for name in self.names:
            saved, moved = choice.saved - {name}, choice.moved - {name}
            for each in (Choice(saved, moved), Choice(saved, moved | {name}), Choice(saved | {name}, moved)):
                if each != choice and (self.problem.can_move or not each.moved):
                    yield each


def _moves(graph: ComputeGraph, computes: Sequence[str], moved: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Return the positions of the first compute of each moved tensor, and of its first use in the backward pass.

    A tensor that the backward pass recomputes first does not move.
    """
    ops = [graph.ops[graph.op_index[name]] for name in computes]
    written: dict[str, int] = {}
    first_use: dict[str, int] = {}
    begun = False
    for place, op in enumerate(ops):
        begun |= op.phase == "backward" or all(tensor in written for tensor in op.outputs)
        for tensor in op.outputs:
            written.setdefault(tensor, place)
        if begun:
            for tensor in moved.intersection((*op.inputs, *op.outputs)):
                first_use.setdefault(tensor, place)
    return {
        tensor: (written[tensor], place)
        for tensor, place in first_use.items()
        if tensor in ops[place].inputs and written[tensor] < place
    }
