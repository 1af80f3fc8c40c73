"""Models as files for other solvers' programs, and their solutions as schedules."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from remat import registry
from remat.backends.base import Backend
from remat.backends.minizinc import MiniZinc
from remat.errors import FormatError, ProblemError, RematError
from remat.formulations.base import Formulation, Values
from remat.io.files import parse_json, read_text, write_atomic
from remat.modeling import Model, PlainLinear
from remat.modeling.alternatives import LinearForm
from remat.modeling.naming import Labels, meanings, variable_names
from remat.problem import Problem
from remat.runtime.resources import available_memory
from remat.runtime.text import counted
from remat.schedule import Schedule
from remat.solving.method import FormulationMethod, MethodLike, make_method
from remat.solving.model_solve import make_formulation

#: What separates words in the solution files of solvers, CPLEX's XML included; our names have no such characters.
SEPARATORS = re.compile(r"""[\s<>="/']+""")
#: Line of MiniZinc after each solution.
SOLUTION_END = "----------"


class ModelFile:
    """The model of one problem, as it is written for programs that read files with a suffix.

    Parameters
    ----------
    problem : Problem
        Outputs in place of inputs are left out where the formulation does not state them.
    method : str, class or object
        A formulation; see :func:`remat.solving.method.make_method`.
    suffix : str
        ``.lp`` or ``.mps`` for linear programmes, ``.pb``, ``.proto`` or ``.pbtxt`` for CP-SAT, ``.mzn`` for MiniZinc.
    options : optional
        Of the formulation.

    Raises
    ------
    FormatError
        For another suffix.
    ProblemError
        If the method has no model, cannot state the problem, or the model exceeds the memory.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> file = ModelFile(Problem(unit_chain(3), 2), "checkmate", ".lp")
    >>> file.meanings["R(1,f0)"]
    {'block': 'R', 'stage': 1, 'op': 'f0'}
    """

    def __init__(self, problem: Problem, method: MethodLike, suffix: str, options: Any = None) -> None:
        self.backend = backend_for(suffix)
        made = make_method(method, options)
        if not isinstance(made, FormulationMethod):
            known = ", ".join(registry.formulations())
            raise ProblemError(f"method {made.name!r} has no model; these have: {known}", "no-model", made.name)
        self.problem = problem if made.kind.counts_in_place or not problem.graph.in_place else problem.plain
        self.formulation: Formulation = make_formulation(made.kind, self.problem, made.options)
        size = self.formulation.linear_estimate() if self._is_linear else self.formulation.estimate()
        lacking = size and size.lacks_memory(available_memory(None), self.backend.nonzero_bytes)
        if lacking:
            raise ProblemError(f"the model of {made.name} is not built: it has {size} and {lacking}")
        self.model = self.formulation.build()

    @property
    def _is_linear(self) -> bool:
        """True if the file has linear rows only."""
        return self.backend.native == {PlainLinear}

    @cached_property
    def _linear_form(self) -> LinearForm | None:
        """The formulation's own linear rows, if they are what is written."""
        if not self._is_linear or LinearForm.name not in self.model.overrides:
            return None
        form: LinearForm = self.model.overrides[LinearForm.name]()
        return form

    @property
    def written(self) -> tuple[Model, Labels]:
        """The model that is written, and what its variables stand for."""
        form = self._linear_form
        return (self.model, self.formulation.labels()) if form is None else (form.model, form.labels())

    @cached_property
    def meanings(self) -> dict[str, Any]:
        """Variables by name; for MiniZinc the lists of ops and tensors that its data number."""
        if isinstance(self.backend, MiniZinc):
            order = self.problem.graph.arrays.order
            return {"op": self.formulation.ops_named(order), "tensor": list(self.problem.graph.tensor_names)}
        return meanings(*self.written)

    def write(self, path: str | os.PathLike[str], settings: Mapping[str, Any] | None = None) -> None:
        """Write the model, and :attr:`meanings` into a file with the suffix ``.names.json``.

        `settings`: tables of a configuration, from which :func:`written_settings` makes the same problem again.
        """
        self.backend.write(self.written[0], path, self.written[1])
        graph = self.problem.graph
        about = {
            "format": "remat-model-names", "version": 1, "graph": graph.name, "graph_digest": graph.digest,
            "method": self.formulation.name, "order": str(self.problem.order), "budget": self.problem.budget_bytes,
            "scope": str(self.formulation.scope()), "settings": dict(settings or {}), "names": self.meanings,
        }  # fmt: skip
        write_atomic(names_file(path), json.dumps(about, indent=1, ensure_ascii=False) + "\n")

    def read(self, path: str | os.PathLike[str]) -> Schedule:
        """Return the schedule of a solution that a program has found; it is not validated.

        Lines of names and values are those of HiGHS, CBC, SCIP, Gurobi and CPLEX (variables left out are 0), numbers
        after ``solution:`` those of CP-SAT's text; MiniZinc writes JSON with ``--output-mode json``.

        Raises
        ------
        FormatError
            With the path, if it has no solution of this model.
        """
        text = read_text(path)
        try:
            values = self._values(text, str(path))
            return self.formulation.decode(values)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            if isinstance(error, RematError):
                raise
            fault = f"{path}: no solution of the model of {self.formulation.name}"
            raise FormatError(f"{fault}; was it written for another graph or budget?", "solution", str(path)) from None

    def _values(self, text: str, name: str) -> Values:
        """Return the values of the formulation's model."""
        if isinstance(self.backend, MiniZinc):
            return self.backend.program(self.model).values(_last_solution(text, name))
        model, labels = self.written
        if self.backend.suffixes[0] == ".lp" or "solution:" not in text:
            values = named_values(text, variable_names(model, labels), name)
        else:
            values = np.array(re.findall(r"^\s*solution: (-?\d+)", text, re.MULTILINE), dtype=np.float64)
            values = values[: model.num_vars]
            if len(values) < model.num_vars:
                raise FormatError(
                    f"{name}: {counted(len(values), 'value')} for {model.num_vars:,} variables", "solution", name
                )
        return values if self._linear_form is None else self._linear_form.values(values)


def backend_for(suffix: str) -> Backend:
    """Return the backend that writes model files with a suffix; raise FormatError if there is none."""
    known: list[str] = []
    for name in registry.backends():
        kind = registry.load("backends", name)
        known += getattr(kind, "suffixes", ())
        if suffix.lower() in getattr(kind, "suffixes", ()):
            backend: Backend = kind()
            return backend
    raise FormatError(f"a model file ends in {', '.join(known)}, not {suffix or 'nothing'!r}", "suffix", suffix)


def named_values(text: str, names: list[str], name: str) -> Values:
    """Return the values behind names in the text of a solution, 0 for names that it leaves out.

    Examples
    --------
    >>> named_values("Optimal - objective value 3", ["R(0,a)"], "m.sol")
    Traceback (most recent call last):
    remat.errors.FormatError: m.sol: no line has a name of this model, such as R(0,a)
    >>> named_values("  0 R(0,a) 1 0", ["R(0,a)", "S(1,t)"], "m.sol")
    array([1., 0.])
    """
    place = {word: number for number, word in enumerate(names)}
    found: dict[int, float] = {}
    for line in text.splitlines():
        words = SEPARATORS.split(line)
        at = next((k for k, word in enumerate(words) if word in place), None)
        if at is not None:
            rest = words[words.index("value", at) + 1 :] if "value" in words[at:] else words[at + 1 :]
            found.setdefault(place[words[at]], float(rest[0]))  # later sections have dual values
    if not found:
        raise FormatError(f"{name}: no line has a name of this model, such as {names[0]}", "solution", name)
    values = np.zeros(len(names))
    values[list(found)] = list(found.values())
    return values


def names_file(path: str | os.PathLike[str]) -> Path:
    """Return the file that :meth:`ModelFile.write` writes next to a model."""
    return Path(path).with_suffix(".names.json")


def written_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings in the file of names next to a model; empty if there is no such file.

    Raises
    ------
    FormatError
        With the path, if it is not a file of names.
    """
    names = names_file(path)
    if not names.exists():
        return {}
    about = parse_json(read_text(names), str(names))
    settings = about.get("settings", {}) if isinstance(about, dict) else None
    if not isinstance(settings, dict) or about.get("format") != "remat-model-names":
        raise FormatError(f"{names}: not the file of names of a model; remove it, or export the model again", "names",
                          str(names))  # fmt: skip
    return settings


def _last_solution(text: str, name: str) -> Mapping[str, Any]:
    """Return the last solution in MiniZinc's output."""
    parts = [part for part in text.split(SOLUTION_END) if "{" in part]
    if not parts:
        raise FormatError(f"{name}: no solution in JSON; run minizinc with --output-mode json", "solution", name)
    found: dict[str, Any] = parse_json(parts[-1][parts[-1].index("{") :], name)
    return found
