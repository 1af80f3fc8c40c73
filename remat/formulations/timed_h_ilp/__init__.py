"""Hierarchical programme with a second memory: groups with options, whose saved tensors can be moved to a host."""

from remat.formulations.timed_h_ilp.formulation import TimedHIlp

__all__ = ["TimedHIlp"]
