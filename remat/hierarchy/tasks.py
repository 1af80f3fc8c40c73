"""Sub-problem of one group as a task for this process or any executor."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from remat.errors import RematError
from remat.formulations.composites import Composite
from remat.hierarchy.effort import Effort, Solvers
from remat.hierarchy.group_options import Budgets, options_of
from remat.hierarchy.subproblem import SubProblem
from remat.runtime.deadline import Deadline

#: Seconds between two checks of the deadline while workers run.
CHECK_INTERVAL = 0.2

#: Forward and backward sequence of an option, in op numbers of the sub-problem.
Sequences = tuple[list[int], list[int] | None]


@dataclass(frozen=True)
class Answer:
    """Options of a group, and the solvers that found them."""

    options: list[Sequences]
    solvers: Solvers = field(default_factory=Solvers)


@dataclass(frozen=True, eq=False)
class Task:
    """Search for the options of one group."""

    part: SubProblem
    budgets: Budgets
    effort: Effort
    composites: tuple[Composite, ...] = field(default=())
    """Children with their options, in op numbers of the sub-problem."""

    @cached_property
    def key(self) -> str:
        """Hash (hex) of everything that determines the answer except time: equal for identical groups."""
        below = [
            [c.forward.tolist(), c.backward.tolist(), [[o.forward.tolist(), _listed(o.backward)] for o in c.options]]
            for c in self.composites
        ]
        effort, call = self.effort, self.effort.call
        how = [
            self.budgets.peaks, self.budgets.saved, [described(method) for method in effort.methods], effort.seconds,
            described(effort.backend), call.seed, call.relative_gap, dict(call.solver), call.isolate, call.memory_limit,
        ]  # fmt: skip
        text = json.dumps([signature(self.part), below, how], separators=(",", ":"), default=repr, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def described(part: Any) -> Any:
    """Return a JSON value for a method or a backend, equal in every process.

    Examples
    --------
    >>> from remat.backends.highs import Highs
    >>> described("drops"), described(Highs), described(Highs())
    ('drops', 'remat.backends.highs.backend:Highs', ['remat.backends.highs.backend:Highs', 'highs', 'None'])
    """
    if part is None or isinstance(part, str):
        return part
    if isinstance(part, type):
        return f"{part.__module__}:{part.__qualname__}"
    name = getattr(part, "full_name", part.name)
    inner = [described(vars(part)[key]) for key in ("heuristic", "search", "kind") if key in vars(part)]
    return [described(type(part)), name, repr(getattr(part, "options", None)), *inner]


def _listed(ops: np.ndarray | None) -> list[int] | None:
    return None if ops is None else ops.tolist()


def signature(part: SubProblem) -> str:
    """Return a hash (hex) of a sub-problem without names; equal hashes mean the same problem, op by op.

    It covers the ops in order, with their type, cost, workspace, reads, writes and limit of computes. It also covers
    the sizes of tensors, and which of them are inputs or outputs.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.hierarchy.groups import Group
    >>> from remat.problem import Problem
    >>> chain = Problem(unit_chain(8))
    >>> groups = [Group(str(k), np.arange(k, k + 2), np.arange(15 - k, 17 - k)) for k in (1, 3, 5)]
    >>> len({signature(SubProblem.of(chain, group)) for group in groups})
    1
    """
    graph = part.problem.graph
    number: dict[str, int] = {}
    for op in graph.ops:
        for name in (*op.inputs, *op.outputs):
            number.setdefault(name, len(number))
    kept, given = set(graph.outputs), set(graph.inputs)
    sizes = graph.tensor_index
    ops = [
        [
            op.type, op.cost, op.workspace, op.phase, limit, [number[t] for t in op.inputs],
            [number[t] for t in op.outputs],
        ]
        for op, limit in zip(graph.ops, part.problem.compute_limits, strict=True)
    ]  # fmt: skip
    tensors = [[graph.tensors[sizes[name]].size, name in given, name in kept] for name in number]
    text = json.dumps([ops, tensors, part.outside], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def run_task(task: Task, seconds: float) -> Answer:
    """Return the options of the task's group, found within `seconds`; runs in workers."""
    effort = replace(task.effort, solvers=Solvers())
    found = options_of(task.part, task.budgets, effort, Deadline.after(seconds), task.composites)
    return Answer([(one.option.forward.tolist(), _listed(one.option.backward)) for one in found], effort.solvers)


def run_here(tasks: Sequence[Task], deadline: Deadline) -> Iterator[tuple[int, Answer]]:
    """Run tasks one after another in this process, each with its share of the time left; yield (number, options).

    Tasks after the deadline give options that need no search.
    """
    for number, task in enumerate(tasks):
        yield number, run_task(task, deadline.remaining / (len(tasks) - number))


def run_elsewhere(
    tasks: Sequence[Task], deadline: Deadline, executor: Executor, workers: int, on_fault: Callable[[str], None]
) -> Iterator[tuple[int, Answer]]:
    """Run tasks by an executor; yield (number, options) as they arrive.

    Tasks that the executor loses (a terminated worker, an unreachable cluster) or does not return by the deadline run
    in this process; after the deadline they give options that need no search.

    `workers`: approximate number of parallel tasks; the time left is shared out accordingly. `on_fault`: receives a
    note on lost tasks.
    """
    rounds = -(-len(tasks) // max(1, workers))
    seconds = deadline.remaining / rounds
    left = dict(enumerate(tasks))
    futures: dict[Future[Answer], int] = {}
    try:
        for number, task in left.items():
            futures[executor.submit(run_task, task, seconds)] = number
        pending = set(futures)
        while pending and not deadline.expired:
            done, pending = wait(pending, timeout=min(CHECK_INTERVAL, deadline.remaining), return_when=FIRST_COMPLETED)
            for future in done:
                found = future.result()
                del left[futures[future]]
                yield futures[future], found
    except (CancelledError, Exception) as error:  # also if pickling fails; errors of the task recur in this process
        if isinstance(error, RematError):
            raise
        on_fault(f"the executor failed ({type(error).__name__}); the remaining tasks ran in this process")
    finally:
        for future in futures:
            with contextlib.suppress(Exception):
                future.cancel()
    numbers = list(left)
    for place, found in run_here(list(left.values()), deadline):
        yield numbers[place], found
