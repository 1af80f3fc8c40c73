"""Configuration of a run: all arguments of solve(), read from TOML and validated first."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr, ValidationError

from remat import registry
from remat.backends.programs import check_solver_options, check_trusted
from remat.config.faults import first_fault, shown, unknown
from remat.config.levels import check_levels, make_options, with_tables
from remat.config.machines import read_machine
from remat.config.sections import OutputSection, ProblemSection, Section, SolveSection
from remat.errors import FormatError
from remat.graphs.io import load_graph, model_suffixes
from remat.io.files import check_outputs, exists, is_standard_stream, read_toml
from remat.io.limits import read_limits
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import STARTS, SolveOptions
from remat.schedule.io import SUFFIXES as SCHEDULES
from remat.schedule.io import read_schedule
from remat.solving.progress import OnProgress

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph
    from remat.schedule import Schedule
    from remat.solving.result import Result

#: Registry groups for ``solve.method``.
METHODS = ("formulations", "heuristics", "methods")
#: Reason for refusing a class.
IMPORTED = "would be imported, which needs --allow-imports on the command line"


class Config(Section):
    """Complete description of a run.

    Attributes
    ----------
    problem : ProblemSection
    solve : SolveSection
    output : OutputSection
    formulations, heuristics, methods : mapping of name to mapping
        Options of methods. Only those of ``solve.method``, and of the methods in the levels of ``hierarchical``, apply.
    partitioners : mapping of name to mapping
        Options of the partitioners of ``hierarchical``.
    backends : mapping of name or name:variant to mapping
        Passed to that solver untouched, by the names of its manual; options of a variant take precedence over those of
        the family.

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
    partitioners: dict[str, dict[str, Any]] = {}
    backends: dict[str, dict[str, Any]] = {}
    #: Classes named as ``module:Class``, if allowed.
    _imported: dict[str, type[Any]] = PrivateAttr(default_factory=dict)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        allow_solver_files: bool = False,
        allow_imports: bool = False,
        allow_output_outside: bool = False,
    ) -> Config:
        """Read the configuration in a TOML file; its paths are relative to its folder.

        Parameters
        ----------
        overrides : mapping of section to mapping of key to value, optional
            Take precedence over the file; their paths are relative to the current folder.
        allow_solver_files : bool
            Allow solver options that name files.
        allow_imports : bool
            Allow ``module:Class`` for method and backend, which is imported. `overrides` always allow it.
        allow_output_outside : bool
            Allow output files outside the folder of the file and the current folder. Those of `overrides` may be
            anywhere.

        Raises
        ------
        FormatError
            With the file, and the line or the key; for an unknown key also the nearest known one.
        ProblemError
            For options that the formulation refuses.
        RematError
            For a formulation or heuristic that is not registered.
        """
        return cls.from_mapping(
            read_toml(path), str(path), Path(path).parent, overrides,
            allow_solver_files=allow_solver_files, allow_imports=allow_imports,
            allow_output_outside=allow_output_outside,
        )  # fmt: skip

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[str, Any],
        name: str = "configuration",
        folder: str | os.PathLike[str] = "",
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        allow_solver_files: bool = False,
        allow_imports: bool = False,
        allow_output_outside: bool = False,
    ) -> Config:
        """Return the configuration in a mapping of sections; `name` is for errors, paths are relative to `folder`."""
        from remat.solving.method import make_method, require_backend

        merged = _resolved(mapping, Path(folder))
        for section, values in (overrides or {}).items():
            table = merged.setdefault(section, {})
            if isinstance(table, dict):
                table.update(values)
        try:
            config = cls.model_validate(merged)
        except ValidationError as error:
            place, fault = first_fault(error, merged)
            if len(place) > 1 and place[1] in (overrides or {}).get(place[0], {}):
                option = f"--{place[1].replace('_', '-')}"
                raise FormatError(f"option {option} {fault}", "wrong-option", option) from None
            raise FormatError(f"{name}: {shown(cls, place, fault)}", "wrong-key", ".".join(place)) from None
        _check_tables(config, name)
        config._check_names(name, (overrides or {}).get("solve", {}), allow_imports)
        if not allow_output_outside:
            typed_outputs = (overrides or {}).get("output", {})
            for key in ("schedule", "plot"):
                if key not in typed_outputs:
                    _check_inside(f"{name}: output.{key}", getattr(config.output, key), Path(folder))
        for backend, given in config.backends.items():
            check_trusted(backend, f"{name}: ")
            if not allow_solver_files:
                check_solver_options(backend, given, f"{name}: ")
        for method, given in config._tables.items():
            options = make_options(method, given, f"{name}: ", config._imported.get(method))
            check_levels(options, f"{name}: ", allow_solver_files=allow_solver_files)
        written, method = merged.get("solve", {}).get("method"), config.solve.method
        if written not in (None, method):
            require_backend(make_method(method, config.options_of(method)), written)
        return config

    def _check_names(self, name: str, typed: Container[str], allow_imports: bool) -> None:
        """Check method and backend, and import those named as classes; `typed` keys come from the command line."""
        from remat.solving.method import is_method, unknown_method

        for key, group in (("method", "methods"), ("backend", "backends")):
            word, where = getattr(self.solve, key), "" if key in typed else f"{name}: "
            if registry.names_class(word, group):
                if not (allow_imports or key in typed):
                    raise FormatError(f"{where}solve.{key} {word!r} {IMPORTED}", "import-not-allowed", word)
                self._imported[word] = registry.import_class(word, group)
            elif key == "method" and not is_method(word):
                raise FormatError(f"{where}{unknown_method(word)}")
            elif key == "backend" and key not in typed:
                check_trusted(word, where)

    def named(self, word: str, group: str) -> Any:
        """Return the class that a word of ``solve.method`` or ``solve.backend`` names, or else the word.

        Raises
        ------
        FormatError
            If it names a class and that is not allowed.
        """
        if word in self._imported:
            return self._imported[word]
        if registry.names_class(word, group):
            raise FormatError(f"{registry.GROUPS[group]} {word!r} {IMPORTED}", "import-not-allowed", word)
        return word

    @property
    def _tables(self) -> dict[str, dict[str, Any]]:
        return self.partitioners | self.formulations | self.heuristics | self.methods

    def options_of(self, method: str) -> Any:
        """Return the options of a method, or None."""
        tables = self._tables
        given = tables.get(method)
        if given or (method == "hierarchical" and tables):
            options = make_options(method, given or {}, kind=self._imported.get(method))
            return with_tables(options, tables, self.solver_options_of, self.solve.backend)
        return None

    def with_options(self, given: Mapping[str, Any]) -> Config:
        """Return the configuration with options of ``solve.method``; ``PART.NAME`` sets one inside ``hierarchical``.

        Raises
        ------
        RematError
            As :func:`make_options`.
        """
        tables = self._tables
        changed = {group: dict(getattr(self, group)) for group in ("methods", "partitioners")}
        for key, value in given.items():
            part, _, name = key.rpartition(".")
            word = part or self.solve.method
            group = "partitioners" if word in registry.partitioners() else "methods"
            changed[group][word] = tables.get(word, {}) | changed[group].get(word, {}) | {name: value}
            make_options(word, changed[group][word], kind=self._imported.get(word))
        return self.model_copy(update=changed)

    def solver_options_of(self, backend: str) -> dict[str, Any]:
        """Return the options that are passed to that solver untouched."""
        return {**self.backends.get(backend.partition(":")[0], {}), **self.backends.get(backend, {})}

    def solve_options(self, graph: ComputeGraph, solver: Any = None, log: Any = None) -> SolveOptions:
        """Return the options of the ``[solve]`` table for `graph`, except the time limit."""
        chosen = self.solve
        start: Any = chosen.start if chosen.start in STARTS else self._schedule(chosen.start, graph)
        return SolveOptions(
            threads=None if chosen.threads == "all" else chosen.threads,
            seed=chosen.seed, relative_gap=chosen.gap, log=log, solver=solver or {},
            isolate=chosen.isolate, memory_limit=chosen.memory_limit, start=start,
        )  # fmt: skip

    def _schedule(self, path: str, graph: ComputeGraph) -> Schedule:
        with read_limits(self.solve.time_limit, self.solve.memory_limit):
            return read_schedule(path, graph)

    def make_problem(self) -> Problem:
        """Read the graph and return the problem with budget and rules."""
        p = self.problem
        with read_limits(self.solve.time_limit, self.solve.memory_limit):
            graph = load_graph(p.graph)
            if p.costs is not None or p.device is not None:
                from remat.graphs.profiles import load_profiled

                graph = load_profiled(graph, p.costs, p.device)
        rules = p.order, p.max_computes, p.keep, p.count_constant_memory
        machine = None if p.machine is None else read_machine(p.machine)
        return Problem(graph, p.budget, *rules, p.objective, machine)

    def run(
        self, on_progress: OnProgress | None = None, *, log: Callable[[str], None] | None = None,
        problem: Problem | None = None, warm_start: Schedule | None = None,
        write: bool = True, clock: Deadline | None = None,
    ) -> Result:  # fmt: skip
        """Read all inputs, solve, and write the requested schedule and picture.

        Parameters
        ----------
        on_progress, log
            As for :func:`remat.solve`.
        problem, warm_start : optional
            Result of :meth:`make_problem`, and the schedule in ``solve.warm_start``, if already read.
        write : bool
            False: the caller calls :meth:`write`.
        clock : Deadline, optional
            Default: the time limit, from now.

        Raises
        ------
        RematError
            As :func:`remat.solve`, and for files that cannot be read or written; outputs are checked before the solve.
        """
        from remat.io.figures import SUFFIXES
        from remat.solving.method import make_method
        from remat.solving.solve import solve

        chosen, output = self.solve, self.output
        clock = clock or Deadline.after(chosen.time_limit)
        inputs = (self.problem.graph, self.problem.costs, chosen.warm_start)
        wanted = (*SCHEDULES, *model_suffixes(self.problem.graph))
        check_outputs((output.schedule, wanted), (output.plot, SUFFIXES), inputs=inputs)
        problem = problem or self.make_problem()
        if warm_start is None and chosen.warm_start is not None:
            warm_start = self._schedule(chosen.warm_start, problem.graph)
        given = self.options_of(chosen.method)
        method, backend = self.named(chosen.method, "methods"), self.named(chosen.backend, "backends")
        solver = self.solver_options_of(chosen.backend) if make_method(method, given).needs_backend else {}
        result = solve(
            problem, method, backend, stop=clock, warm_start=warm_start, method_options=given,
            options=self.solve_options(problem.graph, solver, log), on_progress=on_progress,
        )  # fmt: skip
        if write:
            self.write(result)
        return result

    def write(self, result: Result) -> None:
        """Write the requested schedule and picture of `result`, if it has a schedule."""
        if result.schedule is None:
            return
        if self.output.schedule is not None:
            from remat.deploy import write_answer

            write_answer(result.schedule, self.output.schedule, self.problem.graph)
        if self.output.plot is not None:
            draw(result, self.output.plot)


def draw(result: Result, path: str | os.PathLike[str], limit: int | None = None) -> None:
    """Draw the schedule of `result` into a file, with a line at `limit` bytes (default: the budget)."""
    from remat.schedule.plots import save_plot

    assert result.schedule is not None
    problem = result.problem
    save_plot(
        problem.graph, result.schedule, path, problem.budget_bytes if limit is None else limit,
        keep=problem.keep, count_constant_memory=problem.count_constant_memory,
    )  # fmt: skip


def _check_inside(what: str, path: str | None, folder: Path) -> None:
    """Refuse an output outside the configuration's folder and the current folder; links are followed."""
    if path is None or is_standard_stream(path):
        return
    places = (folder.resolve(), Path.cwd())
    if not any(Path(path).resolve().is_relative_to(place) for place in places):
        raise FormatError(
            f"{what} {path!r} lies outside the folder of the configuration and the current folder; "
            "--allow-output-outside allows that",
            "output-outside",
            path,
        )


def _check_tables(config: Config, name: str) -> None:
    """Refuse tables of options for names that are not registered."""
    for group in ("formulations", "backends", "heuristics", "methods", "partitioners"):
        known = registry.Registered(group)
        for word in (word for word in getattr(config, group) if word.partition(":")[0] not in known):
            if group in METHODS and registry.names_class(word, group):
                if word == config.solve.method:  # its class defines the options
                    continue
                raise FormatError(
                    f"{name}: {f'{group}.{word}'!r} has options of a class, which solve.method "
                    f"({config.solve.method!r}) does not name",
                    "options-of-other-class",
                    word,
                )
            elsewhere = [f"{each}.{method}" for each in METHODS for method in registry.Registered(each)]
            fault = unknown(f"{group}.{word}", word, list(known), elsewhere if group in METHODS else None)
            raise FormatError(f"{name}: {fault}", "wrong-key", word)


def _resolved(mapping: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a copy with the paths of the file relative to the current folder; names of zoo graphs stay."""
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in mapping.items()}
    paths = {"problem": ("graph", "costs"), "solve": ("warm_start", "start"), "output": ("schedule", "plot")}
    for section, key in ((section, key) for section, keys in paths.items() for key in keys):
        table = merged.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            path = folder / table[key]
            if is_standard_stream(table[key]) or (key == "start" and table[key] in STARTS):
                continue
            if key != "graph" or exists(path) or not _is_in_zoo(table[key]):
                table[key] = str(path)
    return merged


def _is_in_zoo(name: str) -> bool:
    from remat.graphs.zoo import ZOO

    return name in ZOO
