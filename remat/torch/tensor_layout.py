"""Layout of a tensor, as a captured step fixes it."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Layout(NamedTuple):
    """Shape, strides, type and device of a tensor, fake or real."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Return the layout of a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    def difference(self, other: Layout) -> str:
        """Describe the first difference of `other` to this layout; empty if they are equal."""
        for what in ("shape", "dtype", "device", "strides"):
            mine, its = getattr(self, what), getattr(other, what)
            if mine != its:
                return f"{what} {its}, not {mine}"
        return ""

    def empty(self) -> torch.Tensor:
        """Allocate an uninitialised tensor of this layout."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
