"""Callers outside of the package, which warnings name."""

from __future__ import annotations

import sys

#: Packages whose frames a warning passes by.
_INNER = ("remat", "torch", "contextlib")


def outer_level() -> int:
    """Return the `stacklevel` for a warning of the calling function that names the first line of a user's program."""
    level, frame = 1, sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] in _INNER and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level
