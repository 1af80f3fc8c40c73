"""CP-SAT and HiGHS as solvers of MiniZinc: programs that read FlatZinc."""

__version__ = "0.1.0"
