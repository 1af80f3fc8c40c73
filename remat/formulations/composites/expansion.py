"""Expansion of a sequence of nodes and options to a schedule of the flat graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from remat.errors import ProblemError
from remat.formulations.composites.composite import NOTHING, CompositeProblem
from remat.formulations.composites.runs import Run
from remat.problem.op_sequence import useful_computes
from remat.runtime.arrays import Bool, Int
from remat.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Step:
    """One node computed with one option."""

    node: int
    """Index in :attr:`CompositeProblem.nodes`."""
    option: int = 0
    """Option of its composite; 0 for a single op."""
    live: Int = field(default_factory=lambda: NOTHING)
    """Tensors that are live and complete from before the step until after it. Ops that write only such tensors are not
    computed again.
    """


def find_run(problem: CompositeProblem, node: int, option: int) -> Run:
    """Return the run of a node with an option.

    Raise ProblemError if the node does not exist or does not have the option.
    """
    if not 0 <= node < len(problem.nodes):
        raise ProblemError(f"there is no node {node}, of {len(problem.nodes)} there are")
    run = next((run for run in problem.runs(node) if run.option == option), None)
    if run is None:
        raise ProblemError(f"node {problem.nodes[node].name!r} cannot be computed with option {option}")
    return run


def expand(problem: CompositeProblem, steps: Iterable[Step], source: str = "composites") -> Schedule:
    """Return the schedule in which the nodes' options run one after the other, with implied frees.

    It leaves out recomputations of tensors that are live and complete according to the steps, and recomputations whose
    results are never read. Its memory never exceeds the rows of the runs (:attr:`Run.rows`) for the plan of the steps.
    Raise ProblemError if a node or option does not exist.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.formulations.composites import Composite, Option
    >>> from remat.graphs.families import unit_chain
    >>> middle = Composite("middle", [1, 2], [6, 7], [Option([1, 2], [1, 2, 6, 7])])
    >>> whole = CompositeProblem(Problem(unit_chain(4)), [middle])
    >>> schedule = expand(whole, [Step(node) for node in range(7)])
    >>> " ".join(schedule.computes())
    'f0 f1 f2 f3 loss g3 f1 f2 g2 g1 g0'
    """
    sequence = np.concatenate([NOTHING, *computed_by(problem, steps)])
    return Schedule.of_computes(
        problem.problem.graph, sequence[useful_computes(problem.problem, sequence, refills=True)], source=source
    )


def computed_by(problem: CompositeProblem, steps: Iterable[Step]) -> list[Int]:
    """Return the ops that each step computes: those of its run, less those whose outputs are live.

    Raise ProblemError if a node or option does not exist.
    """
    done = np.zeros(len(problem.arrays.cost), dtype=np.bool_)
    parts = []
    for step in steps:
        ops = find_run(problem, step.node, step.option).ops
        if len(step.live):
            ops = ops[~_needless(problem, ops, step.live, done)]
        done[ops] = True
        parts.append(ops)
    return parts


def _needless(problem: CompositeProblem, ops: Int, live: Int, done: Bool) -> Bool:
    """Mark those of `ops` that ran before and write only `live` tensors."""
    arrays, is_live = problem.arrays, problem.border.passing.copy()
    is_live[live] = True
    lacking = np.zeros(len(done), dtype=np.int64)
    np.add.at(lacking, arrays.op_outputs.rows, ~is_live[arrays.op_outputs.indices])
    return done[ops] & (lacking[ops] == 0)
