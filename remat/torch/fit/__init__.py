"""Memory of a training step before it runs: what fits as it is, and what fits with recomputation."""
