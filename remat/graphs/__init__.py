"""Graphs: builder, readers and writers, generators and the model zoo.

The zoo is in :mod:`remat.graphs.zoo`; families with known optima are in :mod:`remat.graphs.families`.
"""

from remat.graphs.builder import GraphBuilder, single_output_graph
from remat.graphs.formats.base import GraphFormat, graph_formats
from remat.graphs.graph import ComputeGraph, Op, StructuralBound, Tensor
from remat.graphs.io import read_graph, write_graph
from remat.graphs.layered import layered
from remat.io.formats import Source

__all__ = [
    "ComputeGraph",
    "GraphBuilder",
    "GraphFormat",
    "Op",
    "Source",
    "StructuralBound",
    "Tensor",
    "graph_formats",
    "layered",
    "read_graph",
    "single_output_graph",
    "write_graph",
]
