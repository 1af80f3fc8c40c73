"""File formats of graphs."""
