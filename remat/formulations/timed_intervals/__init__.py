"""Retention intervals in time, with copies of tensors on the host."""

from remat.formulations.timed_intervals.formulation import TimedIntervals
from remat.formulations.timed_intervals.layout import TimedIntervalsOptions

__all__ = ["TimedIntervals", "TimedIntervalsOptions"]
