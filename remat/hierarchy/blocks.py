"""The former place of :class:`.BlockCheckpointing`, for installations whose entry points name it."""

from remat.heuristics.blocks import BlockCheckpointing

__all__ = ["BlockCheckpointing"]
