"""Drops: a fast heuristic with compiled kernels for graphs of any size."""

from remat.heuristics.drops.heuristic import Drops, DropsOptions

__all__ = ["Drops", "DropsOptions"]
