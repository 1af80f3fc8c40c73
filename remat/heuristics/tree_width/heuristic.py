"""TW-Remat as a heuristic: a search for the depth of recomputation in the tree."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from remat.errors import ProblemError
from remat.heuristics.checkpointing.base import Checkpointing
from remat.heuristics.tree_width.recursion import (
    LongSequenceError,
    Ops,
    SeparatorTree,
    by_degree,
    by_fill_in,
    separator_tree,
    sequence_of,
)
from remat.problem import Problem
from remat.problem.op_sequence import useful_schedule
from remat.runtime.checked_options import Options, Positive
from remat.schedule import Schedule

#: Largest numbers of ops for decompositions by degree and by fill-in; both take at least quadratic time.
MOST_OPS = {by_degree: 20_000, by_fill_in: 1_000}


@dataclass(frozen=True)
class TreeWidthOptions(Options):
    """Options of :class:`TreeWidth`."""

    most_computes: Positive = 30
    """Average computes per op beyond which a schedule is abandoned."""


class TreeWidth(Checkpointing):
    """TW-Remat: divide and conquer along a tree decomposition, for any graph.

    Kumar, Purohit, Svitkina, Vee and Wang, *Efficient Rematerialization for Deep Networks* (NeurIPS 2019): a graph of
    width k needs memory for only O(k log n) values, if all have one size. A bag of a tree decomposition separates the
    graph into parts. Its values are computed one by one, each with its inputs in the parts below, which are emptied
    after each. Decompositions eliminate nodes of least degree, or of least fill-in, first (rules of networkx).

    The paper has no budget. Here parts of up to c ops run without drops, and c is bisected between one op (the paper's
    schedule) and all of them (no recomputation); the answer is the cheapest schedule that fits. If first computes must
    follow the reference order, an op that the recursion would run later runs in its place, together with its missing
    inputs.

    Sizes and costs are ignored. On chains it needs little memory; on wide graphs it can need more than no
    recomputation.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> from remat.schedule import simulate
    >>> graph = unit_chain(32)
    >>> found = simulate(graph, TreeWidth().run(Problem(graph, 8), HeuristicRun()))
    >>> found.peak, found.cost
    (8, 113)
    """

    name = "tree-width"
    options_type = TreeWidthOptions
    table_bytes = 0

    def candidates(self, problem: Problem) -> Iterator[Schedule]:
        ops = Ops(problem)
        num_ops = len(ops.inputs)
        if num_ops > MOST_OPS[by_degree]:
            raise ProblemError(
                f"{self.name} decomposes graphs of at most {MOST_OPS[by_degree]:,} ops, not of {num_ops:,}", "many-ops"
            )
        yield Schedule.of_computes(problem.graph, problem.graph.arrays.order, source=self.name)
        if self.fitted:
            return
        neighbours = ops.neighbours
        for elimination, most in MOST_OPS.items():
            if num_ops <= most:
                tree = separator_tree(neighbours, elimination, self.deadline)
                yield from self._along(problem, ops, tree)

    def _along(self, problem: Problem, ops: Ops, tree: SeparatorTree) -> Iterator[Schedule]:
        """Yield schedules with cut-offs 1, 2, 4, ...; then between the largest that fits and the next."""
        num_ops = len(ops.inputs)

        def tried(cut_off: int) -> Generator[Schedule, None, bool]:
            """Yield the schedule of a cut-off, unless it is too long; return True if it fits."""
            try:
                sequence = sequence_of(ops, tree, cut_off, self.options.most_computes * num_ops, self.deadline)
            except LongSequenceError:
                return False
            yield useful_schedule(problem, problem.graph.arrays.order[sequence], self.name, self.deadline)
            return self.fitted

        fits, cut_off = 0, 1
        while cut_off < num_ops:
            fits = cut_off if (yield from tried(cut_off)) else fits
            cut_off *= 2
        over = min(2 * fits, num_ops)
        while fits + 1 < over:
            middle = (fits + over) // 2
            if (yield from tried(middle)):
                fits = middle
            else:
                over = middle
