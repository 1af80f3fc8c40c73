"""Schedules for external viewers: memory snapshots of PyTorch, traces of Chrome and Perfetto; tables by layer."""

from remat.schedule.traces.chrome import chrome_trace, chrome_trace_text, save_chrome_trace
from remat.schedule.traces.layers import LayerRow, LayerTable, layer_table
from remat.schedule.traces.memory_viz import memory_snapshot, save_memory_snapshot, snapshot_bytes
from remat.schedule.traces.perfetto import perfetto_trace

__all__ = [
    "LayerRow",
    "LayerTable",
    "chrome_trace",
    "chrome_trace_text",
    "layer_table",
    "memory_snapshot",
    "perfetto_trace",
    "save_chrome_trace",
    "save_memory_snapshot",
    "snapshot_bytes",
]
