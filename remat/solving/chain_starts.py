"""Starts on training graphs: block checkpointing and Rotor, which lie above this part and are found by name."""

from __future__ import annotations

from typing import Any

from remat.errors import ProblemError
from remat.heuristics.base import Heuristic
from remat.heuristics.checkpointing.step import TrainingStep
from remat.problem import Problem
from remat.registry import heuristics, load

#: Heuristics on chains of blocks, the quickest first, with their options.
BLOCKS, ROTOR = "block-checkpointing", "rotor"
OPTIONS: dict[str, dict[str, Any]] = {BLOCKS: {"drops": True}, ROTOR: {}}
#: Ops up to which Rotor is a start: its programme takes seconds beyond.
ROTOR_OPS = 5_000


def chain_starts(problem: Problem) -> list[str]:
    """Names of the heuristics on chains that apply to a problem, the quickest first.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.graphs.layered import layered
    >>> chain_starts(Problem(unit_chain(9))), chain_starts(Problem(layered(9)))
    (['block-checkpointing', 'rotor'], [])
    """
    try:
        TrainingStep.of(problem)
    except ProblemError:
        return []
    few = len(problem.graph.ops) <= ROTOR_OPS
    return [name for name in OPTIONS if name in heuristics() and (few or name != ROTOR)]


def chain_start(name: str) -> Heuristic:
    """The heuristic, with the options that it has as a start."""
    kind = load("heuristics", name)
    options = OPTIONS[name]
    found: Heuristic = kind(kind.options_type(**options) if options else None)
    return found
