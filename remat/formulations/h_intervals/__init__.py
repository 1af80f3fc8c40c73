"""Retention intervals of composites."""

from remat.formulations.h_intervals.formulation import HierarchicalIntervals, HierarchicalIntervalsOptions

__all__ = ["HierarchicalIntervals", "HierarchicalIntervalsOptions"]
