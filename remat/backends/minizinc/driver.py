"""MiniZinc program: its path, its solvers (through the package `minizinc`) and its command line."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sysconfig
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remat.backends.programs import find_program, trusted_folders
from remat.errors import BackendError
from remat.runtime.solve_options import SolveOptions

#: Seconds that the program may take to print its version or its solvers.
PATIENCE = 30.0

#: Short names of solvers and their ids, preferred id first. Other solvers are named by the last part of their id.
SHORT_NAMES: Mapping[str, tuple[str, ...]] = {
    "cp-sat": ("cp-sat", "com.google.ortools.sat", "org.remat.cp-sat"),
    "highs": ("org.minizinc.mip.highs", "org.remat.highs"),
    "cbc": ("org.minizinc.mip.coin-bc",),
    "gecode": ("org.gecode.gecode",),
    "chuffed": ("org.chuffed.chuffed",),
}
#: Order of preference if no solver is named.
PREFERENCE = ("cp-sat", "chuffed", "gecode", "highs", "cbc")


@dataclasses.dataclass(frozen=True)
class Solver:
    """A solver that the driver lists."""

    name: str
    """Short name."""
    id: str
    version: str
    tags: frozenset[str]
    """Capabilities."""
    flags: frozenset[str]
    """Standard options that it accepts."""
    options: Mapping[str, tuple[str, str]]
    """Its own options, by their names without dashes."""
    plugin: bool
    """True if the driver calls it as a library rather than as a program that reads FlatZinc."""

    @property
    def mip(self) -> bool:
        """Return True if it accepts linear rows only."""
        return "mip" in self.tags


def executable() -> str | None:
    """Return the path of the program, or None."""
    return find_program("minizinc")


def environment() -> dict[str, str]:
    """Return this process's environment, extended by the solvers installed in this Python environment."""
    folders = [os.environ.get("MZN_SOLVER_PATH"), str(Path(sysconfig.get_path("data"), "share", "minizinc", "solvers"))]
    return {**os.environ, "MZN_SOLVER_PATH": os.pathsep.join(filter(None, folders))}


@functools.lru_cache(maxsize=4)
def version(program: str) -> str:
    """Return the version of `program`, for example ``2.6.4``."""
    text = _query(program, "--version", dict(os.environ))
    return next((word.strip(",") for word in text.replace("version", "").split() if word[0].isdigit()), "unknown")


def solvers(program: str) -> Mapping[str, Solver]:
    """Return usable solvers by short name; `program` runs once for each value of ``MZN_SOLVER_PATH``."""
    return _solvers(program, environment().get("MZN_SOLVER_PATH", ""))


@functools.lru_cache(maxsize=8)
def _solvers(program: str, _path: str) -> Mapping[str, Solver]:
    # The package's Driver sets no time limit and drops the fields that identify usable solvers.
    answer = _query(program, "--solvers-json", environment())
    kind = package().Solver
    known = {field.name for field in dataclasses.fields(kind)}
    try:
        usable = [config for config in json.loads(answer) if _usable(config)]
        by_id = {config["id"]: kind(**{key: config[key] for key in known & config.keys()}) for config in usable}
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise BackendError(f"MiniZinc lists its solvers in a way that cannot be read: {error}") from None
    found: dict[str, Solver] = {}
    taken: set[str] = set()
    for name, ids in SHORT_NAMES.items():
        present = [each for each in ids if each in by_id]
        if present:
            found[name] = _solver(name, by_id[present[0]])
            taken.update(present)
    for identity, solver in by_id.items():
        name = identity.rpartition(".")[2]
        if identity not in taken:
            found.setdefault(name if name not in found else identity, _solver(name, solver))
    return found


def package() -> Any:
    """Import the Python package `minizinc`.

    Its import would run the first program of that name on the path, including relative folders and the current one,
    and warn if there is none. This import does neither.
    """
    with _importing, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = os.environ.get("PATH")
        try:
            os.environ["PATH"] = os.pathsep.join(trusted_folders())
            import minizinc
        finally:
            os.environ.pop("PATH")
            if path is not None:
                os.environ["PATH"] = path
    return minizinc


_importing = threading.Lock()


def _usable(config: Mapping[str, Any]) -> bool:
    """Return True if a solver reads FlatZinc, opens no window, and has the library that it needs."""
    extra = config.get("extraInfo") or {}
    missing = set(config.get("requiredFlags") or ()) - {flag for flag, *_ in extra.get("defaultFlags") or ()}
    return bool(config.get("id")) and not config.get("isGUIApplication") and not missing and "gist" not in config["id"]


def _solver(name: str, solver: Any) -> Solver:
    """Convert an object of the package's class ``Solver``."""
    options = {str(flag).lstrip("-"): (str(flag), str(kind)) for flag, _, kind, *_ in solver.extraFlags or ()}
    tags = frozenset(solver.tags or ())
    return Solver(
        name, str(solver.id), str(solver.version or ""), tags, frozenset(solver.stdFlags or ()), options,
        "api" in tags or not solver.executable,
    )  # fmt: skip


def _query(program: str, question: str, environment: Mapping[str, str]) -> str:
    try:
        answer = subprocess.run(
            [program, question], capture_output=True, timeout=PATIENCE, env=environment, stdin=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendError(f"the program 'minizinc' does not answer {question}: {error}") from None
    return answer.stdout.decode(errors="replace")


def command(
    program: str,
    solver: Solver,
    files: Sequence[Path],
    options: SolveOptions,
    *,
    include: Sequence[Path],
    milliseconds: int | None,
) -> list[str]:
    """Return the command line that solves `files` with the threads, seed and solver options of `options`.

    Raise BackendError if the solver lacks an option (the message lists its options), or a value has the wrong type.
    """
    line = [program, "--solver", solver.id, "--json-stream", "--output-mode", "json", "--statistics"]
    # MiniZinc 2.6.4 loses constraints when it compresses chains of implications: `b -> c` becomes `c`.
    line.append("--no-chain-compression")
    line += [part for folder in include for part in ("-I", str(folder))]
    if milliseconds is not None:
        line += ["--time-limit", str(milliseconds)]
    if "-a" in solver.flags:
        line.append("--all-solutions")
    elif "-i" in solver.flags:
        line.append("--intermediate-solutions")
    if options.threads is not None and "-p" in solver.flags:
        line += ["--parallel", str(options.threads)]
    if "-r" in solver.flags:
        line += ["--random-seed", str(options.seed)]
    for name, value in options.solver.items():
        parts = _option(solver, name, value)
        # The driver of 2.6 refuses some options of FlatZinc solvers that it lists, so they are passed through.
        line += parts if solver.plugin else [word for part in parts for word in ("--fzn-flag", part)]
    return [*line, *(str(path) for path in files)]


def _option(solver: Solver, name: str, value: Any) -> list[str]:
    found = solver.options.get(str(name).lstrip("-"))
    if found is None:
        known = ", ".join(sorted(solver.options)) or "none"
        raise BackendError(f"MiniZinc's solver {solver.name!r} has no option {name!r}; it has {known}", "no-option")
    flag, kind = found
    if kind.startswith("bool"):
        if not isinstance(value, bool):
            raise BackendError(
                f"option {name!r} of MiniZinc's solver {solver.name!r} is true or false, not {value!r}", "option-value"
            )
        on, off = [*kind.split(":")[1:], "", ""][:2] if kind.count(":") > 1 else ("", "")
        return [flag, on if value else off] if on or off else [flag] * value
    choices = kind.split(":")[1:] if kind.startswith("opt") else []
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "int": numeric and isinstance(value, int),
        "float": numeric,
        "opt": str(value) in choices,
        "string": isinstance(value, str),
    }
    if not fits.get(kind.split(":")[0], isinstance(value, str | int | float)):
        wanted = " or ".join(choices) if choices else kind
        raise BackendError(
            f"option {name!r} of MiniZinc's solver {solver.name!r} takes {wanted}, not {value!r}", "option-value"
        )
    return [flag, str(value)]
