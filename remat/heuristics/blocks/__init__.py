"""Block checkpointing: drop whole blocks in the forward pass, and recompute each before its backward pass."""

from remat.heuristics.blocks.heuristic import BlockCheckpointing, BlockOptions

__all__ = ["BlockCheckpointing", "BlockOptions"]
