"""Training steps of JAX: their graphs, and the schedules that ``jax.checkpoint`` makes of them (``remat[jax]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat.jax.capture import capture
    from remat.jax.captured import Captured

_HOME = {"Captured": "remat.jax.captured", "capture": "remat.jax.capture"}

__all__ = ["Captured", "capture"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used; jax is imported with the first of them.

    Raises
    ------
    CaptureError
        If jax is not installed.
    """
    if name not in _HOME:
        raise AttributeError(f"module 'remat.jax' has no attribute {name!r}")
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("jax") is None:
        from remat.errors import CaptureError

        raise CaptureError("jax is not installed: pip install 'remat[jax]'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
