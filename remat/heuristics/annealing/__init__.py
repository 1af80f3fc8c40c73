"""Simulated annealing of order and recomputation together."""

from remat.heuristics.annealing.heuristic import Annealing
from remat.heuristics.annealing.options import AnnealingOptions

__all__ = ["Annealing", "AnnealingOptions"]
