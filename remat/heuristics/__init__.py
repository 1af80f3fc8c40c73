"""Answers without a solver: checkpointing baselines, dynamic programmes, local search."""

from remat.heuristics.base import Heuristic, Run

__all__ = ["Heuristic", "Run"]
