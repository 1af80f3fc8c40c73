"""Solvers in threads and child processes, with deadlines, memory limits and clean-up."""
