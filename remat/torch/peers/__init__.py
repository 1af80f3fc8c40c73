"""Schedules of other tools for the same captured step: torch's partitioner, checkpointing, policies."""

from __future__ import annotations

from remat.torch.peers.compare import EqualPeak, at_equal_peak, compare_peers
from remat.torch.peers.partitioner import SOLVERS, default_partition_schedule, partitioner_schedule
from remat.torch.peers.saved import schedule_of_saved_set, tagged_saved_set, tagged_schedule
from remat.torch.peers.trace import schedule_of_trace

__all__ = [
    "SOLVERS",
    "EqualPeak",
    "at_equal_peak",
    "compare_peers",
    "default_partition_schedule",
    "partitioner_schedule",
    "schedule_of_saved_set",
    "schedule_of_trace",
    "tagged_saved_set",
    "tagged_schedule",
]
