"""Answers without a solver: checkpointing baselines, dynamic programmes, local search."""
