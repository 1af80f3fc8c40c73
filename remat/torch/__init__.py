"""Real models in, real training steps out: PyTorch (``pip install remat[torch]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat.torch.capture import capture, fake_tensors
    from remat.torch.captured import Captured, Input, ResultValue
    from remat.torch.costs import CostModel, Device, cost_model
    from remat.torch.execute import Executor, OpRun, Step
    from remat.torch.memory import measure_peak, profiled_memory, track_storages

_HOME = {
    "Captured": "remat.torch.captured",
    "CostModel": "remat.torch.costs",
    "Device": "remat.torch.costs",
    "Executor": "remat.torch.execute",
    "Input": "remat.torch.captured",
    "OpRun": "remat.torch.execute",
    "ResultValue": "remat.torch.captured",
    "Step": "remat.torch.execute",
    "capture": "remat.torch.capture",
    "cost_model": "remat.torch.costs",
    "fake_tensors": "remat.torch.capture",
    "measure_peak": "remat.torch.memory",
    "profiled_memory": "remat.torch.memory",
    "track_storages": "remat.torch.memory",
}

__all__ = [
    "Captured",
    "CostModel",
    "Device",
    "Executor",
    "Input",
    "OpRun",
    "ResultValue",
    "Step",
    "capture",
    "cost_model",
    "fake_tensors",
    "measure_peak",
    "profiled_memory",
    "track_storages",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used; torch is imported with the first of them.

    Raises
    ------
    CaptureError
        If torch is not installed, or is a version that this package is not tested with.
    """
    if name not in _HOME:
        raise AttributeError(f"module 'remat.torch' has no attribute {name!r}")
    from importlib import import_module

    from remat.torch.versions import check_version

    check_version()
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
