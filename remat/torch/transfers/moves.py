"""Moves of tensors between device and host: the functions that graphs of a schedule with transfers call."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.fx import has_side_effect

from remat.torch.transfers.host_memory import HostSpace
from remat.torch.transfers.links import Event


class _View(NamedTuple):
    """Part of a storage that a tensor shows."""

    dtype: torch.dtype
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]


class HostCopy:
    """Copy of a tensor's storage on the host; its bytes are free again with the last reference."""

    def __init__(self, space: HostSpace, offset: int, values: tuple[torch.Tensor, ...]) -> None:
        source = _bytes(values[0].untyped_storage(), values[0].device)
        self.space, self.device = space, source.device
        self.size = source.numel()
        self.bytes = space.take(offset, self.size)
        self.views = tuple(
            _View(each.dtype, each.storage_offset(), each.shape, each.stride()) for each in values
        )  # fmt: skip
        self.end: Event = space.links.write(source, self.bytes)
        """End of the last copy from or to the device."""

    def __del__(self) -> None:
        if hasattr(self, "bytes"):
            self.space.give_back(self.size)


class Arriving(NamedTuple):
    """Storage on the device whose bytes are under way from the host."""

    bytes: torch.Tensor
    views: tuple[_View, ...]
    end: Event


def offload(space: HostSpace, offset: int, *values: torch.Tensor) -> HostCopy:
    """Begin to copy the storage of `values`, which they share, to the host."""
    return HostCopy(space, offset, values)


def settle(copy: HostCopy, *values: torch.Tensor) -> None:
    """Let computation wait until the copy is complete, so that `values`, alive until here, can be freed."""
    copy.space.links.wait(copy.end)


def fetch(copy: HostCopy) -> Arriving:
    """Allocate the storage on the device and begin to read its copy."""
    target = torch.empty(copy.size, dtype=torch.uint8, device=copy.device)
    copy.end = copy.space.links.read(copy.bytes, target, copy.end)
    return Arriving(target, copy.views, copy.end)


def arrive(arriving: Arriving, copy: HostCopy) -> tuple[torch.Tensor, ...]:
    """Let computation wait for a fetched storage; return the tensors in it."""
    copy.space.links.wait(arriving.end)
    storage, device = arriving.bytes.untyped_storage(), arriving.bytes.device
    return tuple(
        torch.empty(0, dtype=each.dtype, device=device).set_(storage, each.offset, each.shape, each.strides)
        for each in arriving.views
    )


def discard(copy: HostCopy) -> None:
    """Let computation wait for copies from and to these bytes, which other ones may then take."""
    copy.space.links.wait(copy.end)


for _function in (settle, discard):
    has_side_effect(_function)


def _bytes(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
