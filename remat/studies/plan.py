"""Plan of a study: instances × problems × methods × seeds, read from TOML and expanded into cells."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from remat.config import Config
from remat.config.faults import first_fault, shown
from remat.config.sections import ProblemSection, Section, SolveSection
from remat.errors import FormatError, GraphError
from remat.graphs import ComputeGraph
from remat.graphs.formats.remat_json import graph_to_text
from remat.graphs.generators import generate
from remat.graphs.io import load_graph, read_graph
from remat.io.files import read_toml
from remat.runtime.solve_options import STARTS

#: Part of every digest: a change of what a cell means changes it.
VERSION = 1
#: Most cells of a study.
MAX_CELLS = 1_000_000

_Words = Annotated[tuple[str, ...], Field(strict=False)]
_Count = Annotated[int, Field(ge=0)]


class InstancesSection(Section):
    """Graphs of a study."""

    zoo: _Words = ()
    """Names of zoo graphs."""
    files: _Words = ()
    """Graph files; ``*``, ``?`` and ``**`` match many."""
    generate: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = ()
    """Tables with ``generator`` and its options; a list stands for each of its values."""
    orders: _Count = 0
    """Random input orders of each graph, in addition to its own."""


class MethodSection(Section):
    """Method of a study."""

    method: str
    """As ``solve.method`` of a configuration; METHOD/BACKEND names the solver."""
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
    instances: InstancesSection
    methods: Annotated[tuple[MethodSection, ...], Field(strict=False, min_length=1)]
    problem: dict[str, Any] = {}
    """As ``[problem]`` of a configuration, without ``graph``; a list stands for each of its values."""
    solve: dict[str, Any] = {}
    """As ``[solve]`` of a configuration; ``seed`` may be a list."""


@dataclass(frozen=True)
class Instance:
    """Graph of a study."""

    name: str
    graph: ComputeGraph = field(repr=False)

    @cached_property
    def text(self) -> str:
        """Graph file, canonical."""
        return graph_to_text(self.graph)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the graph file."""
        return hashlib.sha256(self.text.encode()).hexdigest()


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
        ``config``, a configuration without graph, and ``options``, those of the method; JSON values.
    """

    digest: str
    instance: str
    problem: str
    method: str
    seed: int
    graph: str
    run: Mapping[str, Any] = field(repr=False, hash=False)

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
    """

    name: str
    instances: Mapping[str, Instance] = field(repr=False)
    cells: tuple[Cell, ...] = field(repr=False)

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
    def from_mapping(cls, mapping: Mapping[str, Any], name: str = "study", folder: str | os.PathLike[str] = "") -> Plan:
        """Return the plan in a mapping; `name` is for errors, paths are relative to `folder`.

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
        try:
            section = PlanSection.model_validate(dict(mapping))
        except ValidationError as error:
            place, fault = first_fault(error, mapping)
            text = shown(PlanSection, place, fault) if len(place) < 3 else f"{'.'.join(place)!r} {fault}"
            raise FormatError(f"{name}: {text}", "wrong-key", ".".join(place)) from None
        instances = list(_instances(section.instances, Path(folder), name))
        if not instances:
            raise FormatError(f"{name}: the study has no instance", "no-instance")
        runs = list(_runs(section, name, Path(folder)))
        if len(instances) * len(runs) > MAX_CELLS:
            raise FormatError(f"{name}: more than the {MAX_CELLS:,} cells of a study", "many-cells")
        cells: dict[str, Cell] = {}
        for instance, (problem, method, run) in product(instances, runs):
            digest = _digest([VERSION, instance.digest, run])
            seed = run["config"]["solve"]["seed"]
            cell = Cell(digest, instance.name, problem, method, seed, instance.digest, run)
            if digest in cells:
                raise FormatError(
                    f"{name}: {cell.title!r} and {cells[digest].title!r} are the same solve", "same-cell", cell.title
                )
            cells[digest] = cell
        return cls(section.name, {each.digest: each for each in instances}, tuple(cells.values()))

    @property
    def seconds(self) -> float | None:
        """Most seconds of all solves one after another; None if one has no time limit."""
        limits = [cell.time_limit for cell in self.cells]
        return None if None in limits else sum(limit or 0.0 for limit in limits)


def random_order(graph: ComputeGraph, seed: int) -> ComputeGraph:
    """Return the graph with a random topological order as reference order: each ready op is equally likely next.

    Examples
    --------
    >>> from remat.graphs.layered import layered
    >>> graph = layered(30, seed=1)
    >>> random_order(graph, 0) == random_order(graph, 0), random_order(graph, 0) == random_order(graph, 1)
    (True, False)
    """
    draw = random.Random(seed)
    writers: dict[str, list[str]] = {}
    for op in graph.ops:
        for tensor in op.outputs:
            writers.setdefault(tensor, []).append(op.name)
    before = {op.name: {name for tensor in op.inputs for name in writers.get(tensor, ())} for op in graph.ops}
    after: dict[str, list[str]] = {}
    for name, needed in before.items():
        for other in needed:
            after.setdefault(other, []).append(name)
    ready = [name for name, needed in before.items() if not needed]
    order = []
    while ready:
        place = draw.randrange(len(ready))
        ready[place], ready[-1] = ready[-1], ready[place]
        order.append(name := ready.pop())
        for other in after.get(name, ()):
            before[other].discard(name)
            if not before[other]:
                ready.append(other)
    return graph.with_order(order)


def _instances(section: InstancesSection, folder: Path, name: str) -> Iterator[Instance]:
    for label, graph in _graphs(section, folder, name):
        own = Instance(label, graph)
        yield own
        seen = {own.digest}
        for seed in range(section.orders):
            other = Instance(f"{label} order {seed}", random_order(graph, seed))
            if other.digest not in seen:  # a small graph has few orders
                yield other
            seen.add(other.digest)


def _graphs(section: InstancesSection, folder: Path, name: str) -> Iterator[tuple[str, ComputeGraph]]:
    for word in section.zoo:
        yield word, load_graph(word)
    for pattern in section.files:
        found = sorted(glob.glob(str(folder / pattern), recursive=True))  # noqa: PTH207 - patterns may be absolute
        if not found:
            raise FormatError(f"{name}: no file matches {pattern!r}", "no-file", pattern)
        for path in found:
            yield os.path.relpath(path, folder), read_graph(path)
    for table in section.generate:
        options = dict(table)
        generator = options.pop("generator", None)
        if not isinstance(generator, str):
            raise FormatError(f"{name}: a table of instances.generate has no 'generator'", "wrong-key", "generator")
        for values in _each(options):
            label = " ".join([generator, *(f"{key}={value}" for key, value in values.items())])
            try:
                yield label, generate(generator, values)
            except (TypeError, ValueError) as error:  # a value of the wrong type
                raise GraphError(f"{name}: {label}: {error}", "generator", label) from None


def _each(table: Mapping[str, Any], whole: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the table with one value of each list; lists of the keys in `whole` are values."""
    choices = [value if isinstance(value, list) and key not in whole else [value] for key, value in table.items()]
    for values in product(*choices):
        yield dict(zip(table, values, strict=True))


def _runs(section: PlanSection, name: str, folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield label of the problem, label of the method, and run of each cell of an instance."""
    labels = [each.label or each.method for each in section.methods]
    for label in labels:
        if labels.count(label) > 1:
            raise FormatError(f"{name}: method {label!r} appears twice; give each a label", "method-twice", label)
    for key in ("graph", "costs", "device"):
        if key in section.problem:
            raise FormatError(f"{name}: 'problem.{key}' has no place in a study", "wrong-key", f"problem.{key}")
    varied = [key for key, value in section.problem.items() if isinstance(value, list) and key != "keep"]
    for problem, (label, method) in product(
        _each(section.problem, ("keep",)), zip(labels, section.methods, strict=True)
    ):
        words = [str(problem["budget"])] if "budget" in problem else []
        words += [f"{key}={problem[key]}" for key in varied if key != "budget"]
        for solve in _each({"threads": 1, **section.solve, **method.solve}):
            yield " ".join(words), label, _run(problem, method, solve, name, folder)


def _run(
    problem: Mapping[str, Any], method: MethodSection, solve: Mapping[str, Any], name: str, folder: Path
) -> dict[str, Any]:
    """Return what determines a solve except its graph, checked."""
    if solve.get("start", "auto") not in STARTS or "warm_start" in solve:
        raise FormatError(f"{name}: a study starts no method from a file", "wrong-key", "start")
    given = {"problem": {**problem, "graph": "-"}, "solve": {**solve, "method": method.method}}
    config = Config.from_mapping(given, name, folder)
    if method.solver:
        given["backends"] = {config.solve.backend: method.solver}
        config = Config.from_mapping(given, name, folder)
    config = config.with_options(method.options)
    if config.solve.threads == "all":
        raise FormatError(
            f"{name}: solve.threads is 'all'; a study needs a number, so that times compare", "wrong-key", "all"
        )
    content = {
        "problem": ProblemSection.model_dump(config.problem, mode="json", exclude={"graph", "costs", "device"}),
        "solve": SolveSection.model_dump(config.solve, mode="json", exclude={"warm_start"}),
        "backends": dict(config.backends),
    }
    return {"config": content, "options": method.options}


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
