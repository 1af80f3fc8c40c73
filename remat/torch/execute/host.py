"""Host memory of a captured step whose schedule moves tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from remat.errors import ExecutionError
from remat.torch.captured import Captured
from remat.torch.transfers.host_memory import HostMemory, HostSpace
from remat.torch.transfers.host_plan import HostPlan


def host_memory(captured: Captured, plan: HostPlan, *, full_duplex: bool) -> HostMemory | None:
    """Return memory for the host copies of a plan; None if it has none.

    Raise ExecutionError if tensors of several devices move.
    """
    if not plan.offsets:
        return None
    moved = {name for kind, name in plan.schedule.steps() if kind == "offload"}
    devices = {value.device for home, value in captured.placed() if home in moved and isinstance(value, torch.Tensor)}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ExecutionError(f"the schedule moves tensors of several devices to the host, not of one: {names}")
    return HostMemory(plan.size, devices.pop(), full_duplex)


@contextmanager
def host_space(memory: HostMemory | None) -> Iterator[HostSpace | None]:
    """Provide host memory for a pass; after an error, return all of it to the system."""
    space = None if memory is None else memory.space()
    with abandoned_on_error(space):
        yield space


@contextmanager
def abandoned_on_error(space: HostSpace | None) -> Iterator[None]:
    """After an error, return host memory to the system."""
    try:
        yield
    except BaseException:
        if space is not None:
            space.abandon()
        raise
