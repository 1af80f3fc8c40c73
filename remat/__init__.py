"""Scheduling neural computation graphs under a memory budget, with any solver and a certificate."""

__version__ = "0.1.0"
