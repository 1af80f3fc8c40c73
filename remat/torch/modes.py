"""Training and evaluation mode of a module and its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def kept_modes(module: nn.Module) -> Iterator[None]:
    """Whatever happens inside, each part of `module` is afterwards in the mode that it was in.

    Examples
    --------
    >>> layer = nn.Dropout()
    >>> with kept_modes(layer):
    ...     _ = layer.eval()
    >>> layer.training
    True
    """
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
