"""The largest batch that fits a memory within one extra forward pass, by certified solves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from remat import registry
from remat.backends.base import DEFAULT_OPTIONS, SolveOptions
from remat.errors import BackendError, ProblemError
from remat.experiments.compare import Limits, as_contestant, run_method
from remat.experiments.contestant import Contestant
from remat.experiments.max_batch_result import BatchResult, BatchVerdict, Probe
from remat.graphs import ComputeGraph
from remat.graphs.batch_scaling import AffineGraph
from remat.interruption import interrupts
from remat.problem import Problem, parse_budget
from remat.schedule import OrderRule, Schedule
from remat.schedule.validate import validate
from remat.scope import covers
from remat.solving.method import MethodLike
from remat.solving.progress import OnProgress
from remat.solving.stop import AnyOf, Stop, StoppingCriterion, TargetCost

#: The heuristic that climbs before a formulation bisects what is left, where it is registered.
START = "greedy"


@interrupts()
def max_batch(
    family: AffineGraph,
    memory: int | str,
    method: Contestant | MethodLike = "checkmate/highs",
    *,
    order: OrderRule | str = OrderRule.FIXED,
    max_computes: int | Mapping[str, int] | None = None,
    keep: Iterable[str] = (),
    count_constant_memory: bool = True,
    stop: Stop = None,
    options: SolveOptions = DEFAULT_OPTIONS,
    on_progress: OnProgress | None = None,
    on_probe: Callable[[Probe], object] | None = None,
) -> BatchResult:
    """The largest batch that fits `memory` at the cost of one extra forward pass at most (Jain et al. 2020, eq. 10).

    Their programme has the batch size as a variable, and so products of variables. Here each batch size that is tried
    is a problem of its own, and few have to be tried:

    * With costs in fixed proportion, the relative cost of a schedule is the same at every batch size, and its memory at
      each step grows with the batch. So **a schedule for B + 1 is one for B**: what fits goes down to 1, what is proved
      not to fit goes up, and bisection between the two is exact for a method that proves. A family whose costs keep no
      proportion is refused.
    * For one schedule the largest batch follows from its memory at each step, which is affine: each success reaches
      up to there at once, and so does the reference order without recomputation, where the search begins.
    * Before a formulation is asked, the greedy heuristic climbs as far as it can. Above is the structural bound.

    A solve stops as soon as it has a schedule that is cheap enough. Where it ends without one and without a proof, the
    search goes on below, and the answer says that larger batches are not ruled out. For a heuristic the argument does
    not hold of *its answers*: it is asked upward from its last success, by steps that double, and from its first
    failure on in between, until it finds none at the next batch size. It may have missed larger ones.

    Parameters
    ----------
    family : AffineGraph
    memory : int or str
        Bytes, or ``"16GiB"``.
    method : str, class, object or Contestant
        As for :func:`remat.experiments.compare.compare`.
    order, max_computes, keep, count_constant_memory
        As for :class:`remat.problem.Problem`; here the constant memory (parameters, their gradients, the batch itself)
        counts unless told otherwise.
    stop, options
        Of each probe, as for :func:`remat.solve`. With ``start="alone"`` the search begins at nothing, not at the
        reference order or what greedy reaches, and each schedule is the method's own: baselines as they are published.
    on_progress : callable, optional
        Of each solve.
    on_probe : callable, optional
        Receives every batch size that was tried.

    Returns
    -------
    BatchResult
        After Ctrl-C with what was known by then.

    Raises
    ------
    ProblemError
        If nothing grows with the batch, no op is of phase ``forward``, costs keep no proportion (naming the op),
        or `memory` cannot be read.
    BackendError
        If a proof of the method at one batch size contradicts a schedule at a larger one; names both.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> chain = AffineGraph.scaled(unit_chain(6), 1)
    >>> answer = max_batch(chain, 40, "checkmate/highs")
    >>> answer.batch, answer.plain, answer.proved, answer.certificate.cost, str(answer.reason.verdict)
    (10, 5, True, 180, 'too expensive')
    """
    chosen = as_contestant(method)
    size = read_memory(memory)
    if not family.grows:
        raise ProblemError(f"no memory of {family.name} grows with the batch size")
    if not any(op.phase == "forward" for op in family.pattern.ops):
        raise ProblemError(f"no op of {family.name} has phase 'forward'; what a forward pass costs is not known")
    uneven = family.uneven_op()
    if uneven is not None:
        raise ProblemError(
            f"the cost of op {uneven!r} of {family.name} does not grow in proportion to the others; "
            "use the costs of one batch size"
        )
    limits = Limits(stop, options)

    def problem(batch: int) -> Problem:
        return Problem(family.at(batch), size, order, max_computes, keep, count_constant_memory)

    search = _Search(family, chosen, size, limits, problem, on_progress, on_probe)
    try:
        search.run()
    except KeyboardInterrupt:
        search.interrupted = True
    return search.result()


def read_memory(memory: int | str) -> int:
    """A memory in bytes.

    Raises
    ------
    ProblemError
        If it is not ``123456`` or ``"16GiB"``.
    """
    if isinstance(memory, float) or (isinstance(memory, str) and "%" in memory):
        raise ProblemError(f"memory {memory!r} is not bytes (123456) or bytes with a unit (16GiB)", "bad-memory")
    return parse_budget(memory, 0)


@dataclass
class _Search:
    """One call of :func:`max_batch`."""

    family: AffineGraph
    method: Contestant
    memory: int
    limits: Limits
    problem: Callable[[int], Problem]
    on_progress: OnProgress | None
    on_probe: Callable[[Probe], object] | None
    interrupted: bool = False

    def __post_init__(self) -> None:
        #: What the method said of each batch size; and everything that was tried, the start heuristic's too.
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
        """Try batch sizes until the next one is known not to fit, or the method finds none there."""
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
        """Upward by steps that double up to the first failure, from there on in between."""
        step = 1
        while (self.best + 1) not in tried:
            above = min(batch for batch in tried if batch > self.best)
            batch = min(self.best + step, above - 1) if step else (self.best + above) // 2
            step = 2 * step if self._try(batch, method, tried) else 0

    def result(self) -> BatchResult:
        """What is known now, certified."""
        graph = schedule = certificate = None
        if self.best:
            problem = self.problem(self.best)
            graph, schedule = problem.graph, _signed(self.schedule, problem.graph)
            certificate = validate(graph, schedule, problem.rules)
            if not certificate.accepted or certificate.cost > _most(graph):
                raise BackendError(f"the schedule of {self.source} changed its verdict at batch size {self.best}")
        proved = [probe.batch for probe in self.probes.values() if probe.verdict.proved and probe.batch > self.best]
        return BatchResult(
            self.family, self.memory, self.method, self.best, graph, schedule, certificate, self.plain,
            self.probes.get(self.best + 1), min(proved, default=self.limit + 1) - 1,
            tuple(self.log), self.source, self.limits.as_dict(), self.interrupted,
        )  # fmt: skip

    def _try(self, batch: int, method: Contestant, tried: dict[int, Probe]) -> bool:
        """Let a method solve one batch size, and note in `tried` what came; whether it fits."""
        problem = self.problem(batch)
        most = _most(problem.graph)
        enough: list[StoppingCriterion | float] = [TargetCost(most)]
        if isinstance(self.limits.stop, StoppingCriterion | int | float):
            enough.append(self.limits.stop)
        # One that says itself what is freed when (dead retention) is no start: freed earlier it is another schedule.
        given = self.source and not self.schedule.has_frees and not self.alone
        start = _signed(self.schedule, problem.graph) if given else None
        run = run_method(method, problem, replace(self.limits, stop=AnyOf(*enough)), self.on_progress, start)
        result = run.result
        if result is not None and result.stop == "interrupted":
            raise KeyboardInterrupt
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
        """Take note of a schedule that fits, and of how far it is good; what is proved must not contradict it."""
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
        """The largest batch size at which `schedule` keeps the memory; 0: none."""
        one, two = (self._memory(schedule, batch) for batch in (1, 2))
        slope = two - one
        constant = one - slope
        if (constant > self.memory).any():
            return 0
        rows = slope > 0  # what grows is held at one step at least
        return int(((self.memory - constant[rows]) // slope[rows]).min())

    def _memory(self, schedule: Schedule, batch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        problem = self.problem(batch)
        done = problem.simulate(_signed(schedule, problem.graph))
        return done.memory[done.is_compute]

    def _structural_limit(self) -> int:
        """The largest batch size at which each op has room."""

        def fits(batch: int) -> bool:
            return self.problem(batch).structural_peak <= self.memory

        if not fits(1):
            return 0
        high = 2
        while fits(high):
            high *= 2
        return bisect_left(range(high), True, lo=high // 2 + 1, key=lambda batch: not fits(batch)) - 1


def _most(graph: ComputeGraph) -> int:
    """Each op once, and the forward pass again: the right-hand side of eq. 10."""
    return graph.base_cost + sum(op.cost for op in graph.ops if op.phase == "forward")


def _signed(schedule: Schedule, graph: ComputeGraph) -> Schedule:
    """The same steps for the graph at another batch size."""
    return replace(schedule, graph=graph.name, graph_digest=graph.digest)
