"""Isolation of single ops from the modes, gradients and random numbers of the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def alone(kind: str) -> Iterator[None]:
    """Run ops on real tensors and record nothing; restore the random generators when the block ends.

    A capture runs under fake tensors, under which an op takes only the time to compute its shape.

    Parameters
    ----------
    kind : str
        ``"cpu"`` or ``"cuda"``.
    """
    devices = [torch.cuda.current_device()] if kind == "cuda" else []
    with (
        _disable_current_modes(),
        torch.autocast(kind, enabled=False),
        torch.no_grad(),
        torch.random.fork_rng(devices),
    ):
        torch.manual_seed(0)
        yield
