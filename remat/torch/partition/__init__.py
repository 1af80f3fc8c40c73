"""Split of a captured training step by a schedule into two fx graphs: forward and backward."""

from __future__ import annotations

from remat.torch.partition.split import Saved, Split, split

__all__ = ["Saved", "Split", "split"]
