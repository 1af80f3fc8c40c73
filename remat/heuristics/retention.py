"""Cheapest recomputation for given retention decisions.

Two functions, shared by all methods that decide on retention alone (checkpointing rules, rounded relaxations)::

    recomputation_for(problem, S) -> R          # both bool, shape (T, T), T the number of ops
    schedule_for(problem, S, source) -> Schedule

Rows are stages, columns are positions in the reference order. ``S[t, i]`` with ``i < t``: the values of op i are
retained from stage t - 1 into stage t. ``R[t, i]`` with ``i <= t``: op i is computed in stage t, which ends with the
first compute of op t. The outputs of an op are retained together. The exceptions are tensors to keep at the end whose
op has other outputs (:func:`kept_beside_others`): they are held from the last compute of their op, for any S.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import Csr
from remat.problem import Problem
from remat.problem.op_sequence import useful_schedule
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule


def recomputation_for(problem: Problem, S: Bool, deadline: Deadline | None = None) -> Bool:
    """Return the smallest set of computes for the retention decisions `S`, each of which a constraint forces.

    ``R[t, t] = 1``. Values retained into stage t + 1 but not into stage t are computed in stage t. Values that an op of
    the stage reads are computed before it in the stage unless they are retained into it. Stages are independent, so
    this is the cheapest R for that S under any costs. Tensors to be kept at the end count as retained after the last
    stage: without ``S[T - 1, i]`` op i is computed again in the last stage. Exempt are tensors whose op has other
    outputs, such as the statistics of a batch normalization: each lasts until the next compute of its op, and its
    readers force no compute. Memory is ignored.

    Values that cannot be recomputed are held from their first compute to their last use, for any `S`. These are values
    of ops that must not be recomputed, and accumulation buffers, which would need all their writers again. If an op
    would exceed its limit of computes, its values are held in the same way.

    Parameters
    ----------
    S : bool array, shape (T, T)
        False on and above the diagonal.
    deadline : Deadline, optional

    Returns
    -------
    bool array, shape (T, T)
        False above the diagonal, True on it.

    Raises
    ------
    ProblemError
        If `S` has another shape or type, or retains a value before its first compute.
    OverdueError
        At the deadline.

    Notes
    -----
    Jain et al., MLSys 2020, section 5 (Algorithm 2: the optimal R for a rounded S). O(T m) bit operations for m
    dependencies: ops are taken from the last to the first, each for all stages at once.

    Examples
    --------
    Retain everything only into the next stage: each stage computes what it lacks.

    >>> from remat.graphs.families import unit_chain
    >>> R = recomputation_for(Problem(unit_chain(2)), np.eye(5, k=-1, dtype=bool))
    >>> print(R.astype(int))
    [[1 0 0 0 0]
     [0 1 0 0 0]
     [0 0 1 0 0]
     [1 1 0 1 0]
     [1 0 0 0 1]]
    """
    num_ops = len(problem.graph.ops)
    if S.shape != (num_ops, num_ops) or S.dtype != np.bool_:
        raise ProblemError(
            f"S must be a boolean array of shape {(num_ops, num_ops)}, not {S.dtype} of {S.shape}", "retention"
        )
    early = np.argwhere(np.triu(S))
    if len(early):
        stage, op = early[0].tolist()
        name = problem.graph.op_names[problem.graph.arrays.order[op]]
        raise ProblemError(
            f"S[{stage}, {op}] retains the value of op {name!r}, which is computed in stage {op} first", "retention"
        )
    inputs, kept = _regained(problem)
    order = problem.graph.arrays.order
    limits = np.array([num_ops if limit is None else limit for limit in problem.compute_limits])[order]
    held = limits == 1
    while True:
        R = _closure(S, inputs, kept, held, deadline or Deadline())
        over = R.sum(axis=0) > limits
        if not over.any():
            return R
        held |= over  # held values are computed once, so this ends


def schedule_for(problem: Problem, S: Bool, source: str = "", deadline: Deadline | None = None) -> Schedule:
    """Return the schedule of :func:`recomputation_for`, stage by stage in the reference order, frees implied.

    Recomputations without a reader, which an unused entry of `S` forces, are omitted.

    Raises
    ------
    ProblemError, OverdueError
        As :func:`recomputation_for`.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> schedule_for(Problem(unit_chain(2)), np.eye(5, k=-1, dtype=bool)).computes()
    ['f0', 'f1', 'loss', 'f0', 'f1', 'g1', 'f0', 'g0']
    """
    _, position = np.nonzero(recomputation_for(problem, S, deadline))
    return useful_schedule(problem, problem.graph.arrays.order[position], source, deadline)


def kept_beside_others(problem: Problem) -> Bool:
    """Return a mask of tensors to be kept at the end whose op has other outputs that are not; shape (tensors,).

    If all outputs of an op were retained together, a few bytes of statistics would hold an activation to the end.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("normalization")
    >>> norm = b.op("norm", outputs=[b.tensor("activation", 100), b.tensor("mean", 1)])
    >>> b.output("mean")
    >>> kept_beside_others(Problem(b.build())).tolist()
    [False, True]
    """
    arrays = problem.graph.arrays
    own, outputs = arrays.producers.counts == 1, arrays.op_outputs
    others = np.bincount(outputs.rows[(own & ~problem.kept)[outputs.indices]], minlength=len(arrays.cost)) > 0
    found = problem.kept & own
    found[found] = others[arrays.producers.indices[found[arrays.producers.rows]]]
    return found


def _regained(problem: Problem) -> tuple[list[Int], Bool]:
    """Return, by position, the ops whose own outputs an op reads, and a mask of ops with an own output to keep.

    An *own* output has no other writer, and is retained with all others of its op.
    """
    arrays = problem.graph.arrays
    own = (arrays.producers.counts == 1) & ~kept_beside_others(problem)
    writer, reader, _ = arrays.edges_of(own)
    num_ops = len(arrays.order)
    kept = np.zeros(num_ops, dtype=np.bool_)
    kept[arrays.position[arrays.writes_of(problem.kept & own)[0]]] = True
    return list(Csr.distinct(arrays.position[reader], arrays.position[writer], num_ops)), kept


def _closure(S: Bool, inputs: list[Int], kept: Bool, held: Bool, deadline: Deadline) -> Bool:
    """Return R for `S`, with the values of `held` ops always retained."""
    num_ops = len(S)
    lacking = ~S.T  # by op, then stage
    lacking[held] = False
    computed = np.eye(num_ops, dtype=np.bool_)
    later = ~lacking[:, 1:]
    computed[:, :-1] |= np.triu(later & lacking[:, :-1])
    computed[:, -1] |= kept & lacking[:, -1]
    for op in deadline.each(range(num_ops - 1, -1, -1)):
        computed[inputs[op]] |= computed[op] & lacking[inputs[op]]
    return np.ascontiguousarray(computed.T)


def inputs_by_position(problem: Problem) -> list[list[int]]:
    """Return the positions of the ops that each op reads from, ascending; by its position in the reference order."""
    arrays = problem.graph.arrays
    place, reads = arrays.position.tolist(), arrays.op_predecessors.lists()
    return [sorted(place[other] for other in reads[op]) for op in arrays.order.tolist()]


def missing_inputs(op: int, reads: Sequence[Sequence[int]], there: Container[int]) -> list[int]:
    """Return the ops to compute before `op`, ascending: values not in `there`, and what they read.

    Parameters
    ----------
    reads : sequence of sequences of int
        Values that each value is computed from, all smaller.

    Examples
    --------
    >>> missing_inputs(3, [[], [0], [1], [1, 2]], {1})
    [2]
    """
    found: dict[int, None] = {}
    todo = [op]
    for reader in todo:
        new = [value for value in reads[reader] if value not in there and value not in found]
        found.update(dict.fromkeys(new))
        todo += new
    return sorted(found)
