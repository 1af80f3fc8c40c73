"""Any schedule of a captured training step as two fx graphs: forward and backward."""

from __future__ import annotations

from remat.torch.partition.split import Saved, Split, split

__all__ = ["Saved", "Split", "split"]
