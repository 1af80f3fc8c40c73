"""Configuration of a run: all arguments of solve(), read from TOML and validated first."""

from remat.config.configuration import METHODS, Config, draw
from remat.config.description import example, schema
from remat.config.levels import make_options
from remat.config.sections import OutputSection, ProblemSection, SolveSection

__all__ = [
    "METHODS", "Config", "OutputSection", "ProblemSection", "SolveSection", "draw", "example", "make_options", "schema",
]  # fmt: skip
