"""Where in the user's program an equation comes from."""

from __future__ import annotations

from typing import Any


def source_line(equation: Any) -> str:
    """File, line and function of an equation; empty where JAX does not say them.

    The module that knows is private in JAX, so that nothing depends on its being there.
    """
    try:
        from jax._src import source_info_util

        return str(source_info_util.summarize(equation.source_info))
    except (ImportError, AttributeError, TypeError, ValueError):
        return ""
