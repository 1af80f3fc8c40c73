"""A staged schedule put into the tables of drops, compiled."""

# Compiled functions carry no types, and are called by position only.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

from remat.compiled import kernel
from remat.heuristics.drops.stages_kernel import ADD, change


@kernel
def recompute(net, state, ops, stages, first, last):
    """Recompute ``ops[i]`` in stage ``stages[i]``, for i from `first` to before `last`."""
    for i in range(first, last):
        change(net, state, ops[i], stages[i], ADD)
