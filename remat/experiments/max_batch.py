"""Largest batch that fits a memory within one extra forward pass, by certified solves."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import numpy as np

from remat import registry
from remat.errors import BackendError, GraphError, ProblemError
from remat.experiments.contestant import Contestant
from remat.experiments.max_batch_result import BatchResult, BatchVerdict, Probe
from remat.experiments.runs import (
    LimitArguments,
    Limits,
    NoStore,
    RunStore,
    as_contestant,
    check_arguments,
    stored_or_run,
)
from remat.graphs import ComputeGraph
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.io import as_graph
from remat.io.files import exists
from remat.problem import Problem, parse_budget
from remat.problem.scope import covers
from remat.runtime.interruption import interrupts
from remat.runtime.solve_options import DEFAULT_OPTIONS
from remat.runtime.text import either
from remat.schedule import OrderRule, Schedule
from remat.schedule.validate import validate
from remat.solving.method import MethodLike
from remat.solving.progress import OnProgress
from remat.solving.stop import AnyOf, StoppingCriterion, TargetCost

if TYPE_CHECKING:
    from remat.graphs.io import GraphLike

#: Heuristic that climbs before a formulation bisects the remaining range, if it is registered.
START = "greedy"


class BatchRules(TypedDict, total=False):
    """Rules of :class:`remat.problem.Problem` for each batch size."""

    order: OrderRule | str
    max_computes: int | Mapping[str, int] | None
    keep: Iterable[str]
    count_constant_memory: bool


class BatchArguments(BatchRules, LimitArguments):
    """Rules and limits of each probe."""


@interrupts()
def max_batch(
    family: AffineGraph | Callable[[int], ComputeGraph] | GraphLike,
    memory: int | str,
    method: Contestant | MethodLike = "checkmate/highs",
    *,
    store: RunStore | None = None,
    on_progress: OnProgress | None = None,
    on_probe: Callable[[Probe], object] | None = None,
    **more: Unpack[BatchArguments],
) -> BatchResult:
    """Find the largest batch that fits `memory` with at most one extra forward pass (Jain et al. 2020, eq. 10).

    Their programme contains products with a variable batch size. Here, each batch size is a separate problem, and few
    have to be solved:

    * With costs in fixed proportion, the relative cost of a schedule is the same at every batch size, and its memory at
      each step grows with the batch. So **a schedule for B + 1 is one for B**: if B fits, so do all smaller sizes; if B
      is proved not to fit, no larger size does. Bisection between the two is exact for a method that proves. Families
      whose costs have no fixed proportion are refused.
    * The largest batch of one schedule follows from its memory at each step, which is affine. Each success, and the
      reference order at the start, extends the search to that batch at once.
    * The greedy heuristic climbs as far as it can before a formulation is used. The upper end is the structural bound.

    A solve stops as soon as its schedule is cheap enough. If it ends without one and without a proof, the search
    continues below, and the answer does not rule out larger batches. The answers of a heuristic are not monotone: it is
    tried upward from its last success, by doubling steps and after its first failure by bisection, until it fails at
    the next batch size. It may miss larger ones.

    Parameters
    ----------
    family : AffineGraph, callable or str
        Network at every batch size: also a function that returns its graph at a batch size, or the name of a zoo graph.
    memory : int or str
        Bytes, or ``"16GiB"``.
    method : str, class, object or Contestant
        As for :func:`remat.experiments.compare.compare`.
    store : RunStore, optional
        Probes in it are not solved again (:class:`remat.studies.stored_runs.StudyRuns`).
    on_progress : callable, optional
        Receives the progress of each solve.
    on_probe : callable, optional
        Receives every probe.
    **more
        `stop` and `options` as for :func:`remat.solve`, per probe. With ``start="alone"`` the search uses neither the
        reference order nor greedy, and each schedule is the method's own, as in published baselines. Rules as for
        :class:`remat.problem.Problem`; here the constant memory (parameters, their gradients, the batch itself) counts
        by default.

    Returns
    -------
    BatchResult
        After Ctrl-C with the results so far.

    Raises
    ------
    ProblemError
        If nothing grows with the batch, no op has phase ``forward``, costs have no fixed proportion (with the op), or
        `memory` cannot be read.
    BackendError
        If a proof of the method at one batch size contradicts a schedule at a larger one, with both.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> chain = AffineGraph.scaled(unit_chain(6), 1)
    >>> answer = max_batch(chain, 40, "checkmate/highs")
    >>> answer.batch, answer.plain, answer.proved, answer.certificate.cost, str(answer.reason.verdict)
    (10, 5, True, 180, 'too expensive')
    """
    family = as_family(family)
    chosen = as_contestant(method)
    size = read_memory(memory)
    if not family.grows:
        raise ProblemError(f"no memory of {family.name} grows with the batch size")
    if not any(op.phase == "forward" for op in family.pattern.ops):
        raise ProblemError(f"no op of {family.name} has phase 'forward'; the cost of a forward pass is unknown")
    uneven = family.uneven_op()
    if uneven is not None:
        raise ProblemError(
            f"the cost of op {uneven!r} of {family.name} does not grow in proportion to the others; "
            "use the costs of one batch size"
        )
    check_arguments("max_batch", more, BatchArguments)
    limits = Limits(more.pop("stop", None), more.pop("options", DEFAULT_OPTIONS))
    rules: dict[str, Any] = {"count_constant_memory": True, **more}

    def problem(batch: int) -> Problem:
        return Problem(family.at(batch), size, **rules)

    search = _Search(family, chosen, size, limits, problem, store or NoStore(), on_progress, on_probe)
    try:
        search.run()
    except KeyboardInterrupt:
        search.interrupted = True
    return search.result()


def as_family(family: AffineGraph | Callable[[int], ComputeGraph] | GraphLike) -> AffineGraph:
    """Return a network at every batch size as it is, or from a function of the batch size, the zoo, or one graph.

    A graph (or its file) needs its batch size in ``meta["batch"]``; all of its memory and cost grows with it.

    Raises
    ------
    RematError
        If the zoo has no such graph, or it is not affine in the batch size.
    """
    if isinstance(family, str):
        from remat.graphs.zoo import ZOO

        if family not in ZOO and exists(family):
            return as_family(Path(family))
        if family not in ZOO:
            near = f"did you mean {either(get_close_matches(family, ZOO))}?" if get_close_matches(family, ZOO) else ""
            raise GraphError(
                f"no graph of the zoo is named {family!r}; {near or 'there are ' + ', '.join(sorted(ZOO))}", "no-graph"
            )
        family = ZOO[family]
    if isinstance(family, str | os.PathLike | ComputeGraph) or hasattr(family, "is_directed"):
        graph = as_graph(cast("GraphLike", family))
        batch = graph.meta.get("batch")
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise GraphError(
                f"graph {graph.name!r} has no batch size: set meta['batch'], or use AffineGraph.scaled",
                "batch",
            )
        return AffineGraph.scaled(graph, batch)
    return family if isinstance(family, AffineGraph) else AffineGraph.of(family)


def read_memory(memory: int | str) -> int:
    """Return a memory in bytes.

    Raises
    ------
    ProblemError
        If it does not have the form ``123456`` or ``"16GiB"``.
    """
    if not isinstance(memory, float) and "%" not in str(memory):
        with suppress(ProblemError):
            return parse_budget(memory, 0)
    raise ProblemError(f"memory {memory!r} is not bytes (123456) or bytes with a unit (16GiB)", "bad-memory")


@dataclass
class _Search:
    """One call of :func:`max_batch`."""

    family: AffineGraph
    method: Contestant
    memory: int
    limits: Limits
    problem: Callable[[int], Problem]
    store: RunStore
    on_progress: OnProgress | None
    on_probe: Callable[[Probe], object] | None
    interrupted: bool = False

    def __post_init__(self) -> None:
        #: Probes of the method by batch size; and all probes, including those of the start heuristic.
        self.probes: dict[int, Probe] = {}
        self.log: list[Probe] = []
        #: Largest batch size known to fit, with its schedule.
        self.best, self.schedule, self.source = 0, Schedule.reference(self.family.pattern), ""
        self.limit = self._structural_limit()
        self.plain = self._reach(self.schedule)
        self.alone = self.limits.options.start == "alone"
        if self.plain and not self.alone:
            self.best, self.source = self.plain, "reference order"

    def run(self) -> None:
        """Probe batch sizes until the next one is known not to fit, or the method finds none there."""
        self._try(self.limit + 1, self.method, self.probes)
        if self.method.is_heuristic:
            self._climb(self.method, self.probes)
            return
        if START in registry.heuristics() and not self.alone:
            self._climb(Contestant(START), dict(self.probes))
        while (self.best + 1) not in self.probes:
            above = min(batch for batch in self.probes if batch > self.best)
            self._try((self.best + above) // 2, self.method, self.probes)

    def _climb(self, method: Contestant, tried: dict[int, Probe]) -> None:
        """Probe upward by doubling steps up to the first failure, then bisect."""
        step = 1
        while (self.best + 1) not in tried:
            above = min(batch for batch in tried if batch > self.best)
            batch = min(self.best + step, above - 1) if step else (self.best + above) // 2
            step = 2 * step if self._try(batch, method, tried) else 0

    def result(self) -> BatchResult:
        """Return the certified results so far."""
        graph = schedule = certificate = None
        if self.best:
            problem = self.problem(self.best)
            graph, schedule = problem.graph, self.schedule.signed_for(problem.graph)
            certificate = validate(graph, schedule, problem.rules)
            if not certificate.accepted or certificate.cost > most_cost(graph):
                raise BackendError(f"the schedule of {self.source} changed its verdict at batch size {self.best}")
        proved = [probe.batch for probe in self.probes.values() if probe.verdict.proved and probe.batch > self.best]
        return BatchResult(
            self.family, self.memory, self.method, self.best, graph, schedule, certificate, self.plain,
            self.probes.get(self.best + 1), min(proved, default=self.limit + 1) - 1,
            tuple(self.log), self.source, self.limits.as_dict(), self.interrupted,
        )  # fmt: skip

    def _try(self, batch: int, method: Contestant, tried: dict[int, Probe]) -> bool:
        """Solve one batch size and add the probe to `tried`; return True if it fits."""
        problem = self.problem(batch)
        most = most_cost(problem.graph)
        enough: list[StoppingCriterion | float] = [TargetCost(most)]
        if isinstance(self.limits.stop, StoppingCriterion | int | float):
            enough.append(self.limits.stop)
        # A schedule with explicit frees (dead retention) cannot be a start: implied frees make it a different schedule.
        given = self.source and not self.schedule.has_frees and not self.alone
        start = self.schedule.signed_for(problem.graph) if given else None
        limits = replace(self.limits, stop=AnyOf(*enough))
        watch = partial(nullcontext, self.on_progress)
        run = stored_or_run(self.store, method, problem, limits, start, watch=watch)
        if run.is_interrupted:
            raise KeyboardInterrupt
        result = run.result
        if result is None:
            probe = Probe(batch, BatchVerdict.FAILED, most, method.label, why=f"{method.label} failed: {run.error}")
        else:
            verdict = BatchVerdict.NOT_FOUND
            why = f"{method.label} found none, which proves nothing"
            if result.objective is not None and result.objective <= most:
                verdict, why = BatchVerdict.FITS, ""
            elif result.status == "infeasible":
                verdict, why = BatchVerdict.INFEASIBLE, result.message.partition("; ")[0]
            elif result.bound > most:
                verdict = BatchVerdict.TOO_EXPENSIVE
                why = f"every schedule costs at least {result.bound:,}, one extra forward pass allows {most:,}"
            elif result.stop == "deadline":
                why = f"{method.label} found none in time"
            probe = Probe(
                batch, verdict, most, method.label, result.objective, result.bound, str(result.scope),
                covers(result.scope, problem), result.timings["total"], result.source, why,
            )  # fmt: skip
        tried[batch] = probe
        self.log.append(probe)
        fits = probe.verdict is BatchVerdict.FITS
        if fits:
            assert result is not None and result.schedule is not None
            self._take(batch, result.schedule, result.source)
        if self.on_probe is not None:
            self.on_probe(probe)
        return fits

    def _take(self, batch: int, schedule: Schedule, source: str) -> None:
        """Record a schedule that fits, with its largest batch; refuse it if it contradicts a proof."""
        if source.startswith("the warm start"):
            source = self.source
        reach = self._reach(schedule)
        own = not self.method.is_heuristic and source == self.method.source
        for probe in self.probes.values():
            if probe.verdict.proved and probe.batch <= reach and (probe.complete or own):
                raise BackendError(
                    f"{self.method.label} proved that batch size {probe.batch:,} does not fit ({probe.verdict}), "
                    f"but its schedule for {batch:,} is good up to {reach:,}"
                )
        self.best, self.schedule, self.source = reach, schedule, source

    def _reach(self, schedule: Schedule) -> int:
        """Return the largest batch size at which `schedule` keeps the memory; 0: none."""
        one, two = (self._memory(schedule, batch) for batch in (1, 2))
        slope = two - one
        constant = one - slope
        if (constant > self.memory).any():
            return 0
        rows = slope > 0  # some step has growing memory
        return int(((self.memory - constant[rows]) // slope[rows]).min())

    def _memory(self, schedule: Schedule, batch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        problem = self.problem(batch)
        done = problem.simulate(schedule.signed_for(problem.graph))
        return done.memory[done.is_compute]

    def _structural_limit(self) -> int:
        """Return the largest batch size at which each op fits."""

        def fits(batch: int) -> bool:
            return self.problem(batch).structural_peak <= self.memory

        if not fits(1):
            return 0
        high = 2
        while fits(high):
            high *= 2
        return bisect_left(range(high), True, lo=high // 2 + 1, key=lambda batch: not fits(batch)) - 1


def most_cost(graph: ComputeGraph) -> int:
    """Return the cost of each op once plus a second forward pass: the right-hand side of eq. 10."""
    return graph.base_cost + sum(op.cost for op in graph.ops if op.phase == "forward")
