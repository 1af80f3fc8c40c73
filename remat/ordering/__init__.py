"""Orders of least peak."""
