"""Many solves: comparisons, frontiers, largest batches, and their pictures."""
