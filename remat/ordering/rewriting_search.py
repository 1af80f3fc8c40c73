"""Choice of rewrites: those after which some order has the least peak."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from remat.errors import BackendError
from remat.graphs import ComputeGraph
from remat.graphs.rewriting import Rewrite, RewriteOptions, RuleName, rewrite_graph
from remat.ordering.base import Ordering, OrderSearch
from remat.ordering.instance import OrderInstance
from remat.ordering.rules import RULES
from remat.ordering.valley import ValleySearch
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule, Verdict, validate

#: Largest number of rewrites for which all choices are tried if some of them may raise the peak.
MOST_CHOICES = 8
#: Shares of the remaining time: for the graph as it is, and with all rewrites.
BEFORE_SHARE, ALL_SHARE = 0.25, 0.5
#: Largest time for one choice of rewrites, as a multiple of the slower of the first two.
PATIENCE = 4.0
#: Rewrites that only remove copies and are never undone.
FREE = {RuleName.ZERO_COPY_CONCAT}

Key = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Ordered:
    """Graph after some rewrites, with its best known order.

    Attributes
    ----------
    graph : ComputeGraph
        Its reference order is the best order found.
    rewrites : tuple of Rewrite
    peak : int
        Peak of that order, in bytes.
    bound : int
        No order has a lower peak.
    """

    graph: ComputeGraph
    rewrites: tuple[Rewrite, ...]
    peak: int
    bound: int

    @property
    def proved(self) -> bool:
        """True when no order has a lower peak."""
        return self.bound >= self.peak

    @property
    def keys(self) -> frozenset[Key]:
        """Rule and op of each rewrite."""
        return frozenset(rewrite.key for rewrite in self.rewrites)


@dataclass(frozen=True, eq=False)
class RewritingResult:
    """Result of a search for rewrites; both orders have been validated.

    Attributes
    ----------
    before, after : Ordered
        The original graph, and the best one found.
    bound : int or None
        Bytes: no order after any choice of the allowed rewrites has a lower peak. None: unknown.
    tried : int
        Number of choices of rewrites for which a search ran.
    complete : bool
        True when the search finished before the deadline.
    """

    before: Ordered
    after: Ordered
    bound: int | None
    tried: int
    complete: bool

    def __post_init__(self) -> None:
        for found in (self.before, self.after):
            certificate = validate(found.graph, Schedule.reference(found.graph))
            if certificate.verdict is not Verdict.VALID or certificate.peak != found.peak:
                raise BackendError(
                    f"the order of graph {found.graph.name!r} is not as it is claimed to be: {certificate}"
                )

    @property
    def proved(self) -> bool:
        """True when no choice of these rewrites and no order has a lower peak."""
        return self.bound is not None and self.bound >= self.after.peak


def order_graph(
    graph: ComputeGraph,
    rewrites: Iterable[Rewrite] = (),
    *,
    search: OrderSearch | None = None,
    deadline: Deadline | None = None,
    seed: int = 0,
) -> Ordered:
    """Return the best order that a search finds for a graph, each op computed once.

    Raises
    ------
    BackendError
        If the search claims a peak that its order does not have.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> order_graph(unit_chain(4)).peak
    6
    """
    found = _ordering(Problem(graph, order="free", max_computes=1), search or ValleySearch(), deadline, seed, None)
    return _ordered(graph, tuple(rewrites), found)


def best_rewriting(
    graph: ComputeGraph,
    options: RewriteOptions | None = None,
    *,
    search: OrderSearch | None = None,
    deadline: Deadline | None = None,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> RewritingResult:
    """Choose the fewest rewrites of a graph that lead to the least peak.

    If no rewrite can raise the least peak, all of them together minimise it; those without effect are then undone, in
    large groups first. Otherwise all choices are tried for up to 8 rewrites. With more rewrites, a local search makes
    or undoes one at a time while that lowers the peak.

    Parameters
    ----------
    graph : ComputeGraph
    options : RewriteOptions, optional
    search : OrderSearch, optional
        Search for orders; default: the search from valley to valley.
    deadline : Deadline, optional
        At the deadline, or with Ctrl-C, the best choice so far is the result.
    seed : int
    on_progress : callable, optional
        Receives lines about the progress.

    Raises
    ------
    GraphError
        If shapes or attributes of the graph are wrong.

    Examples
    --------
    >>> from remat.graphs.zoo import ZOO
    >>> found = best_rewriting(ZOO["swiftnet-a"]())
    >>> found.before.peak, found.after.peak, found.proved
    (275968, 188160, True)
    """
    run = _Run(graph, options or RewriteOptions(), search or ValleySearch(), deadline or Deadline(), seed)
    run.tell = on_progress or run.tell
    return run.result(choose=True)


def all_rewrites(
    graph: ComputeGraph,
    options: RewriteOptions | None = None,
    *,
    search: OrderSearch | None = None,
    deadline: Deadline | None = None,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> RewritingResult:
    """Make all rewrites that the options allow; parameters and errors as :func:`best_rewriting`.

    Examples
    --------
    >>> from remat.graphs.zoo import ZOO
    >>> found = all_rewrites(ZOO["swiftnet-c"]())
    >>> found.before.peak, found.after.peak, len(found.after.rewrites)
    (53900, 17052, 5)
    """
    run = _Run(graph, options or RewriteOptions(), search or ValleySearch(), deadline or Deadline(), seed)
    run.tell = on_progress or run.tell
    return run.result(choose=False)


@dataclass
class _Run:
    """Search for rewrites."""

    graph: ComputeGraph
    options: RewriteOptions
    search: OrderSearch
    clock: Deadline
    seed: int
    tell: Callable[[str], None] = lambda line: None
    tried: int = 0
    slowest: float = 1.0
    seen: dict[frozenset[Key], Ordered | None] = field(default_factory=dict)
    refuted: bool = False
    """True when the last search without a result was complete."""

    def result(self, *, choose: bool) -> RewritingResult:
        """Return the best choice, or all rewrites."""
        self.tell("order of the graph as it is")
        before = self.first((), BEFORE_SHARE if choose else ALL_SHARE)
        done = rewrite_graph(self.graph, self.options)
        after = before
        if done.rewrites:
            self.tell(f"order after all {len(done.rewrites)} rewrites")
            after = self.first(None, ALL_SHARE if choose else 1.0)
        if not choose or not done.rewrites:
            bound = after.bound if done.never_worse and done.complete else None
            return RewritingResult(before, after, bound, self.tried, done.complete and after.proved)
        best = min(before, after, key=self.rank)
        bound = None
        if done.complete and done.never_worse:
            bound = min(after.bound, best.peak)
        elif done.complete and len(done.rewrites) <= MOST_CHOICES:
            best, bound = self.all_choices(after, best)
        elif done.complete:
            best = self.climb(after, best)
        best = self.fewer(best)
        return RewritingResult(before, best, bound, self.tried, not self.clock.expired)

    @staticmethod
    def rank(found: Ordered) -> tuple[int, int]:
        return found.peak, len(found.rewrites)

    def first(self, only: Collection[Key] | None, share: float) -> Ordered:
        """Return an order of the graph with these rewrites (None: all), whatever its peak."""
        done = rewrite_graph(self.graph, self.options, only)
        begin = time.monotonic()
        clock = self.clock.earlier(share * self.clock.remaining)
        found = order_graph(done.graph, done.rewrites, search=self.search, deadline=clock, seed=self.seed)
        self.slowest = max(self.slowest, time.monotonic() - begin)
        self.tried += 1
        self.seen[found.keys] = found
        return found

    def below(self, only: Collection[Key], limit: int) -> Ordered | None:
        """Return an order of the graph with these rewrites and a peak below a limit, or None."""
        done = rewrite_graph(self.graph, self.options, only)
        keys = frozenset(rewrite.key for rewrite in done.rewrites)
        if keys in self.seen or self.clock.expired:
            known = self.seen.get(keys)
            return known if known is not None and known.peak < limit else None
        clock = self.clock.earlier(PATIENCE * self.slowest)
        problem = Problem(done.graph, order="free", max_computes=1)
        ordering = _ordering(problem, self.search, clock, self.seed, limit)
        self.tried += 1
        found = _ordered(done.graph, done.rewrites, ordering) if ordering.order is not None else None
        self.seen[keys] = found
        self.refuted = found is None and ordering.bound >= limit
        return found

    def all_choices(self, after: Ordered, best: Ordered) -> tuple[Ordered, int | None]:
        """Return the best of all subsets; the bound holds if every search was complete."""
        keys, proved = [rewrite.key for rewrite in after.rewrites], best.proved
        for count in range(len(keys) + 1):
            for only in itertools.combinations(keys, count):
                self.refuted = True
                found = self.below(only, best.peak)
                if found is not None:
                    best, proved = found, proved and found.proved
                    self.tell(f"{best.peak:,} bytes with {len(best.rewrites)} rewrites")
                elif not self.refuted or self.clock.expired:
                    proved = False
        others = [known for known in self.seen.values() if known is not None]
        proved = proved and all(known.proved or known.bound >= best.peak for known in others)
        return best, best.peak if proved else None

    def climb(self, after: Ordered, best: Ordered) -> Ordered:
        """Make or undo one rewrite at a time while that lowers the peak."""
        harmless = [rewrite.key for rewrite in after.rewrites if rewrite.never_worse]
        best = self.below(harmless, best.peak) or best
        better = True
        while better and not self.clock.expired:
            better = False
            for rewrite in after.rewrites:
                found = self.below(best.keys ^ {rewrite.key}, best.peak)
                if found is not None:
                    best, better = found, True
                    self.tell(f"{best.peak:,} bytes with {len(best.rewrites)} rewrites")
        return best

    def fewer(self, best: Ordered) -> Ordered:
        """Undo rewrites without effect, halves first."""
        pending = [[rewrite.key for rewrite in best.rewrites if rewrite.rule not in FREE]]
        self.tell("rewrites that do not help")
        while pending and not self.clock.expired:
            chunk = [key for key in pending.pop() if key in best.keys]
            if not chunk:
                continue
            found = self.below(best.keys - set(chunk), best.peak + 1)
            if found is not None:
                best = found
            elif len(chunk) > 1:
                pending += [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
        return best


def _ordering(
    problem: Problem, search: OrderSearch, deadline: Deadline | None, seed: int, upper: int | None
) -> Ordering:
    """Run a search; if its kernels are not compiled after half of the time, return the best order of the rules."""
    clock = deadline or Deadline()
    instance = OrderInstance.of(problem)
    if search.prepared(clock.share(0.5)):
        found = search.search(instance, deadline=clock, seed=seed, upper=upper)
    else:
        orders = [rule().search(instance, deadline=clock, upper=upper) for rule in RULES]
        found = min(orders, key=lambda each: math.inf if each.peak is None else each.peak)
    if found.order is None and upper is None:
        found = Ordering(instance.reference, instance.peak_of(instance.reference), found.bound, found.states)
    if found.order is not None and not instance.exact:
        peak = problem.simulate(instance.schedule(problem, found.order)).peak
        worse = upper is not None and peak >= upper
        return Ordering(None if worse else found.order, None if worse else peak, found.bound, found.states)
    if found.order is not None and instance.peak_of(found.order) != found.peak:
        raise BackendError(f"{search.name} claims a peak of {found.peak} bytes, not that of its order", "order-peak")
    return found


def _ordered(graph: ComputeGraph, rewrites: tuple[Rewrite, ...], found: Ordering) -> Ordered:
    assert found.order is not None
    assert found.peak is not None
    assert graph.order is not None
    reference = list(graph.order)
    order = [reference[number] for number in found.order.tolist()]
    return Ordered(graph if order == reference else graph.with_order(order), rewrites, found.peak, found.bound)
