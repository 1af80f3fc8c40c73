"""FlatZinc programs, so that MiniZinc has CP-SAT and HiGHS behind it wherever ``remat`` is installed."""

from remat.backends.flatzinc.registration import solver_path

__all__ = ["solver_path"]
