"""TW-Remat: recomputation along a tree of separators."""

from remat.heuristics.tree_width.heuristic import TreeWidth, TreeWidthOptions

__all__ = ["TreeWidth", "TreeWidthOptions"]
