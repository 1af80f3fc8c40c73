"""Training steps: forward ops, loss and backward ops, and the forward op of each backward op."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import staircase
from remat.problem.problem import Problem
from remat.runtime.arrays import Int


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """Training step as three runs of positions in the reference order.

    Attributes
    ----------
    problem : Problem
    num_forward : int
        Positions ``0 .. num_forward - 1`` are the forward ops: those before the first op of phase loss or backward.
    first_backward : int
        Position of the first op of phase backward; the ops between are the loss.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> step = TrainingStep.of(Problem(unit_chain(3)))
    >>> step.num_forward, step.first_backward, step.mirror.tolist(), step.is_chain
    (3, 4, [2, 1, 0], True)
    """

    problem: Problem
    num_forward: int
    first_backward: int

    @classmethod
    def of(cls, problem: Problem) -> TrainingStep:
        """Find the training step by the phases of the ops; without phases, by edges if the graph mirrors itself.

        It mirrors itself if it has 2 L + 1 ops and op 2 L - i reads op i for all i < L. The only edges of op L, the
        loss, are with ops L - 1 and L + 1.

        Raises
        ------
        ProblemError
            If the graph is no training graph.
        """
        arrays, graph = problem.graph.arrays, problem.graph
        phases = [graph.ops[op].phase for op in arrays.order.tolist()]
        if not any(phases):
            return cls._mirrored(problem)
        ends = [
            next((k for k, p in enumerate(phases) if p in wanted), 0)
            for wanted in (("loss", "backward"), ("backward",))
        ]
        if not min(ends):
            missing = "forward" if "backward" in phases else "backward"
            raise ProblemError(
                f"graph {graph.name!r} is no training graph: no op of phase {missing} where it should be",
                "no-training-graph",
            )
        return cls(problem, ends[0], ends[1])

    @classmethod
    def _mirrored(cls, problem: Problem) -> TrainingStep:
        num_ops = len(problem.graph.ops)
        half = num_ops // 2
        step = cls(problem, half, half + 1)
        edges = set(zip(*(ends.tolist() for ends in step.edges), strict=True))
        loss = {(half - 1, half), (half, half + 1)}
        mirror = {(i, num_ops - 1 - i) for i in range(half)}
        if num_ops % 2 == 0 or half == 0 or not loss | mirror <= edges or {e for e in edges if half in e} != loss:
            raise ProblemError(
                f"graph {problem.graph.name!r} is not recognised as a training graph: its ops have no phases, and its "
                "second half does not mirror the first",
                "no-training-graph",
            )
        return step

    @cached_property
    def edges(self) -> tuple[Int, Int]:
        """Positions of producers and consumers of all dependencies."""
        arrays = self.problem.graph.arrays
        return arrays.position[arrays.edge_producer], arrays.position[arrays.edge_consumer]

    @cached_property
    def mirror(self) -> Int:
        """Forward op that each backward op belongs to, never increasing; shape (backward ops,).

        It is the latest, over this and all later backward ops, of the earliest forward op that each of them reads.
        Values read throughout the backward pass, such as masks, therefore do not count.
        """
        producer, consumer = self.edges
        num_ops = len(self.problem.graph.ops)
        earliest = np.full(num_ops, num_ops, dtype=np.int64)
        forward = producer < self.num_forward
        np.minimum.at(earliest, consumer[forward], producer[forward])
        earliest[earliest == num_ops] = 0  # reads none: belongs with the following ops
        return np.maximum.accumulate(earliest[self.first_backward :][::-1])[::-1]

    @cached_property
    def last_forward_reads(self) -> Int:
        """Position of the last reader of each tensor in forward and loss; -1 without one; shape (tensors,)."""
        arrays = self.problem.graph.arrays
        return arrays.consumers.highest(np.where(arrays.position < self.first_backward, arrays.position, -1), -1)

    @cached_property
    def first_backward_reads(self) -> Int:
        """Position of the first reader of each tensor in the backward pass; the end without one; shape (tensors,)."""
        arrays, end = self.problem.graph.arrays, len(self.problem.graph.arrays.order)
        return arrays.consumers.lowest(np.where(arrays.position < self.first_backward, end, arrays.position), end)

    def crossing(self, sizes: Int) -> Int:
        """Return the bytes written up to each position of forward and loss and read later there; (first_backward,).

        Parameters
        ----------
        sizes : int64 array, shape (tensors,)
            Weight of each tensor; graph inputs do not count.

        Examples
        --------
        >>> from remat.graphs.families import unit_chain
        >>> step = TrainingStep.of(Problem(unit_chain(3)))
        >>> step.crossing(step.problem.graph.arrays.size).tolist()
        [1, 1, 1, 0]
        """
        arrays, end = self.problem.graph.arrays, self.first_backward
        first, last = arrays.producers.lowest(arrays.position, end), self.last_forward_reads
        crosses = last > first
        return staircase(first[crosses], last[crosses] - 1, sizes[crosses], end)

    @property
    def is_chain(self) -> bool:
        """True when every forward op reads the forward op before it, and no other."""
        return self._off_chain is None

    @cached_property
    def _off_chain(self) -> int | None:
        """First forward op that does not read only the one before it; None for chains."""
        reads: list[set[int]] = [set() for _ in self.problem.graph.ops]
        for producer, consumer in zip(*(ends.tolist() for ends in self.edges), strict=True):
            reads[consumer].add(producer)
        return next((k for k in range(1, self.num_forward) if reads[k] != {k - 1}), None)

    def require_chain(self, method: str) -> None:
        """Require a chain.

        Raises
        ------
        ProblemError
            If it is none; the message names the first forward op that does not read only the one before it.
        """
        if self._off_chain is not None:
            name = self.problem.graph.op_names[self.problem.graph.arrays.order[self._off_chain]]
            raise ProblemError(
                f"{method} is for chains, but forward op {name!r} of graph {self.problem.graph.name!r} does not "
                "read the one before it alone; take a linearized or articulation point method",
                "no-chain",
            )

    @cached_property
    def sizes(self) -> Int:
        """Bytes of the outputs of each forward op; shape (num_forward,)."""
        arrays = self.problem.graph.arrays
        return arrays.op_outputs.sums(arrays.size)[arrays.order[: self.num_forward]]


def training_step(problem: Problem) -> TrainingStep | None:
    """Return the problem as a training step; None for graphs without a backward pass."""
    try:
        return TrainingStep.of(problem)
    except ProblemError:
        return None
