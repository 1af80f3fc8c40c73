"""Measured memory: of storages (exact), of the CPU's allocator (with workspaces), or of a GPU."""

from remat.torch.memory.measure import AllocatorRecord, MemoryUse, measure_peak, profiled_memory
from remat.torch.memory.storages import Sample, StorageTracker, track_storages

__all__ = [
    "AllocatorRecord",
    "MemoryUse",
    "Sample",
    "StorageTracker",
    "measure_peak",
    "profiled_memory",
    "track_storages",
]
