"""Options of all groups of a hierarchy from the lowest level up, one sub-problem per class of identical groups."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np

from remat.errors import ProblemError
from remat.formulations.composites import Composite, Option
from remat.hierarchy.classes import COST_TOLERANCE, Classes
from remat.hierarchy.effort import Effort
from remat.hierarchy.group_options import Budgets, Measured, farthest_first, measured, repriced, shared_out, undominated
from remat.hierarchy.groups import Group
from remat.hierarchy.store import Store
from remat.hierarchy.subproblem import SubProblem, numbers, translated
from remat.hierarchy.tasks import Answer, Task, run_elsewhere, run_here
from remat.hierarchy.tree import Hierarchy
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.runtime.processes.workers import WorkerPool
from remat.runtime.resources import available_cpus
from remat.schedule import OrderRule

#: Least estimated seconds of work for which processes are used: starting one takes about 2 s, with imports and kernels.
PROCESS_SECONDS = 6.0
#: Seconds for late processes to exit before they are terminated.
GRACE = 0.2
#: Ops in groups that still get options without a search after the deadline, in a few tenths of a second.
LATE_OPS = 2_000
OVER = "the deadline passed before each group had options; the ops of some stand alone"


@dataclass(frozen=True)
class RecursionSettings:
    """Settings of :class:`Recursion`."""

    budgets: Budgets = field(default_factory=Budgets)
    """Budgets for each group."""
    leaf: Effort = field(default_factory=Effort)
    """Methods of groups without children."""
    upper: Effort = field(default_factory=Effort)
    """Methods of groups with children."""
    options: int = 8
    """Most options of a group in the problem above it, fast-forward excluded."""
    total: int = 100
    """Options of all groups of a problem together, shared out by their ops (*N_o* of the paper)."""
    cost_tolerance: float = COST_TOLERANCE
    """Share of a group's cost by which the costs of identical groups may differ."""


@dataclass(eq=False)
class Recursion:
    """Solver of the groups of a hierarchy, level by level from the lowest.

    The first group of each class of identical groups is solved. The others have its options at the costs of their own
    ops.

    Examples
    --------
    >>> import numpy as np
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> problem = Problem(unit_chain(8), 7)
    >>> parts = tuple(Group(str(k), np.arange(k, k + 2), np.arange(15 - k, 17 - k)) for k in (0, 2, 4, 6))
    >>> root = Group("all", np.arange(9), np.arange(9, 17), parts)
    >>> recursion = Recursion(Hierarchy(problem, root), RecursionSettings(leaf=Effort(("eviction",))), workers=1)
    >>> [(each.name, len(each.options)) for each in recursion.run()], recursion.classes
    ([('0', 4), ('2', 4), ('4', 4), ('6', 4)], 2)
    """

    hierarchy: Hierarchy
    settings: RecursionSettings = field(default_factory=RecursionSettings)
    deadline: Deadline = field(default_factory=Deadline)
    """Each level gets a share of the time left in proportion to its ops."""
    executor: Executor | None = None
    """Runs the sub-problems of a level in parallel. None: processes of this machine, if there are several CPUs and the
    time of the first sub-problems shows that processes pay; otherwise this process."""
    workers: int | None = None
    """Parallel sub-problems; default: as many as this process has CPUs. 1: this process only."""
    store: Store | None = None
    """Folder to read options from and write them to."""
    on_progress: Callable[[str], None] = lambda _: None
    """Receives a message such as "level 2 of 3, 5 of 8 groups" after each sub-problem."""
    on_note: Callable[[str], None] = lambda _: None
    """Receives notes."""
    classes: int = 0
    """Classes of identical groups solved so far."""
    others: int = 0
    """Groups whose costs differ from those of the solved group of their class."""

    def __post_init__(self) -> None:
        self._found: dict[str, list[Measured]] = {}
        self._kind: dict[int, int] = {}
        """Number of each group's kind, by identity of the group."""
        self._key: dict[int, str] = {}
        """Key of the task that gives the options of a group, by identity of the group; only groups that can run
        alone."""
        self._late = LATE_OPS

    def run(self) -> list[Composite]:
        """Return the composites of the highest level, in op numbers of the graph; skip groups that cannot run alone."""
        inside = sorted(self.hierarchy.groups(), key=lambda group: group.height)[:-1]  # the root is the highest
        levels = [list(level) for _, level in groupby(inside, key=lambda group: group.height)]
        sizes = [sum(group.num_ops for group in level) for level in levels]
        for number, level in enumerate(levels):
            share = sizes[number] / max(1, sum(sizes[number:]) + sizes[number])
            remaining = self.deadline.remaining
            self._level(level, f"level {number + 1} of {len(levels)}", self.deadline.earlier(share * remaining))
        return self.composites(self.hierarchy.root, None)

    def composites(self, group: Group, part: SubProblem | None) -> list[Composite]:
        """Return the children of a group as composites, in op numbers of its sub-problem; None: of the graph."""
        problem = self.hierarchy.problem if part is None else part.problem
        children = [child for child in group.children if id(child) in self._key and len(child.forward)]
        counts = shared_out(self.settings.total, [child.num_ops for child in children])
        made = []
        for child, count in zip(children, counts, strict=True):
            here = numbers(child) if part is None else part.place[numbers(child)]
            forward, backward = here[: len(child.forward)], here[len(here) - len(child.backward) :]
            if problem.order is OrderRule.FIXED and not (together(problem, forward) and together(problem, backward)):
                self.on_note("groups that are not contiguous in the fixed reference order are not composites")
                continue
            options = farthest_first(self.options(child), min(count, self.settings.options))
            made.append(Composite(child.name, forward, backward, [translated(one.option, here) for one in options]))
        return made

    def options(self, group: Group) -> list[Measured]:
        """Return the options of a group's class at the costs of its own ops."""
        return repriced(self._found[self._key[id(group)]], self._cost[numbers(group)])

    def _level(self, groups: list[Group], title: str, deadline: Deadline) -> None:
        made: dict[int, Task | None] = {}  # by identity of the representative
        tasks: dict[str, Task] = {}
        members = Counter[str]()
        late = self._late
        for group in groups:
            if self.deadline.expired:  # a few groups still get options without a search
                late -= group.num_ops
                if late < 0:
                    self.on_note(OVER)
                    break
            inside = tuple(self._kind[id(child)] if id(child) in self._key else None for child in group.children)
            self._kind[id(group)], first = self._classes.of(group, inside)
            if id(first) not in made:
                made[id(first)] = self._task(first)
            task = made[id(first)]
            if task is not None:
                self._key[id(group)] = task.key
                self.others += not np.array_equal(self._cost[first.ops], self._cost[group.ops])
                members[task.key] += 1
                tasks.setdefault(task.key, task)
        done, left = 0, list[Task]()

        def report(key: str) -> None:
            nonlocal done
            done += members[key]
            self.on_progress(f"{title}, {done} of {sum(members.values())} groups")

        for key, task in tasks.items():
            if key not in self._found:
                stored = None if self.store is None else self.store.read(key, len(task.part.ops))
                if stored is None:
                    left.append(task)
                    continue
                self._take(task, stored)
            report(key)
        with contextlib.closing(self._run(left, deadline)) as answers:
            for number, found in answers:
                task = left[number]
                self._take(task, found)
                if self.store is not None and not self.deadline.expired:
                    self.store.write(task.key, found)
                report(task.key)
                self._late -= int((task.part.ops >= 0).sum()) if self.deadline.expired else 0
                if self._late < 0:
                    self.on_note(OVER)
                    break
        for group in groups:
            if self._key.get(id(group)) not in self._found:
                self._key.pop(id(group), None)

    def _task(self, group: Group) -> Task | None:
        """Return the task of a group; None if it cannot run alone."""
        try:
            part = SubProblem.of(self.hierarchy.problem, group)
        except ProblemError as error:
            self.on_note(f"{error}; its ops stand alone")
            return None
        composites = tuple(self.composites(group, part)) if group.children else ()
        effort = self.settings.upper if group.children else self.settings.leaf
        return Task(part, self.settings.budgets, effort, composites)

    @cached_property
    def _cost(self) -> Int:
        """Cost of each op; the last entry is 0 for `outside`, which has number -1."""
        return np.append(self.hierarchy.graph.arrays.cost, 0)

    @cached_property
    def _classes(self) -> Classes:
        return Classes(self.hierarchy.problem, self.settings.cost_tolerance)

    def _take(self, task: Task, found: Answer) -> None:
        """Measure the options of an answer and discard invalid ones."""
        self._found[task.key] = undominated(measured(task.part, [Option(*sequences) for sequences in found.options]))
        task.effort.solvers.add(found.solvers)
        self.classes += 1

    def _run(self, tasks: list[Task], deadline: Deadline) -> Generator[tuple[int, Answer]]:
        """Yield the answers of tasks, solved in this process or by an executor."""
        workers = self.workers or available_cpus()
        if self.executor is not None and len(tasks) > 1:
            yield from run_elsewhere(tasks, deadline, self.executor, workers, self.on_note)
            return
        number, begun = -1, deadline.elapsed
        for number, found in run_here(tasks, deadline):
            yield number, found
            left = len(tasks) - number - 1
            if workers > 1 and left > 1 and (deadline.elapsed - begun) / (number + 1) * left > PROCESS_SECONDS:
                break
        rest = tasks[number + 1 :]
        if rest:
            with WorkerPool(min(workers, len(rest))) as pool:
                for other, found in run_elsewhere(rest, deadline, pool, workers, self.on_note):
                    yield number + 1 + other, found
                if deadline.expired:  # otherwise leaving the pool waits for late tasks
                    pool.stop(GRACE)


def together(problem: Problem, ops: Int) -> bool:
    """Return True if ops are contiguous in the reference order."""
    position = problem.graph.arrays.position[ops]
    return not len(ops) or int(position.max() - position.min()) < len(ops)
