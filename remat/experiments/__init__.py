"""Studies of many solves: comparisons, frontiers, largest batches, and their pictures."""
