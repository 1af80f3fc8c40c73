"""Searches and rules for orders of least peak."""
