"""Retention intervals (Moccasin): the formulation, its options and its blocks of variables."""

from remat.formulations.retention_intervals.formulation import RetentionIntervals, RetentionIntervalsOptions

__all__ = ["RetentionIntervals", "RetentionIntervalsOptions"]
