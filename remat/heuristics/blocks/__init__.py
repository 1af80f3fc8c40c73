"""Block checkpointing as practitioners do it: blocks are dropped whole, and computed again for their backward pass."""

from remat.heuristics.blocks.heuristic import BlockCheckpointing, BlockOptions

__all__ = ["BlockCheckpointing", "BlockOptions"]
