"""Method ``hierarchical``: partition, options of each group, and a schedule of the whole graph from them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeGuard

from pydantic import GetPydanticSchema

from remat.backends.base import Backend
from remat.backends.choice import BackendLike, as_backend
from remat.errors import ProblemError
from remat.formulations.composites import Composite
from remat.formulations.timed_h_ilp import TimedHIlp
from remat.heuristics.base import Heuristic
from remat.heuristics.transfers import Transfers, TransfersOptions
from remat.hierarchy.choosing import Chosen, choose
from remat.hierarchy.classes import COST_TOLERANCE
from remat.hierarchy.effort import Effort, Solvers
from remat.hierarchy.group_options import Budgets
from remat.hierarchy.groups import Group
from remat.hierarchy.partition.base import PartitionerLike, as_partitioner
from remat.hierarchy.recursion import Recursion, RecursionSettings
from remat.hierarchy.store import Store
from remat.hierarchy.tree import Hierarchy
from remat.problem import Objective
from remat.runtime.checked_options import Options, Positive, Range
from remat.runtime.deadline import Deadline, OverdueError
from remat.schedule import Schedule
from remat.solving.chain_starts import OPTIONS, chain_start, chain_starts
from remat.solving.method import FormulationMethod, HeuristicMethod, Method, MethodLike, make_method
from remat.solving.min_peak_search import STAGES as MIN_PEAK_STAGES
from remat.solving.min_peak_search import MinPeakSearch
from remat.solving.portfolio import CONDITIONS, Policy, Stage
from remat.solving.session import Session

#: One name in a configuration, or several.
Word = GetPydanticSchema(lambda _, handler: handler(str | None))
Words = GetPydanticSchema(lambda _, handler: handler(tuple[str, ...]))
WordsOrNone = GetPydanticSchema(lambda _, handler: handler(tuple[str, ...] | None))
#: Default formulation that chooses an option for each group, by backend name with or without variant, and for other
#: backends. Tested on 40 problems: 23 training graphs of the zoo at 60 and 50 %, 9 s, groups only. With CP-SAT
#: `h-intervals` is better on 11 and worse on 5; with HiGHS `h-ilp` is better on 13 and worse on 5.
FORMULATIONS = {"cp-sat": "h-intervals"}
FORMULATION = "h-ilp"
#: Shares of the time left: partition, options of all groups, choices among them, each method on the whole problem.
PARTITION_SHARE, OPTIONS_SHARE, CHOICES_SHARE, TOP_SHARE = 0.2, 0.3, 0.25, 0.3
#: Shares of the time left for a start heuristic: in general, for some by name, until the first schedule exists, and
#: for a second attempt.
START_SHARE, START_SHARES, FIRST_START_SHARE, AGAIN_SHARE = 0.1, {"drops": 0.2}, 0.2, 0.3
#: Share for choices if a model follows, and for the first model if nothing else follows.
FEW_SHARE, FIRST_SHARE = 0.1, 0.8
#: Share of the time left for groups when the objective is the least peak.
PEAK_SHARE = 0.3
#: Share of the time left for loading the methods of groups.
PREPARE_SHARE = 0.3
#: Largest leaf group, in ops: on larger ones the methods find nothing in their time.
LEAF_OPS = 5_000
#: Steps of the method, and those that improve the best schedule.
STAGES = Stage("heuristics"), Stage("groups"), Stage("flat-methods")
POLISH_STAGES = Stage("bounds", 0.2), Stage("turns", options={"annealing": 0.7, "lns": 0.3})
#: The same where tensors can be moved to a host.
MOVING_POLISH_STAGES = Stage("bounds", 0.2), Stage("turns", options={"transfers": 0.8, "bounds": 0.2})
#: Search over problems whose ops are groups, with a host: 0.1 s on 62 nodes.
QUOTIENT_SEARCH = TransfersOptions(moves=1_000)


@dataclass(frozen=True)
class HierarchicalOptions(Options):
    """Options of :class:`Hierarchical`."""

    partitioners: Annotated[tuple[PartitionerLike, ...], Words] = ("blocks", "h-partition", "min-cut")
    """Names, classes or objects. Each that applies partitions the graph, and the best choice of options is used."""
    depth: Positive | None = None
    """Most levels of the hierarchy, the whole graph included: 1 makes no groups, 2 one level of them. None: no
    limit."""
    options: Positive = 8
    """Most options of a group, fast-forward (the forward part that saves nothing) excluded."""
    total_options: Positive = 100
    """Options of all groups of one problem, shared out by numbers of ops."""
    cost_tolerance: Annotated[float, Range(0)] = COST_TOLERANCE
    """Groups that differ in costs only are solved once if the differences, op by op, sum to at most this share of the
    cost of the solved group. Each group has the options at its own costs. 0: costs must be equal."""
    peaks: Positive = 4
    """Number of peaks to solve each group for."""
    saved: Positive = 6
    """Number of limits on the bytes held between forward and backward part to solve each group for."""
    leaf_methods: Annotated[tuple[MethodLike, ...], Words] = ("drops",)
    """Methods for groups of ops, as for :func:`remat.solve`; a formulation with options is
    ``FormulationMethod(kind, options)``. The best schedule for each budget is kept."""
    group_methods: Annotated[tuple[MethodLike, ...] | None, WordsOrNone] = None
    """Methods for groups with children. The first one also solves problems whose ops are groups with one option each.
    None: ``drops``, and the formulation of :data:`FORMULATIONS` for its backend (CP-SAT: ``h-intervals``, others:
    ``h-ilp``)."""
    seconds: Annotated[float, Range(above=0)] = 2.0
    """Most seconds of each method for each budget."""
    leaf_backend: Annotated[BackendLike | None, Word] = None
    """Solver for the models of `leaf_methods`; None: the backend of the call. It gets the seed, gap and isolation of
    the call, and one thread."""
    group_backend: Annotated[BackendLike | None, Word] = None
    """The same for the models of `group_methods`."""
    solver_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of these solvers, by full name of the backend; default: those of the call, for its backend."""
    top_methods: Annotated[tuple[MethodLike, ...] | None, WordsOrNone] = None
    """Methods for the whole problem. Heuristics that apply run before the partition. Formulations that accept
    composites (``h-ilp``, ``h-intervals``, ``timed-h-ilp``) then get the groups. The others then run on the ops. None:
    ``block-checkpointing``, ``drops``, ``few-stages``, ``rotor``, and the formulation for the backend; with a host,
    ``block-checkpointing``, ``drops``, ``transfers`` and ``timed-h-ilp``."""
    nodes: Positive = 80
    """Most nodes (parts of groups, and ungrouped ops) of a problem for formulations with composites."""
    moves: Annotated[int, Range(0)] = 8
    """Changes of options to try per group of the highest level, in addition to the first choices."""
    polish: bool = True
    """True: compute bounds, then improve the best schedule by annealing and large neighbourhood search."""
    workers: Positive | None = None
    """Sub-problems to solve in parallel processes. None: one per CPU, if parallel processes pay. 1: solve them in this
    process."""
    store: str | None = None
    """Folder for the options; another run with the same options reads them."""

    def methods(
        self, backend: BackendLike | None, *, moving: bool = False
    ) -> tuple[tuple[MethodLike, ...], tuple[MethodLike, ...]]:
        """Return `group_methods` and `top_methods`, or their defaults if `backend` solves the models.

        `moving`: tensors can be moved to a host.

        Examples
        --------
        >>> HierarchicalOptions(top_methods=("drops",)).methods("highs")
        (('drops', 'h-ilp'), ('drops',))
        """
        groups, top = self.group_methods, self.top_methods
        if groups is None:
            groups = "drops", _formulation(self.group_backend or backend)
        if top is None and moving:
            top = "block-checkpointing", "drops", "transfers", TimedHIlp
        elif top is None:
            top = "block-checkpointing", "drops", "few-stages", "rotor", _formulation(backend)
        return groups, top


def _formulation(backend: BackendLike | None) -> str:
    """Return the default formulation of groups for `backend`."""
    if isinstance(backend, Backend):
        backend = backend.full_name
    word = backend if isinstance(backend, str) else "" if backend is None else backend.name
    return FORMULATIONS.get(word, FORMULATIONS.get(word.partition(":")[0], FORMULATION))


class Hierarchical(Method):
    """Partition, options of groups from the lowest level up, their combination, and a flat search.

    0. Heuristics on the ops find a first schedule.
    1. A partitioner groups the ops into nested groups (:mod:`remat.hierarchy.partition`).
    2. From the lowest level up, each class of identical groups is solved once for several budgets, as a problem of its
       own (:class:`~remat.hierarchy.subproblem.SubProblem`), by any registered methods. Its schedules are the *options*
       of the group. Groups of the level above are solved with them.
    3. Formulations choose an option of each group for the whole problem; other methods solve it on the ops. Every
       schedule is certified, and the best one is kept.
    4. Bounds are computed; then annealing and large neighbourhood search improve the best schedule until the deadline.

    For the least peak, steps 0 to 3 run at lower and lower budgets, and the flat search for the least peak follows.

    With a host, the options of groups recompute within the device. Step 3 then moves what groups save with their
    options, as a whole, and what groups hand over; the flat search moves single tensors.

    Parameters
    ----------
    options : HierarchicalOptions, optional
    executor : concurrent.futures.Executor, optional
        Runs the sub-problems of a level: a pool of processes or threads, or a cluster's executor (dask's
        ``client.get_executor()``). It is not shut down. None: processes of this machine, if they pay.

    Examples
    --------
    >>> from remat import Problem, solve
    >>> from remat.graphs.families import unit_chain
    >>> options = HierarchicalOptions(leaf_methods=("eviction",), top_methods=("eviction",), polish=False)
    >>> result = solve(Problem(unit_chain(8), 7), Hierarchical(options), stop=20)
    >>> result.objective, result.method
    (20, 'hierarchical')
    """

    name = "hierarchical"
    objectives = frozenset(Objective)
    options_type = HierarchicalOptions
    uses_backend = True
    moves = True

    def __init__(self, options: Any = None, *, executor: Executor | None = None) -> None:
        super().__init__(options)
        self.executor = executor

    def run(self, session: Session) -> None:
        run = _Run(session, self.options, self.executor)
        try:
            if session.asks_peak:
                run.least_peak()
            else:
                run.least_cost()
        finally:
            session.note(str(run.solvers))
            for versions in run.solvers.versions.values():
                session.versions |= versions


class _Run(Policy):
    """One run of the method on a session."""

    endless = 600.0

    def __init__(self, session: Session, options: HierarchicalOptions, executor: Executor | None) -> None:
        super().__init__(session)
        self.options, self.executor = options, executor
        self.solvers = Solvers()
        self.leaf = self._effort(options.leaf_methods, options.leaf_backend)
        moving = self.problem.can_move
        groups, top = options.methods(session.solver, moving=moving)
        self.upper = self._effort(groups, options.group_backend)
        self.chooser = replace(self.upper, methods=(Transfers(QUOTIENT_SEARCH),)) if moving else self.upper
        """Effort for problems whose ops are the groups of the highest level."""
        self.top = [make_method(each) for each in top]
        self.starts: list[Heuristic] = []
        """Heuristics on the ops; those for chains of blocks only if the graph has one and is not too large."""
        chains = chain_starts(self.problem)
        for each, method in zip(top, self.top, strict=True):
            if isinstance(method, HeuristicMethod) and (each not in OPTIONS or each in chains):
                self.starts.append(chain_start(method.name) if each in OPTIONS else method.heuristic)

    def least_cost(self) -> None:
        """Run steps 0 to 4."""
        self.follow(STAGES)
        if self.options.polish:
            self.follow(MOVING_POLISH_STAGES if self.problem.can_move else POLISH_STAGES)
        self.note_waiting()
        self.session.conclude()

    def least_peak(self) -> None:
        """Run heuristics by descent on the budget, formulations that support the objective, then the flat search."""
        session, search = self.session, MinPeakSearch(self.session)
        if any(each.name in OPTIONS for each in self.starts) and not self.over:
            search.follow(stage for stage in MIN_PEAK_STAGES if stage.method in OPTIONS)
        for heuristic in self.starts:
            if heuristic.name not in OPTIONS and not self.over:
                deadline = self.share(START_SHARES.get(heuristic.name, START_SHARE))
                with session.step(heuristic.name), contextlib.suppress(OverdueError, ProblemError):
                    search.descend(heuristic.name, deadline, heuristic)
        # The flat search matches its stand-alone results only if it gets most of the time.
        self.clock = self.share(PEAK_SHARE)
        self.groups(self.clock)
        self.clock = session.call.deadline
        if not session.enough:
            search.run()

    def heuristics(self, _: Deadline) -> None:
        """Step 0: run each heuristic, and all of them again if none found a schedule."""
        self.kept |= {heuristic.name: heuristic for heuristic in self.starts}
        for heuristic in self.starts:
            share = START_SHARES.get(heuristic.name, START_SHARE)
            deadline = self.share(share if self.session.best is not None else max(share, FIRST_START_SHARE))
            self.heuristic(heuristic.name, deadline, wait=deadline.remaining)
        for heuristic in self.starts:
            if self.session.best is None:
                deadline = self.share(AGAIN_SHARE)
                self.heuristic(heuristic.name, deadline, wait=deadline.remaining)

    def groups(self, _: Deadline) -> None:
        """Steps 1 to 3, except for methods on the ops."""
        self._formulations(self._candidates())

    def _candidates(self) -> list[Chosen]:
        """Steps 1 and 2, for each partitioner that applies; return the groups, best choice first."""
        if self.options.depth == 1:
            return [Chosen([])]
        self._prepare()
        session, reasons = self.session, list[str]()
        candidates: list[Chosen] = []
        given = self.options.partitioners
        for number, each in enumerate(given):
            if self.over:
                break
            partitioner = as_partitioner(each)
            name = partitioner.name
            try:
                with session.step("partition"):
                    deadline = self.share(PARTITION_SHARE)
                    hierarchy = partitioner.partition(self.problem, deadline)
            except (ProblemError, OverdueError) as error:
                reasons.append(f"{name}: {error}")
                continue
            hierarchy = limited(hierarchy, self.options.depth)
            if hierarchy.depth == 1:
                reasons.append(f"{name}: no groups")
                continue
            largest = max(group.num_ops for group in hierarchy.groups() if not group.children)
            if largest > LEAF_OPS:
                reasons.append(f"{name}: a group of {largest:,} ops without groups in it is too large")
                continue
            found = self._options(hierarchy, name, len(given) - number)
            if found:
                candidates.append(self._choices(found, len(given) - number))
        if not candidates and reasons:
            session.note(f"not partitioned ({'; '.join(reasons)})")
        return sorted(candidates, key=lambda each: each.worth)

    def _options(self, hierarchy: Hierarchy, name: str, left: int) -> list[Composite]:
        """Step 2 for one partition, in its share of the time; `left` partitions remain."""
        session, options = self.session, self.options
        budgets = Budgets(options.peaks, options.saved)
        limits = options.options, options.total_options, options.cost_tolerance
        settings = RecursionSettings(budgets, self.leaf, self.upper, *limits)
        with session.step(f"options ({name})"):
            recursion = Recursion(
                hierarchy, settings, self.share(OPTIONS_SHARE / left), self.executor, options.workers,
                None if options.store is None else Store(options.store),
                lambda text: session.enter(f"options: {text}"), session.note,
            )  # fmt: skip
            found = recursion.run()
        groups, levels = sum(1 for _ in hierarchy.groups()) - 1, hierarchy.depth - 1
        priced = f", {recursion.others} of them at costs of their own" if recursion.others else ""
        kinds = f"{recursion.classes} kinds on {levels} level{'s' * (levels > 1)}"
        session.note(f"{name}: {groups} groups of {kinds}{priced}")
        return found

    def _choices(self, composites: list[Composite], left: int) -> Chosen:
        """Choose an option of each group by evaluating candidates."""
        late = self.clock.expired and self.session.best is not None  # without a schedule, spend some 0.1 s on a choice
        if late or not self.upper.methods:
            return Chosen(composites)
        with self.session.step("choices of options"):
            model = self._nodes(composites) <= self.options.nodes and bool(self._models())
            clock = self.share((FEW_SHARE if model else CHOICES_SHARE) / left)
            return choose(self.session, composites, self.chooser, self.leaf, moves=self.options.moves, clock=clock)

    def _effort(self, methods: tuple[MethodLike, ...], backend: BackendLike | None) -> Effort:
        """Return the methods of a level with their solver and its own options."""
        session = self.session
        for method in methods:
            make_method(method)  # refuses an invalid method
        solver: Backend | None = session.solver if backend is None else as_backend(backend)
        given: Mapping[str, Any] = {}
        if solver is not None and not solver.ready().ready:
            session.note(f"backend {solver.full_name!r} was left out: {solver.ready().reason}")
            solver = None
        if solver is not None:
            own = session.call.solver if solver.full_name == session.backend else {}
            given = self.options.solver_options.get(solver.full_name, own)
        call = replace(session.call, deadline=Deadline(), threads=1, log=None, start="auto", solver=given)
        return Effort(methods, self.options.seconds, solver, call, self.solvers)

    def _prepare(self) -> None:
        """Load the methods of groups in advance: loading would use up their seconds."""
        for each in dict.fromkeys((*self.leaf.methods, *self.upper.methods, *self.chooser.methods)):
            method = make_method(each)
            if isinstance(method, HeuristicMethod) and not self.session.enough:
                method.heuristic.prepared(self.share(PREPARE_SHARE))

    def _models(self) -> list[FormulationMethod]:
        """Return the formulations among `top_methods` that choose an option of each group."""
        asked = self.session.problem.objective
        return [each for each in self.top if _takes_composites(each) and asked in each.objectives]

    def _formulations(self, candidates: list[Chosen]) -> None:
        """Step 3: choose an option of each group by a model, for each partition with few nodes.

        The partition with the smallest groups comes first: it offers the most choices. Each model starts from the best
        choice of its own groups, since the best schedule overall rarely consists of their options.
        """
        session, asked = self.session, list[tuple[FormulationMethod, Chosen]]()
        for model in self._models():
            sizes = [self._nodes(each.composites) for each in candidates]
            few = [each for each, nodes in zip(candidates, sizes, strict=True) if nodes <= self.options.nodes]
            if sizes and not few:
                session.note(f"{model.name} was left out: {min(sizes)} nodes are more than {self.options.nodes}")
            few.sort(key=lambda one: max((len(g.forward) + len(g.backward) for g in one.composites), default=0))
            asked += [(model, each) for each in few]
        for number, (model, chosen) in enumerate(asked):
            if not self.over:
                narrow = {"ahead": False} if model.options is None and model.has_option("ahead") else {}
                method = model.with_options(composites=tuple(chosen.composites), **narrow)
                alone = max(FIRST_SHARE, 1 / (len(asked) - number))
                self._answer(method, TOP_SHARE, alone, chosen.schedule)

    def _nodes(self, composites: list[Composite]) -> int:
        """Return the number of nodes of the problem with composites: their parts, and the other ops."""
        grouped = sum(len(each.forward) + len(each.backward) for each in composites)
        return sum(1 + bool(len(each.backward)) for each in composites) + len(self.problem.graph.ops) - grouped

    def flat_methods(self, _: Deadline) -> None:
        """Step 3: run the methods on the ops, except heuristics, which ran in step 0."""
        for method in self.top:
            asked = isinstance(method, HeuristicMethod) or _takes_composites(method)
            if not (asked or self.over):
                self._answer(method)

    def _answer(
        self, method: Method, share: float = TOP_SHARE, alone: float = 1.0, start: Schedule | None = None
    ) -> None:
        """Run a method on the whole problem in a share of the time left, from `start` or the best schedule so far.

        `alone`: the share if only methods of the same kind follow.
        """
        session = self.session
        last = [each.name for each in self.top if not isinstance(each, HeuristicMethod)]
        only = last == [method.name] and not self.options.polish
        call = replace(session.call, deadline=self.share(alone if only else share), start="none")
        solver = self._solver(method)
        if solver is not session.solver:
            call = replace(call, solver={})
        best = start or (session.best.schedule if session.best is not None else session.warm_start)
        session.part(method.name, method.run, call, solver, start=best, step=method.name)

    def _solver(self, method: Method) -> Backend | None:
        """Return the solver of a method's models: HiGHS for models with transfers, unless that of the call is alike."""
        if not method.needs_backend:
            return None
        return self.session.solver if not method.moves or CONDITIONS["mip"](self) else as_backend("highs")

    steps = {
        "heuristics": heuristics, "groups": groups, "flat-methods": flat_methods, "bounds": Policy.bounds,
        "turns": Policy.turns,
    }  # fmt: skip


def _takes_composites(method: Method) -> TypeGuard[FormulationMethod]:
    """Return True for a formulation that accepts groups with options."""
    return isinstance(method, FormulationMethod) and method.has_option("composites")


def limited(hierarchy: Hierarchy, depth: int | None) -> Hierarchy:
    """Return the hierarchy with at most `depth` levels; lower groups are removed.

    Examples
    --------
    >>> import numpy as np
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> inner = Group("b", np.array([1, 2]))
    >>> outer = Group("a", np.array([0, 1, 2, 3]), children=(inner,))
    >>> whole = Hierarchy(Problem(unit_chain(4)), Group("all", np.arange(9), children=(outer,)))
    >>> [limited(whole, depth).depth for depth in (1, 2, 3, None)]
    [1, 2, 3, 3]
    """
    if depth is None or hierarchy.depth <= depth:
        return hierarchy

    def cut(group: Group, left: int) -> Group:
        children = tuple(cut(child, left - 1) for child in group.children) if left > 1 else ()
        return Group(group.name, group.forward, group.backward, children)

    return Hierarchy(hierarchy.problem, cut(hierarchy.root, depth))
