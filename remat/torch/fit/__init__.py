"""Memory of a training step before it runs: what fits as it is, and what fits with recomputation."""

from remat.torch.fit.estimate import Estimate, estimate
from remat.torch.fit.growth import Largest

__all__ = ["Estimate", "Largest", "estimate"]
