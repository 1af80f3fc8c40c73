"""Identity graph rewriting: equivalent graphs with orders that need less memory.

A concatenation can be avoided: its reader reads the parts, or computes on each part as soon as the part exists. Module
:mod:`remat.graphs.rewriting.axes` defines which axes allow this; the rules are in :mod:`remat.graphs.rewriting.rules`.
"""

from remat.graphs.rewriting.engine import Rewritten, find_rewrites, rewrite_graph
from remat.graphs.rewriting.rewrite import Rewrite, RewriteOptions, RuleName

__all__ = ["Rewrite", "RewriteOptions", "Rewritten", "RuleName", "find_rewrites", "rewrite_graph"]
