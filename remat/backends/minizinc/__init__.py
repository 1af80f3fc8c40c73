"""MiniZinc: any solver that its driver lists."""

from remat.backends.minizinc.backend import MiniZinc

__all__ = ["MiniZinc"]
