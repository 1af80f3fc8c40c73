"""Plan of a study: instances × problems × methods × seeds, read from TOML and expanded into cells."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from remat.config import Config
from remat.config.faults import first_fault, shown
from remat.config.sections import ProblemSection, Section, SolveSection
from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.files import read_toml
from remat.problem.problem import resolved_objective
from remat.runtime.deadline import Clock
from remat.runtime.solve_options import STARTS
from remat.schedule.machine import Machine
from remat.studies.given import outcome_of_file
from remat.studies.instances import Instance, InstancesSection, choices, graphs_of, with_orders
from remat.studies.solving import Outcome

#: Part of every digest: a change of what a cell means changes it.
VERSION = 1
#: Most cells of a study.
MAX_CELLS = 1_000_000


class MethodSection(Section):
    """Method of a study, or results of another tool."""

    method: str = ""
    """As ``solve.method`` of a configuration; METHOD/BACKEND names the solver."""
    files: str = ""
    """Instead of `method`: files with schedules of another tool, in any format that ``remat validate`` reads.
    ``{instance}``, ``{budget}`` and ``{seed}`` stand for those of a cell; ``*`` and ``?`` match one file."""
    label: str = ""
    """Name in tables; default: the method with its backend."""
    options: dict[str, Any] = {}
    """Options of the method; ``PART.NAME`` sets one inside ``hierarchical``."""
    solver: dict[str, Any] = {}
    """Passed to the solver untouched."""
    solve: dict[str, Any] = {}
    """Keys of ``[solve]`` that differ for this method, such as ``start = "none"``."""


class PlanSection(Section):
    """File of a study."""

    name: str
    """Name in the store and in reports."""
    instances: InstancesSection = InstancesSection()
    methods: Annotated[tuple[MethodSection, ...], Field(strict=False, min_length=1)]
    problem: dict[str, Any] = {}
    """As ``[problem]`` of a configuration, without ``graph``; a list stands for each of its values."""
    solve: dict[str, Any] = {}
    """As ``[solve]`` of a configuration; ``seed`` may be a list."""
    clock: Clock = "wall"
    """Clock of time limits: "wall", or "processor" for the processor time of a cell's process.

    Processor time depends less on other work on the machine.
    """


@dataclass(frozen=True)
class Cell:
    """One solve.

    Attributes
    ----------
    digest : str
        SHA-256 (hex) of everything that determines the solve: graph, problem, method, options and limits.
    instance, problem, method : str
        Labels in tables.
    seed : int
    graph : str
        Digest of the graph file.
    run : mapping
        ``config``, a configuration without graph, and ``options``, those of the method; JSON values. ``clock`` is
        absent for wall time. A run of an experiment may also have ``start``, the digest of a schedule
        to start from; ``target``, an objective that suffices; and ``objects``, a description of Python objects without
        which it cannot be solved again.
    """

    digest: str
    instance: str
    problem: str
    method: str
    seed: int
    graph: str
    run: Mapping[str, Any] = field(repr=False, hash=False)

    @classmethod
    def of(cls, instance: Instance, problem: str, method: str, run: Mapping[str, Any]) -> Cell:
        """Return the cell of an instance with that run."""
        text = json.dumps([VERSION, instance.digest, run], sort_keys=True, separators=(",", ":"), allow_nan=False)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(digest, instance.name, problem, method, run["config"]["solve"]["seed"], instance.digest, run)

    @property
    def time_limit(self) -> float | None:
        """Seconds of the solve."""
        limit: float | None = self.run["config"]["solve"]["time_limit"]
        return limit

    @property
    def threads(self) -> int:
        """Threads of the solve."""
        return int(self.run["config"]["solve"]["threads"])

    @property
    def title(self) -> str:
        """Labels in one line."""
        return ", ".join([self.instance, *filter(None, [self.problem]), self.method, f"seed {self.seed}"])


@dataclass(frozen=True)
class Plan:
    """Cells of a study in the order in which they run.

    Attributes
    ----------
    name : str
    instances : mapping of str to Instance
        By digest.
    cells : tuple of Cell
    given : mapping of str to Outcome
        Results of other tools, by the digest of their cell.
    """

    name: str
    instances: Mapping[str, Instance] = field(repr=False)
    cells: tuple[Cell, ...] = field(repr=False)
    given: Mapping[str, Outcome] = field(default_factory=dict, repr=False)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Plan:
        """Read the plan in a TOML file; its paths are relative to its folder.

        Raises
        ------
        RematError
            Naming the file and the key, method, graph or option that is wrong. All methods are checked.
        """
        return cls.from_mapping(read_toml(path), str(path), Path(path).parent)

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any], name: str = "study", folder: str | os.PathLike[str] = "",
        graphs: Mapping[str, ComputeGraph] | None = None,
    ) -> Plan:  # fmt: skip
        """Return the plan in a mapping.

        `name` is for errors, paths are relative to `folder`. `graphs`: instances in addition to those of the mapping.

        Examples
        --------
        >>> plan = Plan.from_mapping({
        ...     "name": "chains",
        ...     "instances": {"generate": [{"generator": "unit-chain", "n": [4, 6]}]},
        ...     "problem": {"budget": ["90%", "80%"]},
        ...     "methods": [{"method": "greedy"}, {"method": "checkmate/highs"}],
        ... })
        >>> len(plan.cells), plan.cells[0].title
        (8, 'unit-chain n=4, 90%, greedy, seed 0')
        """
        if "tune" in mapping:
            raise FormatError(f"{name}: a study with a table 'tune' runs by `remat study tune`", "wrong-key", "tune")
        try:
            section = PlanSection.model_validate(dict(mapping))
        except ValidationError as error:
            place, fault = first_fault(error, mapping)
            text = shown(PlanSection, place, fault) if len(place) < 3 else f"{'.'.join(place)!r} {fault}"
            raise FormatError(f"{name}: {text}", "wrong-key", ".".join(place)) from None
        listed = chain((graphs or {}).items(), graphs_of(section.instances, Path(folder), name))
        instances = list(with_orders(listed, section.instances.orders))
        if not instances:
            raise FormatError(f"{name}: the study has no instance", "no-instance")
        runs = list(_runs(section, name, Path(folder)))
        if len(instances) * len(runs) > MAX_CELLS:
            raise FormatError(f"{name}: more than the {MAX_CELLS:,} cells of a study", "many-cells")
        cells: dict[str, Cell] = {}
        given: dict[str, Outcome] = {}
        for instance, (problem, method, run, files) in product(instances, runs):
            outcome = None
            if files:
                seed = run["config"]["solve"]["seed"]
                outcome = outcome_of_file(_place(Path(folder), files, instance, problem, seed), instance.graph, run)
                run = {**run, "given": [outcome.row["message"], outcome.schedule]}
            cell = Cell.of(instance, problem, method, run)
            if cell.digest in cells:
                other = cells[cell.digest].title
                raise FormatError(f"{name}: {cell.title!r} and {other!r} are the same solve", "same-cell", cell.title)
            cells[cell.digest] = cell
            if outcome is not None:
                given[cell.digest] = outcome
        return cls(section.name, {each.digest: each for each in instances}, tuple(cells.values()), given)

    @property
    def seconds(self) -> float | None:
        """Most seconds of all solves one after another; None if one has no time limit."""
        limits = [cell.time_limit for cell in self.cells if cell.digest not in self.given]
        return None if None in limits else sum(limit or 0.0 for limit in limits)


def _place(folder: Path, files: str, instance: Instance, problem: str, seed: int) -> str:
    """Return the pattern of the file of a cell."""
    words = {
        "instance": re.sub(r"\.[A-Za-z]\w*$", "", instance.name.rpartition("/")[2]),
        "budget": problem.partition(" ")[0].removesuffix("%"),
        "seed": str(seed),
    }
    return str(folder / re.sub(r"\{(\w+)\}", lambda match: glob.escape(words.get(match[1], match[0])), files))


def _runs(section: PlanSection, name: str, folder: Path) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Yield label of the problem, label of the method, run, and pattern of files of each cell of an instance."""
    for each in section.methods:
        if bool(each.method) == bool(each.files):
            raise FormatError(f"{name}: an entry of 'methods' needs either 'method' or 'files'", "wrong-key", "methods")
    labels = [each.label or each.method or each.files for each in section.methods]
    for label in labels:
        if labels.count(label) > 1:
            raise FormatError(f"{name}: method {label!r} appears twice; give each a label", "method-twice", label)
    for key in ("graph", "costs", "device"):
        if key in section.problem:
            raise FormatError(f"{name}: 'problem.{key}' has no place in a study", "wrong-key", f"problem.{key}")
    varied = [key for key, value in section.problem.items() if isinstance(value, list) and key != "keep"]
    for problem, (label, method) in product(
        choices(section.problem, ("keep",)), zip(labels, section.methods, strict=True)
    ):
        words = [str(problem["budget"])] if "budget" in problem else []
        words += [f"{key}={problem[key]}" for key in varied if key != "budget"]
        for solve in choices({"threads": 1, **section.solve, **method.solve}):
            run = _run(problem, method, solve, name, folder)
            if section.clock != "wall":
                if run["config"]["solve"]["isolate"]:
                    raise FormatError(
                        f"{name}: the processor time of isolated solvers is unknown", "wrong-key", "isolate"
                    )
                run["clock"] = section.clock
            yield " ".join(words), label, run, method.files


def _run(
    problem: Mapping[str, Any], method: MethodSection, solve: Mapping[str, Any], name: str, folder: Path
) -> dict[str, Any]:
    """Return what determines a solve except its graph, checked."""
    key = "warm_start" if "warm_start" in solve else "start"
    if key == "warm_start" or solve.get("start", "auto") not in STARTS:
        raise FormatError(
            f"{name}: a study cannot start methods from a file; leave out solve.{key}",
            "wrong-key",
            "start",
        )
    given = {"problem": {**problem, "graph": "-"}, "solve": {**solve, "method": method.method or "auto"}}
    config = Config.from_mapping(given, name, folder)
    if method.solver:
        given["backends"] = {config.solve.backend: method.solver}
        config = Config.from_mapping(given, name, folder)
    config = config.with_options(method.options)
    if config.solve.threads == "all":
        raise FormatError(
            f"{name}: solve.threads is 'all'; a study needs a number, so that times compare", "wrong-key", "all"
        )
    return run_of(config.problem, config.solve, config.backends, method.options)


def run_of(
    problem: ProblemSection, solve: SolveSection, backends: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return :attr:`Cell.run` of a problem, limits, options of solvers by backend, and options of the method."""
    rules = problem.model_dump(mode="json", exclude={"graph", "costs", "device", "machine"})
    machine = None if problem.machine is None else Machine.of(problem.machine)
    rules["objective"] = str(resolved_objective(problem.objective, machine))
    if machine is not None:
        rules["machine"] = machine.settings
    content = {
        "problem": rules,
        "solve": solve.model_dump(mode="json", exclude={"warm_start"}),
        "backends": dict(backends),
    }
    return {"config": content, "options": dict(options)}
