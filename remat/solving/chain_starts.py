"""Starts on training graphs, some of which lie above and are found by name."""

from __future__ import annotations

from typing import Any

from remat.heuristics.base import Heuristic
from remat.heuristics.checkpointing.step import training_step
from remat.problem import Problem
from remat.registry import heuristics, load

#: Heuristics on training graphs with their options. The first one is compiled soonest, the second one needs no compiled
#: code, nor does the third.
BLOCKS, LOWER, FEW, ROTOR = "block-checkpointing", "lower-sets", "few-stages", "rotor"
OPTIONS: dict[str, dict[str, Any]] = {BLOCKS: {"drops": True}, LOWER: {}, FEW: {}, ROTOR: {}}
#: Ops up to which Rotor and few stages are starts, and forward ops up to which lower sets are: they take long beyond.
ROTOR_OPS, FEW_OPS, LOWER_OPS = 5_000, 5_000, 1_000


def chain_starts(problem: Problem) -> list[str]:
    """Names of the heuristics on training graphs that apply to a problem, the one that is ready soonest first.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.graphs.layered import layered
    >>> chain_starts(Problem(unit_chain(9))), chain_starts(Problem(layered(9)))
    (['block-checkpointing', 'lower-sets', 'few-stages', 'rotor'], [])
    """
    step = training_step(problem)
    if step is None:
        return []
    num_ops = len(problem.graph.ops)
    few = {BLOCKS: True, LOWER: step.num_forward <= LOWER_OPS, FEW: num_ops <= FEW_OPS, ROTOR: num_ops <= ROTOR_OPS}
    return [name for name in OPTIONS if name in heuristics() and few[name]]


def in_order(starts: list[str], *, small: bool) -> tuple[list[str], list[str]]:
    """Heuristics that are compiled first, and those that come later, for such starts.

    On training graphs, block checkpointing finds a first schedule and is compiled within a second, and what drops and
    Rotor find is often close to the best. Of other problems, annealing closes the gap where they are small, and drops
    find a first schedule where they are large.

    Examples
    --------
    >>> in_order([BLOCKS, LOWER, ROTOR], small=True)
    (['block-checkpointing', 'drops', 'rotor'], ['annealing'])
    >>> in_order([], small=True), in_order([], small=False)
    ((['annealing'], ['drops']), (['drops'], ['annealing']))
    """
    if not starts:
        return (["annealing"], ["drops"]) if small else (["drops"], ["annealing"])
    return [BLOCKS, "drops", *(name for name in starts if name == ROTOR)], ["annealing"]


def chain_start(name: str) -> Heuristic:
    """The heuristic, with the options that it has as a start."""
    kind = load("heuristics", name)
    options = OPTIONS[name]
    found: Heuristic = kind(kind.options_type(**options) if options else None)
    return found
