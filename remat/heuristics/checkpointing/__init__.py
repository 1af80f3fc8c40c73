"""Checkpointing: hold some forward values, and recompute the others for the backward pass."""
