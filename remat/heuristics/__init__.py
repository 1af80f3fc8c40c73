"""Answers without a solver: checkpointing baselines, dynamic programmes, local search."""

from remat.heuristics.base import Heuristic, HeuristicRun

__all__ = ["Heuristic", "HeuristicRun"]
