"""Simulated annealing of order and recomputation together."""

from remat.heuristics.annealing.heuristic import Annealing, AnnealingOptions

__all__ = ["Annealing", "AnnealingOptions"]
