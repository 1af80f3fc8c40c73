"""Identity graph rewriting: graphs that compute the same and can be ordered to need less memory.

A concatenation need not be made: who reads it reads its parts, or computes on each part as soon as it is there. What
may be done along which axis is in :mod:`remat.graphs.rewriting.axes`, the rules are in
:mod:`remat.graphs.rewriting.rules`.
"""

from remat.graphs.rewriting.engine import Rewritten, find_rewrites, rewrite_graph
from remat.graphs.rewriting.rewrite import Rewrite, RewriteOptions, RuleName

__all__ = ["Rewrite", "RewriteOptions", "Rewritten", "RuleName", "find_rewrites", "rewrite_graph"]
