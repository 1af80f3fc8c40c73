"""Real models in, real training steps out: PyTorch (``pip install remat[torch]``)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat.torch.capture import capture, fake_tensors
    from remat.torch.captured import Captured, Input, ResultValue
    from remat.torch.costs import CostModel, Device, cost_model
    from remat.torch.execute import Executor, OpRun, Step
    from remat.torch.memory import measure_peak, profiled_memory, track_storages
    from remat.torch.partition import Split, split
    from remat.torch.peers import compare_peers
    from remat.torch.rematerialized.backend import CompileBackend, backend
    from remat.torch.rematerialized.entry import rematerialize
    from remat.torch.rematerialized.module import Rematerialized
    from remat.torch.rematerialized.report import Report

_HOME = {
    "Captured": "remat.torch.captured",
    "CompileBackend": "remat.torch.rematerialized.backend",
    "CostModel": "remat.torch.costs",
    "Device": "remat.torch.costs",
    "Executor": "remat.torch.execute",
    "Input": "remat.torch.captured",
    "OpRun": "remat.torch.execute",
    "Rematerialized": "remat.torch.rematerialized.module",
    "Report": "remat.torch.rematerialized.report",
    "ResultValue": "remat.torch.captured",
    "Split": "remat.torch.partition",
    "Step": "remat.torch.execute",
    "backend": "remat.torch.rematerialized.backend",
    "capture": "remat.torch.capture",
    "compare_peers": "remat.torch.peers",
    "cost_model": "remat.torch.costs",
    "fake_tensors": "remat.torch.capture",
    "measure_peak": "remat.torch.memory",
    "profiled_memory": "remat.torch.memory",
    "rematerialize": "remat.torch.rematerialized.entry",
    "split": "remat.torch.partition",
    "track_storages": "remat.torch.memory",
}

__all__ = [
    "Captured",
    "CompileBackend",
    "CostModel",
    "Device",
    "Executor",
    "Input",
    "OpRun",
    "Rematerialized",
    "Report",
    "ResultValue",
    "Split",
    "Step",
    "backend",
    "capture",
    "compare_peers",
    "cost_model",
    "fake_tensors",
    "measure_peak",
    "profiled_memory",
    "rematerialize",
    "split",
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


class _Package(ModuleType):
    """The package itself: a function stays what its name means when the folder of that name is imported (`capture`)."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
