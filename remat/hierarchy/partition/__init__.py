"""Ways to group the ops of a graph."""
