"""Hierarchical integer programme of HiRemate."""

from remat.formulations.h_ilp.formulation import HIlp
from remat.formulations.h_ilp.layout import HIlpOptions

__all__ = ["HIlp", "HIlpOptions"]
