"""Source lines of equations in the user's program."""

from __future__ import annotations

from typing import Any


def source_line(equation: Any) -> str:
    """Return file, line and function of an equation; empty if JAX has none.

    The module with this information is private in JAX, so it may be missing.
    """
    try:
        from jax._src import source_info_util

        return str(source_info_util.summarize(equation.source_info))
    except (ImportError, AttributeError, TypeError, ValueError):
        return ""
