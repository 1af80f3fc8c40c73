"""Heuristics, which find schedules without a solver: checkpointing, dynamic programmes, local search."""

from remat.heuristics.base import Heuristic, HeuristicRun

__all__ = ["Heuristic", "HeuristicRun"]
