"""Stages with a second memory: kept, recomputed or moved tensors, and links as flows between stages."""

from remat.formulations.timed_stages.formulation import TimedStages

__all__ = ["TimedStages"]
