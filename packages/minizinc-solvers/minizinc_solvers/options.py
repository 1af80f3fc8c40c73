"""Command line that MiniZinc passes to FlatZinc solvers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Options of one run.

    Attributes
    ----------
    path : Path
        The FlatZinc file.
    milliseconds : int or None
        Time limit from the start of the process.
    threads : int or None
    seed : int
    all_solutions, intermediate : bool
    number : int or None
        Number of solutions for a model without an objective.
    statistics, verbose : bool
    """

    path: Path
    milliseconds: int | None = None
    threads: int | None = None
    seed: int = 0
    all_solutions: bool = False
    intermediate: bool = False
    number: int | None = None
    statistics: bool = False
    verbose: bool = False

    @property
    def streams(self) -> bool:
        """True if solutions are printed as they are found."""
        return self.all_solutions or self.intermediate


def parse_options(program: str, arguments: Sequence[str] | None = None) -> Options:
    """Return the options of the command line; exit with a message if they are wrong."""
    parser = argparse.ArgumentParser(program, description="Solve a FlatZinc file.", allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="FILE", help="FlatZinc file")
    parser.add_argument("-t", "--time-limit", dest="milliseconds", type=_positive, metavar="MS", help="milliseconds")
    parser.add_argument("-p", "--parallel", dest="threads", type=_positive, metavar="N", help="threads")
    parser.add_argument("-r", "--random-seed", dest="seed", type=int, default=0, metavar="SEED")
    parser.add_argument("-a", "--all-solutions", action="store_true", help="all solutions, or all better and better")
    parser.add_argument("-i", "--intermediate", action="store_true", help="solutions that are better and better")
    parser.add_argument("-n", "--num-solutions", dest="number", type=_positive, metavar="N", help="stop after N")
    parser.add_argument("-s", "--statistics", action="store_true", help="statistics, with every solution too")
    parser.add_argument("-v", "--verbose", action="store_true", help="the solver's log, on standard error")
    parser.add_argument("-f", "--free-search", action="store_true", help="no effect: search is always free")
    chosen = vars(parser.parse_args(arguments))
    del chosen["free_search"]
    return Options(**chosen)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
