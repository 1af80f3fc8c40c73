"""Chen's two choices of checkpoints, on three lists of candidates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from remat.heuristics.checkpointing.base import Checkpointing, SweepOptions
from remat.heuristics.checkpointing.checkpoints import (
    all_forward_ops,
    articulation_points,
    every_square_root,
    greedy_sweep,
    retained_with,
)
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.schedule import Schedule


class _Chosen(Checkpointing):
    """Checkpoints chosen among candidates; other values are recomputed segment by segment."""

    eligible = staticmethod(all_forward_ops)
    """Forward ops that may be checkpoints."""
    for_chains: ClassVar[bool] = False

    def candidates(self, problem: Problem) -> Iterator[Schedule]:
        step = TrainingStep.of(problem)
        if self.for_chains:
            step.require_chain(self.name)
        for checkpoints in self.choices(step, self.eligible(step)):
            yield self.retaining(problem, retained_with(step, checkpoints))

    @abstractmethod
    def choices(self, step: TrainingStep, eligible: list[int]) -> Iterator[list[int]]:
        """Yield sets of checkpoints."""


class _SquareRoot(_Chosen):
    def choices(self, step: TrainingStep, eligible: list[int]) -> Iterator[list[int]]:
        yield every_square_root(eligible)


class _Greedy(_Chosen):
    options_type = SweepOptions

    def choices(self, step: TrainingStep, eligible: list[int]) -> Iterator[list[int]]:
        return greedy_sweep(step, eligible, self.options.sweep)


class ChenSqrt(_SquareRoot):
    """Chen's √n: every k-th forward op of a chain is a checkpoint, k the square root of their number, rounded down.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016: O(√n) memory for at most one more forward pass.
    It ignores sizes, costs and the budget: there is one schedule, which fits or does not. For chains; Checkmate's paper
    uses it on VGG and MobileNet only. On the unit chain of n forward ops it costs 2 n + 1, plus one for each
    other op before the last checkpoint.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> ChenSqrt().run(Problem(unit_chain(16)), HeuristicRun()).num_computes
    45
    """

    name = "chen-sqrt"
    for_chains = True


class ChenGreedy(_Greedy):
    """Chen's greedy choice: a checkpoint of a chain after every b bytes written, for many b.

    Chen et al. 2016, algorithm 3, with the search over b of Checkmate (MLSys 2020, section 6.1), from the largest value
    to all forward values together. For chains.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> ChenGreedy().run(Problem(unit_chain(16), 9), HeuristicRun()).num_computes
    43
    """

    name = "chen-greedy"
    for_chains = True


class LinearizedSqrt(_SquareRoot):
    """Chen's √n with the reference order as a chain; the optimal recomputation restores the dependencies.

    Checkmate (MLSys 2020, appendix B.2), there "linearized √n". The same as `chen-sqrt` on chains. The order must be
    topological, as the reference order is; that of the published program ignores edge directions and violates 13 of 37
    dependencies of FCN8. Values that are read across segments are recomputed for each such read.

    Examples
    --------
    >>> from remat.graphs.zoo import unet
    >>> from remat.heuristics import HeuristicRun
    >>> from remat.schedule import simulate
    >>> graph = unet()
    >>> round(simulate(graph, LinearizedSqrt().run(Problem(graph), HeuristicRun())).peak / graph.reference_peak, 2)
    0.57
    """

    name = "linearized-sqrt"


class LinearizedGreedy(_Greedy):
    """Chen's greedy choice, with the sweep over b and the reference order as a chain.

    Checkmate (MLSys 2020, appendix B.2), there "linearized greedy", its strongest baseline on graphs with skip
    connections. The same as `chen-greedy` on chains. See `linearized-sqrt` for the order.
    """

    name = "linearized-greedy"


class ArticulationAll(_Chosen):
    """Checkpoint at every articulation point of the forward graph.

    In the published program of Checkmate, but not in its table 1; in its figure 6, "checkpoint all" on U-Net. The same
    as `checkpoint-all` on chains. `ap-sqrt` defines articulation points.

    Examples
    --------
    >>> from remat.graphs.zoo import unet
    >>> from remat.heuristics import HeuristicRun
    >>> graph = unet()
    >>> schedule = ArticulationAll().run(Problem(graph), HeuristicRun())
    >>> round(100 * (Problem(graph).simulate(schedule).cost / graph.base_cost - 1), 1)
    27.2
    """

    name = "ap-all"
    eligible = staticmethod(articulation_points)

    def choices(self, step: TrainingStep, eligible: list[int]) -> Iterator[list[int]]:
        yield eligible


class ArticulationSqrt(_SquareRoot):
    """Chen's √n with the articulation points of the forward graph as candidates.

    Checkmate (MLSys 2020, appendix B.1), there "AP √n". Nothing crosses between two articulation points, so a segment
    can be recomputed from its checkpoint alone. With few of them segments are large, and the linearized variant may be
    better: U-Net has 10, and needs 0.80 of the reference peak instead of 0.57. The published program takes the
    candidates in the order of a hash set, so that "every k-th" is arbitrary; here they are in reference order.

    Examples
    --------
    >>> from remat.graphs.zoo import unet
    >>> from remat.heuristics import HeuristicRun
    >>> from remat.schedule import simulate
    >>> graph = unet()
    >>> round(simulate(graph, ArticulationSqrt().run(Problem(graph), HeuristicRun())).peak / graph.reference_peak, 2)
    0.8
    """

    name = "ap-sqrt"
    eligible = staticmethod(articulation_points)


class ArticulationGreedy(_Greedy):
    """Chen's greedy choice, with the sweep over b and the articulation points of the forward graph as candidates.

    Checkmate (MLSys 2020, appendix B.1), there "AP greedy". See `ap-sqrt`. Bytes are counted over all forward ops.
    """

    name = "ap-greedy"
    eligible = staticmethod(articulation_points)
