"""What is computed: the graph, its builder, readers and writers, generators and the model zoo."""

from remat.graphs.builder import GraphBuilder
from remat.graphs.graph import ComputeGraph, Op, StructuralBound, Tensor

__all__ = ["ComputeGraph", "GraphBuilder", "Op", "StructuralBound", "Tensor"]
