"""Solvers in threads and processes that end when they must."""
