"""From a sequence of nodes and options to a schedule of the flat graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from remat.errors import ProblemError
from remat.formulations.hierarchical.composite import NOTHING, CompositeProblem
from remat.formulations.hierarchical.runs import Run
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int
from remat.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Step:
    """One node computed with one option.

    Attributes
    ----------
    node : int
        Of :attr:`CompositeProblem.nodes`.
    option : int
        Of its composite; 0 for an op alone.
    live : int64 array
        Tensors that are there, complete, from before the step until after it: what writes only these need not be
        computed again. Without them nothing is left out.
    """

    node: int
    option: int = 0
    live: Int = field(default_factory=lambda: NOTHING)


def find_run(problem: CompositeProblem, node: int, option: int) -> Run:
    """The run of a node with an option.

    Raises
    ------
    ProblemError
        If there is none.
    """
    if not 0 <= node < len(problem.nodes):
        raise ProblemError(f"there is no node {node}, of {len(problem.nodes)} there are")
    run = next((run for run in problem.runs(node) if run.option == option), None)
    if run is None:
        raise ProblemError(f"node {problem.nodes[node].name!r} cannot be computed with option {option}")
    return run


def expand(problem: CompositeProblem, steps: Iterable[Step], source: str = "composites") -> Schedule:
    """The schedule in which the nodes' options run one after the other, frees implied.

    Left out are recomputations of what is live and complete anyway, as the steps say, and those whose results nobody
    reads. At no step does it hold more than what the rows of the runs (:attr:`Run.rows`) say with the steps' own plan.

    Parameters
    ----------
    problem : CompositeProblem
    steps : iterable of Step
    source : str
        Who made it.

    Raises
    ------
    ProblemError
        If there is no such node or option.

    Examples
    --------
    >>> from remat.formulations.hierarchical import Composite, Option
    >>> from remat.graphs.families import unit_chain
    >>> middle = Composite("middle", [1, 2], [6, 7], [Option([1, 2], [1, 2, 6, 7])])
    >>> whole = CompositeProblem(Problem(unit_chain(4)), [middle])
    >>> schedule = expand(whole, [Step(node) for node in range(7)])
    >>> " ".join(schedule.computes())
    'f0 f1 f2 f3 loss g3 f1 f2 g2 g1 g0'
    """
    arrays = problem.arrays
    done = np.zeros(len(arrays.cost), dtype=np.bool_)
    parts = [NOTHING]
    for step in steps:
        ops = find_run(problem, step.node, step.option).ops
        if len(step.live):
            ops = ops[~_needless(problem, ops, step.live, done)]
        done[ops] = True
        parts.append(ops)
    sequence = np.concatenate(parts)
    return Schedule.of_computes(
        problem.problem.graph, sequence[needed_computes(problem.problem, sequence)], source=source
    )


def _needless(problem: CompositeProblem, ops: Int, live: Int, done: Bool) -> Bool:
    """Which of `ops` ran before, and write only what is `live`."""
    arrays, is_live = problem.arrays, problem.border.passing.copy()
    is_live[live] = True
    lacking = np.zeros(len(done), dtype=np.int64)
    np.add.at(lacking, arrays.op_outputs.rows, ~is_live[arrays.op_outputs.indices])
    return done[ops] & (lacking[ops] == 0)


def needed_computes(problem: Problem, sequence: Int) -> Bool:
    """Which computes are first ones, or have a result that is read before it is computed again (or kept).

    Unlike :func:`remat.formulations.sequence.useful_computes` it knows accumulation buffers that are filled again: a
    contribution is needed if it is the last one of its op before a read.
    """
    arrays = problem.graph.arrays
    inputs, outputs = arrays.op_inputs.lists(), arrays.op_outputs.lists()
    producers = arrays.producers.counts.tolist()
    first = np.zeros(len(sequence), dtype=np.bool_)
    first[np.unique(sequence, return_index=True)[1]] = True
    left = [count if kept else 0 for count, kept in zip(producers, problem.kept.tolist(), strict=True)]
    given: dict[int, set[int]] = {}  # ops that contribute to the instance of a buffer that is read later
    needed = first.copy()
    for step in range(len(sequence) - 1, -1, -1):
        op = int(sequence[step])
        wanted = [t for t in outputs[op] if left[t] and (producers[t] == 1 or op not in given.get(t, ()))]
        if not first[step] and not wanted:
            continue
        needed[step] = True
        for t in wanted:
            left[t] -= 1
            if producers[t] > 1:
                given.setdefault(t, set()).add(op)
                if not left[t]:
                    given[t] = set()
        for t in inputs[op]:
            if producers[t]:
                left[t] = producers[t]
                given[t] = set()
    return needed
