"""Shares of feasible roundings of Checkmate's relaxation, with and without the second phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from remat.backends.highs import Highs
from remat.errors import ProblemError
from remat.formulations.checkmate import Checkmate
from remat.heuristics.retention import inputs_by_position, recomputation_for
from remat.problem import Problem
from remat.runtime.arrays import Bool, Float
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions, StopReason
from remat.schedule.formats.checkmate import node_values, schedule_from_matrices

#: Matrix entries drawn at a time: 16 MB of random numbers.
BLOCK = 2_000_000


@dataclass(frozen=True)
class Roundings:
    """Counts and costs of the roundings of one kind.

    Attributes
    ----------
    kind : str
        ``naive`` rounds R* and S*; ``two-phase`` rounds S* and computes the least R. ``deterministic`` rounds at 0.5;
        ``randomised`` rounds each entry up with its value as probability.
    samples : int
    consistent : int
        Roundings that satisfy rows (1b) and (1c): inputs are computed or retained, and retained values existed.
    feasible : int
        Consistent roundings within the budget.
    broken : float
        Mean number of rows (1b) and (1c) that a rounding violates.
    costs : tuple of int
        Costs of the feasible roundings, ascending.
    """

    kind: str
    samples: int
    consistent: int
    feasible: int
    broken: float
    costs: tuple[int, ...]

    @property
    def share(self) -> float:
        """Share of feasible roundings."""
        return self.feasible / self.samples


def round_relaxation(
    problem: Problem,
    samples: int = 1000,
    *,
    allowance: float = 0.1,
    algorithm: str = "simplex",
    options: SolveOptions = DEFAULT_OPTIONS,
) -> list[Roundings]:
    """Round Checkmate's relaxation in four ways, and count feasible schedules.

    Source: Jain et al., MLSys 2020, section 5.1 (naive rounding of R* and S*: no sample was feasible on VGG16), and
    appendix D, figure 7 (two-phase rounding of S*, deterministic and randomised).

    Parameters
    ----------
    problem : Problem
        With a budget. Each op of its graph has one output, and only outputs of the graph are kept.
    samples : int
        Samples of each randomised kind.
    allowance : float
        ε: the relaxation is solved for the budget (1 − ε) B, or for B if that is infeasible.
    algorithm : {"simplex", "ipm", "pdlp"}
        Algorithm of HiGHS.
    options : SolveOptions
        Threads, seed and deadline.

    Returns
    -------
    list of Roundings
        Naive and two-phase, each deterministic and randomised.

    Raises
    ------
    ProblemError
        If there is no budget, or the relaxation is infeasible or not solved in time.
    FormatError
        With the name of an op with several outputs or a tensor with several writers.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> for found in round_relaxation(Problem(unit_chain(8), 5), 200):
    ...     print(found.kind, found.feasible, found.samples)
    naive deterministic 0 1
    naive randomised 0 200
    two-phase deterministic 1 1
    two-phase randomised 145 200
    """
    node_values(problem.graph)
    computed, retained = _relaxed(problem, allowance, algorithm, options)
    rounding = _Rounding(problem)
    found = []
    for word, first in (("naive", computed), ("two-phase", None)):
        block = None if first is None else (first >= 0.5)[None], (retained > 0.5)[None]
        found.append(rounding.judge(f"{word} deterministic", [block]))
        draws = _draws(first, retained, samples, np.random.default_rng(options.seed))
        found.append(rounding.judge(f"{word} randomised", draws))
    return found


#: R, or None if it follows from S; and S; both of shape (samples, stages, ops).
_Block = tuple[Bool | None, Bool]


def _relaxed(problem: Problem, allowance: float, algorithm: str, options: SolveOptions) -> tuple[Float, Float]:
    """Return R* and S*, both of shape (stages, ops)."""
    budget = problem.budget_bytes
    if budget is None:
        raise ProblemError("without a budget there is nothing to round", "no-budget")
    for share in dict.fromkeys((allowance, 0.0)):
        try:
            stated = Checkmate(replace(problem, budget=int((1 - share) * budget)))
            found = Highs().relax(stated.build(), options, algorithm)
        except ProblemError:  # the budget is below the bytes that are always held
            continue
        if found.values is not None and found.stop in (StopReason.FINISHED, StopReason.OTHER):
            stage, op = stated.layout.runs()
            computed = np.zeros((stated.layout.T, stated.layout.n))
            computed[stage, op] = found.values[stated.statement[1].R.index]
            return computed, stated.retention(found.values)
    raise ProblemError("Checkmate's relaxation is infeasible or not solved in time", "no-relaxation")


def _draws(computed: Float | None, retained: Float, samples: int, random: np.random.Generator) -> Iterator[_Block]:
    size = max(1, BLOCK // retained.size)
    for first in range(0, samples, size):
        shape = (min(size, samples - first), *retained.shape)
        yield None if computed is None else random.random(shape) < computed, random.random(shape) < retained


class _Rounding:
    """Evaluation of matrices R and S of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        reads = inputs_by_position(problem)
        self.reader = np.repeat(np.arange(len(reads)), [len(row) for row in reads])
        self.read = np.array([one for row in reads for one in row], dtype=np.int64)
        self.kept = problem.graph.arrays.is_output[node_values(problem.graph)]

    def judge(self, kind: str, blocks: Iterable[_Block]) -> Roundings:
        """Count consistent and feasible roundings."""
        samples, broken, consistent, costs = 0, 0, 0, []
        for computed, retained in blocks:
            if computed is None:
                computed = np.array([recomputation_for(self.problem, S) for S in retained])
            rows = self.broken_rows(computed, retained)
            samples, broken = samples + len(rows), broken + int(rows.sum())
            for k in np.flatnonzero(rows == 0).tolist():
                consistent += 1
                certificate = self.problem.validate(
                    schedule_from_matrices(self.problem.graph, computed[k], retained[k])
                )
                if certificate.accepted:
                    costs.append(certificate.cost)
        return Roundings(kind, samples, consistent, len(costs), broken / samples, tuple(sorted(costs)))

    def broken_rows(self, computed: Bool, retained: Bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Count the rows (1b) and (1c) that each sample violates, including graph outputs; shape (samples,)."""
        there = computed | retained
        inputs = computed[:, :, self.reader] & ~there[:, :, self.read]
        after = np.concatenate([retained[:, 1:], np.broadcast_to(self.kept, (len(computed), 1, len(self.kept)))], 1)
        return inputs.sum((1, 2)) + (after & ~there).sum((1, 2))
