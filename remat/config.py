"""A run in a file: everything that solve() takes, read from TOML and checked before any work is done."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from remat import registry
from remat.backends.base import DEFAULT_GAP, SolveOptions
from remat.backends.programs import check_solver_options, check_trusted
from remat.deadline import Deadline
from remat.errors import FormatError, ProblemError
from remat.graphs.io import load_graph
from remat.graphs.profiles import load_profiled
from remat.io.files import check_outputs, exists, is_standard_stream
from remat.io.toml import read_toml
from remat.problem import Problem
from remat.schedule.io import read_schedule, write_schedule
from remat.solving.progress import OnProgress

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph
    from remat.schedule import Schedule
    from remat.solving.result import Result

#: The groups of the registry that ``solve.method`` may name.
METHODS = ("formulations", "heuristics", "methods")

_Positive = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    """A table of the file: immutable, nothing converted silently, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class ProblemSection(_Section):
    """The question: a graph, a budget and rules; see :class:`remat.problem.Problem`."""

    graph: str
    """Graph file, or the name of a zoo graph."""
    costs: str | None = None
    """Profile (CSV or JSON) whose costs take the place of the graph's own."""
    device: str | None = None
    """Which device's costs, where the profile has several."""
    budget: str | int | float | None = None
    """Bytes (123456, "10GiB") or a share of the reference peak ("80%", 0.8); absent: as much as needed."""
    order: Literal["fixed", "free"] = "fixed"
    """Whether first computations follow the reference order."""
    max_computes: _Positive | dict[str, _Positive] | None = None
    """Limit of computes for every op, or a table of limits by op."""
    keep: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Tensors to be alive at the end, besides the graph's outputs."""
    count_constant_memory: bool = False
    """Count the graph's constant memory in peak and budget."""


class SolveSection(_Section):
    """Who answers, and how long it may take; see :func:`remat.solve`."""

    method: str = "auto"
    """"auto", or a formulation or heuristic."""
    backend: str = "cp-sat"
    """Solver, as name or name:variant; not used by heuristics."""
    time_limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds for everything; absent: until it is proved."""
    gap: Annotated[float, Field(ge=0, lt=1)] = DEFAULT_GAP
    """Stop at this relative gap; 0: prove optimality."""
    threads: _Positive | None = None
    """Absent: as many as the machine has."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of everything random."""
    isolate: bool = False
    """Run the solver in a process of its own, which is killed if it misses the deadline."""
    memory_limit: str | _Positive | None = None
    """What this process may hold, in bytes or with a unit ("4GiB"); means isolate."""
    warm_start: str | None = None
    """Schedule file to start from, in any format that is known."""
    start: str = "auto"
    """Of a formulation: "auto", a heuristic's schedule; "none", from nothing; or a schedule file."""


class OutputSection(_Section):
    """Where the answer goes."""

    schedule: str | None = None
    """Schedule file to write."""
    plot: str | None = None
    """Picture to write (.png, .svg)."""
    json_: Annotated[bool, Field(alias="json")] = False
    """Print the result as JSON."""
    quiet: bool = False
    """Show no progress."""


class Config(_Section):
    """Everything that a run needs.

    Attributes
    ----------
    problem : ProblemSection
    solve : SolveSection
    output : OutputSection
    formulations, heuristics, methods : mapping of name to mapping
        Options of methods; only those of the one that is named in ``solve.method`` have an effect.
    backends : mapping of name or name:variant to mapping
        Passed to that solver untouched, by the names of its manual; what is said of a variant goes before what is said
        of the whole family.

    Examples
    --------
    >>> config = Config.from_mapping({"problem": {"graph": "vgg16"}, "solve": {"method": "checkmate"}})
    >>> config.solve.backend
    'cp-sat'
    >>> Config.from_mapping({"problem": {"graph": "vgg16"}, "solve": {"backnd": "highs"}})
    Traceback (most recent call last):
    remat.errors.FormatError: configuration: unknown key 'solve.backnd'; did you mean 'backend'?
    """

    problem: ProblemSection
    solve: SolveSection = SolveSection()
    output: OutputSection = OutputSection()
    formulations: dict[str, dict[str, Any]] = {}
    heuristics: dict[str, dict[str, Any]] = {}
    methods: dict[str, dict[str, Any]] = {}
    backends: dict[str, dict[str, Any]] = {}

    # -- reading -----------------------------------------------------------------------------------------------------

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        allow_solver_files: bool = False,
    ) -> Config:
        """The configuration in a TOML file; its paths are relative to its folder.

        Parameters
        ----------
        overrides : mapping of section to mapping of key to value, optional
            Take the place of what the file says; their paths are relative to the current folder.
        allow_solver_files : bool
            Whether options for solvers may name files.

        Raises
        ------
        FormatError
            Naming the file and the line or the key; for an unknown key also the nearest one that is known.
        ProblemError
            For options that the formulation refuses.
        RematError
            For a formulation or heuristic that is not registered.
        """
        return cls.from_mapping(read_toml(path), str(path), Path(path).parent, overrides, allow_solver_files)

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[str, Any],
        name: str = "configuration",
        folder: str | os.PathLike[str] = "",
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        allow_solver_files: bool = False,
    ) -> Config:
        """The same from a mapping of sections; `name` stands in errors, `folder` is what paths are relative to."""
        merged = _resolved(mapping, Path(folder))
        for section, values in (overrides or {}).items():
            table = merged.setdefault(section, {})
            if isinstance(table, dict):
                table.update(values)
        try:
            config = cls.model_validate(merged)
        except ValidationError as error:
            place, fault = _first(error, merged)
            if len(place) > 1 and place[1] in (overrides or {}).get(place[0], {}):
                raise FormatError(f"option --{place[1].replace('_', '-')} {fault}") from None
            raise FormatError(f"{name}: {_shown(place, fault)}") from None
        for group in registry.GROUPS:
            known = registry.Registered(group)
            for word in (word for word in getattr(config, group) if word.partition(":")[0] not in known):
                raise FormatError(f"{name}: {_unknown(f'{group}.{word}', word, list(known))}")
        if "backend" not in (overrides or {}).get("solve", {}):
            check_trusted(config.solve.backend, f"{name}: ")
        for backend, given in config.backends.items():
            check_trusted(backend, f"{name}: ")
            if not allow_solver_files:
                check_solver_options(backend, given, f"{name}: ")
        for method, given in (config.formulations | config.heuristics | config.methods).items():
            make_options(method, given, f"{name}: ")
        return config

    # -- running -----------------------------------------------------------------------------------------------------

    def options_of(self, method: str) -> Any:
        """The options of a method, None where none are given."""
        given = (self.formulations | self.heuristics | self.methods).get(method)
        return make_options(method, given) if given else None

    def solver_options_of(self, backend: str) -> dict[str, Any]:
        """What is passed to that solver untouched."""
        return {**self.backends.get(backend.partition(":")[0], {}), **self.backends.get(backend, {})}

    def solve_options(self, graph: ComputeGraph, solver: Any = None, log: Any = None) -> SolveOptions:
        """What the ``[solve]`` table says to whatever solves `graph`; the time limit is not among it."""
        chosen = self.solve
        start: Any = chosen.start if chosen.start in ("auto", "none") else read_schedule(chosen.start, graph)
        return SolveOptions(
            threads=chosen.threads, seed=chosen.seed, relative_gap=chosen.gap, log=log, solver=solver or {},
            isolate=chosen.isolate, memory_limit=chosen.memory_limit, start=start,
        )  # fmt: skip

    def make_problem(self) -> Problem:
        """The graph, read, with budget and rules."""
        p = self.problem
        graph = load_profiled(load_graph(p.graph), p.costs, p.device)
        return Problem(graph, p.budget, p.order, p.max_computes, p.keep, p.count_constant_memory)

    def run(
        self, on_progress: OnProgress | None = None, *, log: Callable[[str], None] | None = None,
        problem: Problem | None = None, warm_start: Schedule | None = None,
        write: bool = True, clock: Deadline | None = None,
    ) -> Result:  # fmt: skip
        """Read what is to be read, solve, and write the schedule and the picture that are asked for.

        Parameters
        ----------
        on_progress, log
            As for :func:`remat.solve`.
        problem, warm_start : optional
            Those of :meth:`make_problem` and of the file in ``solve.warm_start``, where they have been read before.
        write : bool
            False leaves :meth:`write` to the caller.
        clock : Deadline, optional
            Default: the time limit, from here on.

        Raises
        ------
        RematError
            As :func:`remat.solve`, and for files that cannot be read or written; the latter before the solve.
        """
        from remat.schedule.plots import SUFFIXES
        from remat.solving.method import make_method
        from remat.solving.solve import solve

        chosen, output = self.solve, self.output
        clock = clock or Deadline.after(chosen.time_limit)
        inputs = (self.problem.graph, self.problem.costs, chosen.warm_start)
        check_outputs((output.schedule, ()), (output.plot, SUFFIXES), inputs=inputs)
        problem = problem or self.make_problem()
        if warm_start is None and chosen.warm_start is not None:
            warm_start = read_schedule(chosen.warm_start, problem.graph)
        given = self.options_of(chosen.method)
        solver = self.solver_options_of(chosen.backend) if make_method(chosen.method, given).needs_backend else {}
        result = solve(
            problem, chosen.method, chosen.backend, stop=clock, warm_start=warm_start, method_options=given,
            options=self.solve_options(problem.graph, solver, log), on_progress=on_progress,
        )  # fmt: skip
        if write:
            self.write(result)
        return result

    def write(self, result: Result) -> None:
        """Write the schedule of `result`, and its picture, where there is one and they are asked for."""
        if result.schedule is None:
            return
        if self.output.schedule is not None:
            write_schedule(result.schedule, self.output.schedule)
        if self.output.plot is not None:
            draw(result, self.output.plot)


def draw(result: Result, path: str | os.PathLike[str]) -> None:
    """Draw the schedule of `result`, which has one, into a file."""
    from remat.schedule.plots import save_plot

    assert result.schedule is not None
    problem = result.problem
    save_plot(
        problem.graph, result.schedule, path, problem.budget_bytes,
        keep=problem.keep, count_constant_memory=problem.count_constant_memory,
    )  # fmt: skip


def make_options(method: str, given: Mapping[str, Any], where: str = "") -> Any:
    """The options of a formulation or heuristic from names and values.

    Raises
    ------
    FormatError
        Beginning with `where`, for an option that the method does not have or a value of the wrong type.
    ProblemError
        For a value that the options refuse themselves.
    RematError
        If there is no such method.

    Examples
    --------
    >>> make_options("retention-intervals", {"copies": 3})
    RetentionIntervalsOptions(copies=3, precedence='cover')
    """
    group = next((group for group in ("methods", "heuristics") if method in registry.Registered(group)), "formulations")
    options_type: Any = registry.load(group, method).options_type
    if options_type is None:
        raise FormatError(f"{where}{registry.GROUPS[group]} {method!r} has no options")
    known = [field.name for field in dataclasses.fields(options_type)]
    for key in given:
        if key not in known:
            raise FormatError(where + _unknown(f"{group}.{method}.{key}", key, known))
    try:  # by way of JSON, whose strict reading takes lists for tuples and words for enums, but "3" not for 3
        return TypeAdapter(options_type).validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as error:
        place, fault = _first(error, given)
        raise FormatError(where + _shown([group, method, *place], fault)) from None
    except ProblemError as error:
        raise ProblemError(f"{where}{group}.{method}: {error}") from None


def schema() -> dict[str, Any]:
    """The JSON Schema of a configuration, with the options of every formulation that is installed."""
    result = Config.model_json_schema(by_alias=True)
    for part in (result, *result["$defs"].values()):
        part["description"] = _summary(part["description"])
    for group in METHODS:
        tables: dict[str, Any] = {}
        for name, kind in sorted(registry.Registered(group).usable().items()):
            if kind.options_type is not None:
                about = f"Options of the {registry.GROUPS[group]} {name}."
                table = {**TypeAdapter(kind.options_type).json_schema(), "description": about}
                tables[name] = {**table, "additionalProperties": False}
        result["properties"][group].update(properties=tables, additionalProperties=False)
    families = "|".join(sorted(registry.backends()))
    result["properties"]["backends"]["propertyNames"] = {"pattern": f"^({families})(:.+)?$"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **result}


#: Keys of the example that are shown with another value than the default, and those that are only a comment.
_GIVEN = {"graph": "vgg16", "budget": "90%", "time_limit": 60}
_SHOWN = {"costs": "costs.csv", "device": "gpu", "max_computes": 2, "threads": 2,
          "keep": ["tensor"], "memory_limit": "4GiB", "warm_start": "start.json",
          "schedule": "schedule.json", "plot": "schedule.png"}  # fmt: skip


def example() -> str:
    """A configuration with every key and its meaning; it is itself valid."""
    lines = ["# A run of `remat solve --config FILE`. Keys after a # are examples, all others have their default."]
    for section in ("problem", "solve", "output"):
        kind: Any = Config.model_fields[section].annotation
        lines += ["", f"# {_summary(kind.__doc__)}", f"[{section}]"]
        for name, entry in kind.model_fields.items():
            key = entry.alias or name
            value = _SHOWN.get(key, _GIVEN.get(key, entry.default))
            lines += [f"# {entry.description}", f"{'# ' if key in _SHOWN else ''}{key} = {json.dumps(value)}"]
    lines += ["", "# Options of methods: those of the chosen one count, the others wait for their turn."]
    for group in METHODS:
        for name, member in sorted(registry.Registered(group).usable().items()):
            if member.options_type is not None:
                lines += [f"[{group}.{name}]"]
                for key, value in vars(member.options_type()).items():
                    lines += [f"# {key} =" if value is None else f"{key} = {json.dumps(value)}"]
                lines += [""]
    lines += ["# Passed to solvers untouched, by the names of their manuals.", "[backends.cp-sat]"]
    lines += ["# linearization_level = 2", "", "[backends.highs]", "# mip_heuristic_effort = 0.1"]
    return "\n".join(lines) + "\n"


def _summary(text: str) -> str:
    """The first clause of a docstring, as a sentence."""
    return text.partition("\n")[0].partition(";")[0].rstrip(".") + "."


def _resolved(mapping: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A copy with the paths of the file relative to the current folder; names of the zoo are no paths."""
    from remat.graphs.zoo import ZOO

    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in mapping.items()}
    paths = {"problem": ("graph", "costs"), "solve": ("warm_start", "start"), "output": ("schedule", "plot")}
    for section, key in ((section, key) for section, keys in paths.items() for key in keys):
        table = merged.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            path = folder / table[key]
            if key == "start" and table[key] in ("auto", "none"):
                continue
            if not is_standard_stream(table[key]) and (key != "graph" or exists(path) or table[key] not in ZOO):
                table[key] = str(path)
    return merged


#: pydantic's words for types, in those of TOML.
_WORDS = {
    "Input should be a valid string": "a string",
    "Input should be a valid integer": "a whole number",
    "Input should be a valid number": "a number",
    "Input should be a valid boolean": "true or false",
    "Input should be a valid dictionary": "a table",
    "Input should be a valid tuple": "a list",
}


def _first(error: ValidationError, given: Any) -> tuple[list[str], str]:
    """Keys and description of the first fault in `given`, unknown keys before others."""
    faults = [(_place(fault, given), fault) for fault in error.errors(include_url=False)]
    strange = [(place, fault) for place, fault in faults if fault["type"] == "extra_forbidden"]
    if strange:
        return strange[0][0], "is not known"
    # A union has a fault for each of its members; the deepest is the one that was meant.
    place = max((place for place, _ in faults if place[:2] == faults[0][0][:2]), key=len)
    here = [fault for where, fault in faults if where == place]
    if here[0]["type"] == "missing":
        return place, "is missing"
    if here[0]["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return place, "must be a table"
    wanted = dict.fromkeys(_WORDS.get(fault["msg"], fault["msg"].removeprefix("Input should be ")) for fault in here)
    return place, f"should be {' or '.join(wanted)}, not {repr(here[0]['input'])[:60]}"


def _shown(place: list[str], fault: str) -> str:
    """A fault with its key, and the nearest one that is known."""
    if fault != "is not known":
        return f"{'.'.join(place)!r} {fault}"
    kind: Any = Config
    for word in place[:-1]:
        kind = kind.model_fields[word].annotation
    return _unknown(".".join(place), place[-1], [field.alias or name for name, field in kind.model_fields.items()])


def _place(fault: Any, given: Any) -> list[str]:
    """The keys of a fault; pydantic also names members of unions, which are no keys."""
    place = []
    for word in fault["loc"]:
        inside = isinstance(given, Mapping) and word in given
        inside |= isinstance(given, list | tuple) and isinstance(word, int) and word < len(given)
        if inside:
            given = given[word]
            place.append(str(word))
    return [*place, str(fault["loc"][-1])] if fault["type"] == "missing" else place


def _unknown(key: str, word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")
