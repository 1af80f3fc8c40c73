"""Checkpointing: keep some forward values, compute the others again for the backward pass."""
