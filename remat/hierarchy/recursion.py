"""From below upward: options of all groups of a hierarchy, one sub-problem for each class of identical groups."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np

from remat.backends.processes.workers import WorkerPool
from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.formulations.hierarchical import Composite, Option
from remat.hierarchy.identical import COST_TOLERANCE, Classes
from remat.hierarchy.options import (
    Budgets,
    Effort,
    Measured,
    farthest_first,
    measured,
    repriced,
    shared_out,
    undominated,
)
from remat.hierarchy.store import Store
from remat.hierarchy.subproblem import SubProblem, numbers, translated
from remat.hierarchy.tasks import Answer, Task, run_elsewhere, run_here
from remat.hierarchy.tree import Group, Hierarchy
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.resources import available_cpus
from remat.schedule import OrderRule

#: Seconds of work from which on processes pay: starting one, with its imports and compiled code, takes about two.
PAYS = 6.0
#: Seconds that processes which are late have to end by themselves.
GRACE = 0.2
#: Ops in groups that are looked at after the deadline, for options that need no search: some tenths of a second.
LATE_OPS = 2_000
OVER = "the time was over before each group had options; the ops of some stand alone"


@dataclass(frozen=True)
class Knobs:
    """What the recursion is asked for.

    Attributes
    ----------
    budgets : Budgets
        For which each group is solved.
    leaf, upper : Effort
        Who solves groups without and with groups in them.
    options : int
        Most options of a group in the problem above it, besides fast-forward.
    total : int
        Options of all groups of a problem together, shared out by their ops (the paper's N_o).
    cost_tolerance : float
        Share of a group's cost by which the costs of another group may differ that has its options.
    """

    budgets: Budgets = field(default_factory=Budgets)
    leaf: Effort = field(default_factory=Effort)
    upper: Effort = field(default_factory=Effort)
    options: int = 8
    total: int = 100
    cost_tolerance: float = COST_TOLERANCE


@dataclass(eq=False)
class Recursion:
    """Solves the groups of a hierarchy level by level, the lowest first.

    Of each class of identical groups the first is solved. The others have its options at the costs of their own ops.

    Attributes
    ----------
    hierarchy : Hierarchy
    knobs : Knobs
    deadline : Deadline
        Each level gets the share of the time left that its ops have of the ops still to do.
    executor : Executor, optional
        Runs the sub-problems of a level beside each other. None: processes of this machine where there are several CPUs
        and what the first sub-problems take says that it pays; otherwise they are solved here.
    workers : int, optional
        How many at a time; default: as many as this process has CPUs. 1: never elsewhere.
    store : Store, optional
        What was found before, and where to put what is found.
    on_progress : callable, optional
        Receives "level 2 of 3, 5 of 8 groups" after each sub-problem.
    on_note : callable, optional
        Receives remarks.

    Examples
    --------
    >>> import numpy as np
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> problem = Problem(unit_chain(8), 7)
    >>> parts = tuple(Group(str(k), np.arange(k, k + 2), np.arange(15 - k, 17 - k)) for k in (0, 2, 4, 6))
    >>> root = Group("all", np.arange(9), np.arange(9, 17), parts)
    >>> recursion = Recursion(Hierarchy(problem, root), Knobs(leaf=Effort(("eviction",))), workers=1)
    >>> [(each.name, len(each.options)) for each in recursion.run()], recursion.classes
    ([('0', 4), ('2', 4), ('4', 4), ('6', 4)], 2)
    """

    hierarchy: Hierarchy
    knobs: Knobs = field(default_factory=Knobs)
    deadline: Deadline = field(default_factory=Deadline)
    executor: Executor | None = None
    workers: int | None = None
    store: Store | None = None
    on_progress: Callable[[str], None] = lambda _: None
    on_note: Callable[[str], None] = lambda _: None
    classes: int = 0
    """Classes of identical groups so far."""
    others: int = 0
    """Groups with other costs than the group that was solved for them."""

    def __post_init__(self) -> None:
        self._found: dict[str, list[Measured]] = {}
        self._kind: dict[int, int] = {}
        """Number of the kind of each group, by the group's identity."""
        self._key: dict[int, str] = {}
        """The task that gives the options of each group that can be run alone, by the group's identity."""
        self._late = LATE_OPS

    def run(self) -> list[Composite]:
        """The composites of the highest level, in the numbers of the graph, but for groups that cannot be run alone."""
        levels = self._levels()
        sizes = [sum(group.num_ops for group in level) for level in levels]
        for number, level in enumerate(levels):
            share = sizes[number] / max(1, sum(sizes[number:]) + sizes[number])
            remaining = self.deadline.remaining
            self._level(level, f"level {number + 1} of {len(levels)}", self.deadline.earlier(share * remaining))
        return self.composites(self.hierarchy.root, None)

    def _levels(self) -> list[list[Group]]:
        """Groups below the root by height: the lowest first."""
        inside = sorted(self.hierarchy.groups(), key=lambda group: group.height)[:-1]  # the root is the highest
        return [list(level) for _, level in groupby(inside, key=lambda group: group.height)]

    def composites(self, group: Group, part: SubProblem | None) -> list[Composite]:
        """The groups in a group as composites, in the numbers of its sub-problem, or else of the graph."""
        problem = self.hierarchy.problem if part is None else part.problem
        children = [child for child in group.children if id(child) in self._key and len(child.forward)]
        counts = shared_out(self.knobs.total, [child.num_ops for child in children])
        made = []
        for child, count in zip(children, counts, strict=True):
            here = numbers(child) if part is None else part.place[numbers(child)]
            forward, backward = here[: len(child.forward)], here[len(here) - len(child.backward) :]
            if problem.order is OrderRule.FIXED and not (together(problem, forward) and together(problem, backward)):
                self.on_note("groups that are not together in the reference order, which is fixed, are no composites")
                continue
            options = farthest_first(self.options(child), min(count, self.knobs.options))
            made.append(Composite(child.name, forward, backward, [translated(one.option, here) for one in options]))
        return made

    def options(self, group: Group) -> list[Measured]:
        """Return the options of a group's class at the costs of its own ops."""
        return repriced(self._found[self._key[id(group)]], self._cost[numbers(group)])

    # -- one level ---------------------------------------------------------------------------------------------------

    def _level(self, groups: list[Group], title: str, deadline: Deadline) -> None:
        made: dict[int, Task | None] = {}  # by the identity of the group that is solved for its class
        tasks: dict[str, Task] = {}
        members = Counter[str]()
        late = self._late
        for group in groups:
            if self.deadline.expired:  # what needs no search is made for some groups still
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

        def tell(key: str) -> None:
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
            tell(key)
        with contextlib.closing(self._run(left, deadline)) as answers:
            for number, found in answers:
                task = left[number]
                self._take(task, found)
                if self.store is not None and not self.deadline.expired:
                    self.store.write(task.key, found)
                tell(task.key)
                self._late -= int((task.part.ops >= 0).sum()) if self.deadline.expired else 0
                if self._late < 0:
                    self.on_note(OVER)
                    break
        for group in groups:
            if self._key.get(id(group)) not in self._found:
                self._key.pop(id(group), None)

    def _task(self, group: Group) -> Task | None:
        """What is to be solved for a group; None where it cannot be run alone."""
        try:
            part = SubProblem.of(self.hierarchy.problem, group)
        except ProblemError as error:
            self.on_note(f"{error}; its ops stand alone")
            return None
        composites = tuple(self.composites(group, part)) if group.children else ()
        effort = self.knobs.upper if group.children else self.knobs.leaf
        return Task(part, self.knobs.budgets, effort, composites)

    @cached_property
    def _cost(self) -> Int:
        """Cost of each op, and 0 for `outside`, which has number -1."""
        return np.append(self.hierarchy.graph.arrays.cost, 0)

    @cached_property
    def _classes(self) -> Classes:
        return Classes(self.hierarchy.problem, self.knobs.cost_tolerance)

    def _take(self, task: Task, found: Answer) -> None:
        """Measure options from elsewhere: what is no option of the group falls away."""
        self._found[task.key] = undominated(measured(task.part, [Option(*sequences) for sequences in found.options]))
        task.effort.solvers.add(found.solvers)
        self.classes += 1

    def _run(self, tasks: list[Task], deadline: Deadline) -> Generator[tuple[int, Answer]]:
        """The answers of tasks, here or elsewhere."""
        workers = self.workers or available_cpus()
        if self.executor is not None and len(tasks) > 1:
            yield from run_elsewhere(tasks, deadline, self.executor, workers, self.on_note)
            return
        number, begun = -1, deadline.elapsed
        for number, found in run_here(tasks, deadline):
            yield number, found
            left = len(tasks) - number - 1
            if workers > 1 and left > 1 and (deadline.elapsed - begun) / (number + 1) * left > PAYS:
                break
        rest = tasks[number + 1 :]
        if rest:
            with WorkerPool(min(workers, len(rest))) as pool:
                for other, found in run_elsewhere(rest, deadline, pool, workers, self.on_note):
                    yield number + 1 + other, found
                if deadline.expired:  # or leaving the pool would wait for tasks that are late
                    pool.stop(GRACE)


def together(problem: Problem, ops: Int) -> bool:
    """Whether ops follow one another in the reference order without any other between."""
    position = problem.graph.arrays.position[ops]
    return not len(ops) or int(position.max() - position.min()) < len(ops)
