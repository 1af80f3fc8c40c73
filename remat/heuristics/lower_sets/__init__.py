"""Kusumoto's dynamic programme over chains of lower sets."""

from remat.heuristics.lower_sets.heuristic import LowerSets, LowerSetsOptions

__all__ = ["LowerSets", "LowerSetsOptions"]
