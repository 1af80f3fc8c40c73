"""Heuristics on training graphs that provide starts: their options and size limits."""

from __future__ import annotations

from remat.heuristics.base import Heuristic
from remat.heuristics.blocks import BlockOptions
from remat.problem import Problem
from remat.problem.training_step import training_step
from remat.registry import make

#: Heuristics on training graphs with their options. The first compiles fastest; the second and third need no kernels.
BLOCKS, LOWER, FEW, ROTOR = "block-checkpointing", "lower-sets", "few-stages", "rotor"
OPTIONS = {BLOCKS: BlockOptions(drops=True), LOWER: None, FEW: None, ROTOR: None}
#: Ops up to which these provide starts; they are slow on larger graphs.
LIMITS = {LOWER: 2_000, FEW: 5_000, ROTOR: 5_000}


def chain_starts(problem: Problem) -> list[str]:
    """Return the names of the heuristics on training graphs that apply to a problem, those ready soonest first.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.graphs.layered import layered
    >>> chain_starts(Problem(unit_chain(9))), chain_starts(Problem(layered(9)))
    (['block-checkpointing', 'lower-sets', 'few-stages', 'rotor'], [])
    """
    if training_step(problem) is None:
        return []
    num_ops = len(problem.graph.ops)
    return [name for name in OPTIONS if num_ops <= LIMITS.get(name, num_ops)]


def chain_start(name: str) -> Heuristic:
    """Return a heuristic with its options as a start."""
    found: Heuristic = make("heuristics", name, OPTIONS[name])
    return found
