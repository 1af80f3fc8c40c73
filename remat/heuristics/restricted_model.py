"""Formulation around one schedule: stated with room for more computes, and restricted to a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Formulation, Part, Preliminary
from remat.modeling import Model
from remat.modeling.restriction import Restricted, restrict
from remat.modeling.size import BUILT_BYTES
from remat.problem import Problem
from remat.problem.op_sequence import computed_ops
from remat.runtime.arrays import Float, Int
from remat.runtime.deadline import Deadline
from remat.runtime.resources import available_memory
from remat.schedule import OrderRule, Schedule


@dataclass(frozen=True)
class Statement:
    """Formulation of a problem with room for one more compute of each op than a schedule has."""

    formulation: Formulation
    room: Int | None
    """Computes of each op that the formulation can express and the problem allows, shape (ops,); None: no limit."""

    @classmethod
    def around(
        cls,
        kind: type[Formulation],
        options: Mapping[str, Any],
        problem: Problem,
        schedule: Schedule,
        *,
        deadline: Deadline | None = None,
        memory_limit: int | None = None,
    ) -> Statement:
        """State `problem` with the fewest computes that leave room around `schedule`.

        Building the model later raises OverdueError at the deadline. `memory_limit` is the limit of the call in bytes.
        Raise ProblemError for options unknown to the formulation, a problem that it cannot state, or a model that does
        not fit into memory.
        """
        formulation = _made(kind, options, problem, deadline, memory_limit)
        most = formulation.scope().max_computes
        if most is None:
            return cls(formulation, None)
        wanted = np.maximum(most, counts(problem, schedule) + 1).tolist()
        allowed = [
            w if limit is None else min(limit, w) for w, limit in zip(wanted, problem.compute_limits, strict=True)
        ]
        limits = {op.name: limit for op, limit in zip(problem.graph.ops, allowed, strict=True)}
        stated = Problem(
            problem.graph, problem.budget_bytes, problem.order, limits, problem.keep, problem.count_constant_memory
        )
        made = _made(kind, options, stated, deadline, memory_limit)
        return cls(made, np.array(allowed, dtype=np.int64))

    def crowded(self, problem: Problem, schedule: Schedule) -> bool:
        """Return True if `schedule` uses all room of an op for which the problem allows more computes."""
        if self.room is None:
            return False
        full = np.flatnonzero(counts(problem, schedule) >= self.room).tolist()
        return any((limit := problem.compute_limits[op]) is None or self.room[op] < limit for op in full)

    def expresses(self, schedule: Schedule) -> bool:
        """Return True if the formulation can express `schedule`."""
        try:
            self.formulation.encode(schedule)
        except ProblemError:
            return False
        return True

    @cached_property
    def model(self) -> Model:
        """Main model."""
        return self.formulation.build()

    @cached_property
    def preliminary(self) -> Preliminary | None:
        """Model of the least peak, if the formulation has one."""
        return self.formulation.preliminary()

    def cut(self, schedule: Schedule, part: Part, *, preliminary: bool = False) -> tuple[Restricted, Float]:
        """Restrict the main model around `schedule` to `part`; return it and its values for the schedule.

        With `preliminary`, restrict the model of the least peak; variables that the main model lacks stay free.
        """
        bounds, model = self.formulation.variable_bounds(schedule, part), self.model
        values = bounds.values
        if preliminary:
            assert self.preliminary is not None
            model, values = self.preliminary.model, self.preliminary.extend(values)
        more = slice(len(bounds.values), None)
        lower = np.concatenate([bounds.lower, model.lower[more]])
        upper = np.concatenate([bounds.upper, model.upper[more]])
        small = restrict(model, lower, upper, self.formulation.deadline)
        return small, small.reduce(values)


def _made(
    kind: type[Formulation], given: Mapping[str, Any], problem: Problem, deadline: Deadline | None,
    memory_limit: int | None,
) -> Formulation:  # fmt: skip
    """Make a formulation with options, and require memory for two models: the main and the preliminary one."""
    name, options = f"formulation {kind.name!r}", list[Any]()
    if kind.options_type is not None:
        try:
            options = [kind.options_type(**given)]
        except TypeError as error:
            raise ProblemError(f"{name} does not take these options: {error}", "no-options") from None
    elif given:
        raise ProblemError(f"{name} has no options, so there is no {next(iter(given))!r}", "no-options")
    formulation = kind(problem, *options)
    if deadline is not None:
        formulation.deadline = deadline
    size = formulation.estimate()
    why = "" if size is None else size.lacks_memory(available_memory(memory_limit), 2 * BUILT_BYTES)
    if why:
        raise ProblemError(
            f"the model of {formulation.name} for neighbourhoods is not built: it has {size} and {why}", "memory"
        )
    return formulation


def counts(problem: Problem, schedule: Schedule) -> Int:
    """Return the computes of each op; shape (ops,)."""
    return np.bincount(computed_ops(problem, schedule), minlength=len(problem.graph.ops)).astype(np.int64)


def staged(problem: Problem, schedule: Schedule) -> Schedule | None:
    """Return `schedule` with the recomputations of each stage in the reference order and at most once.

    None if the order is free, or first computes do not follow the reference order. The result computes no more, and
    may hold more.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> graph = unit_chain(3)
    >>> names = [graph.ops[i].name for i in (0, 1, 2, 1, 0, 1, 3, 4, 5, 6)]
    >>> again = Schedule.from_steps([("compute", name) for name in names])
    >>> [graph.op_index[name] for name in staged(Problem(graph), again).computes()]
    [0, 1, 2, 0, 1, 3, 4, 5, 6]
    """
    if problem.order is not OrderRule.FIXED:
        return None
    position = problem.graph.arrays.position
    sequence: list[int] = []
    stage: set[int] = set()
    done = 0
    for op in computed_ops(problem, schedule).tolist():
        at = int(position[op])
        if at > done:
            return None
        if at < done:
            stage.add(at)
            continue
        sequence += [*sorted(stage), at]
        stage.clear()
        done += 1
    return Schedule.of_computes(problem.graph, problem.graph.arrays.order[sequence], source=schedule.source)
