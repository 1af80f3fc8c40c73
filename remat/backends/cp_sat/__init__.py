"""CP-SAT, the constraint solver of OR-Tools."""

from remat.backends.cp_sat.backend import CpSat

__all__ = ["CpSat"]
