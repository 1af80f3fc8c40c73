"""Instances of the library: graphs with a stable name and version, made by generators, and their problems."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from remat.errors import GraphError, ProblemError
from remat.experiments.library.records import positions_of
from remat.graphs import ComputeGraph, read_graph
from remat.graphs.generators import generate
from remat.io.documents import Document, decoded
from remat.io.files import read_toml
from remat.problem import Problem
from remat.runtime.text import nearest
from remat.schedule import Buffers, OrderRule, Schedule, schedule_buffers

#: Manifest of the library.
MANIFEST = Path(__file__).with_name("instances.toml")
#: Environment variable that names the folder of graphs that the library may not distribute.
GRAPHS = "REMAT_LIBRARY_GRAPHS"
#: Families in the order of lists and pages, with their titles.
FAMILIES = {
    "formula": "Optima by formula",
    "layered": "Random layered graphs",
    "checkmate": "Checkmate's networks",
    "training": "Training steps op by op",
    "inference": "Inference networks",
    "published": "Published graphs to fetch",
    "allocation": "Addresses in one arena",
}

Count = Annotated[int, Field(ge=0)]
Kind = Literal["fixed", "free", "order", "arena"]


class Instance(Document):
    """Entry of the manifest: a graph and the budgets of its problems."""

    name: str
    version: Count
    """Raised if the graph changes; records of other versions no longer count."""
    family: str
    generator: str = ""
    """Generator (``remat generate``) with its options; empty for a file."""
    options: dict[str, Any] = {}
    file: str = ""
    """File that users fetch themselves, in the folder named by ``REMAT_LIBRARY_GRAPHS``."""
    origin: str = ""
    """Publication, and where a file is available."""
    budgets: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """Budgets in % of the reference peak; each is a problem with fixed and one with free order. Empty: least peak, or
    least arena."""
    computes: str = ""
    """Schedule whose buffers are to be placed, as positions in the reference order; empty: the reference order."""
    floor: Count = 0
    """Bytes of the buffers that are live at the fullest step; 0 unless buffers are to be placed."""
    digest: str
    """Digest of the graph."""
    ops: Count
    cost: Count
    """Cost of each op once."""
    peak: Count
    """Reference peak in bytes."""
    least: Count
    """Structural bound in bytes."""

    def graph(self) -> ComputeGraph:
        """Return the graph.

        Raises
        ------
        GraphError
            If the generator gives another graph than the manifest describes, or the file is not available.
        """
        if self.file:
            if self._path is None:
                raise GraphError(
                    f"instance {self.name!r} is not distributed ({self.origin}); fetch {self.file} and name its folder "
                    f"by {GRAPHS}",
                )  # fmt: skip
            graph = read_graph(self._path)
        else:
            graph = generate(self.generator, {key: _value(value) for key, value in self.options.items()})
        if graph.digest != self.digest:
            raise GraphError(
                f"instance {self.name!r} version {self.version} has digest {self.digest[:12]}, but this graph "
                f"{graph.digest[:12]}: its generator or file has changed",
            )  # fmt: skip
        return graph

    def buffers(self, graph: ComputeGraph) -> Buffers:
        """Return the buffers to place in one arena, with graph inputs and workspaces.

        Raises
        ------
        FormatError
            If the positions of the schedule are invalid.
        """
        positions = positions_of(graph, self.computes, self.name) if self.computes else range(len(graph.ops))
        return schedule_buffers(graph, Schedule.of_computes(graph, graph.arrays.order[list(positions)]))

    @property
    def available(self) -> bool:
        """True if the graph can be made here."""
        return not self.file or (self._path is not None and self._path.is_file())

    @property
    def _path(self) -> Path | None:
        """Path of the file; None if the environment names no folder."""
        folder = os.environ.get(GRAPHS)
        return Path(folder) / self.file if folder else None

    @property
    def command(self) -> str:
        """Command that makes the graph; empty for a file."""
        options = "".join(f" --{key} {value}" for key, value in self.options.items())
        return f"remat generate {self.generator}{options}" if self.generator else ""

    def problems(self) -> Iterator[LibraryProblem]:
        """Yield the problems of the instance."""
        if not self.budgets:
            yield LibraryProblem(self, "arena" if self.floor else "order")
        for kind in ("fixed", "free") if self.budgets else ():
            for percent in self.budgets:
                yield LibraryProblem(self, kind, percent)


@dataclass(frozen=True)
class LibraryProblem:
    """Problem of the library: an instance with an order rule and a budget, or its order of least peak."""

    instance: Instance
    kind: Kind
    """``fixed`` or ``free`` for least cost within the budget; ``order`` for the least peak without recomputation;
    ``arena`` for the least arena of the buffers of a schedule."""
    percent: int | None = None
    """Budget in % of the reference peak."""

    @property
    def name(self) -> str:
        """Name, such as ``vgg16/fixed-90``."""
        return f"{self.instance.name}/{self.label}"

    @property
    def label(self) -> str:
        """Name within the instance, such as ``fixed-90``."""
        return self.kind + ("" if self.percent is None else f"-{self.percent}")

    @property
    def order(self) -> OrderRule:
        """Order rule."""
        return OrderRule.FIXED if self.kind == "fixed" else OrderRule.FREE

    @property
    def budget(self) -> int | None:
        """Budget in bytes."""
        return None if self.percent is None else self.instance.peak * self.percent // 100

    @property
    def max_computes(self) -> int | None:
        """Most computes of each op."""
        return 1 if self.kind == "order" else None

    @property
    def minimizes_peak(self) -> bool:
        """True if the objective is the least peak."""
        return self.kind == "order"

    @property
    def scale(self) -> int:
        """Value of 100 %: the reference peak, or for an arena the bytes live at the fullest step."""
        return self.instance.floor if self.kind == "arena" else self.instance.peak

    def problem(self, graph: ComputeGraph) -> Problem:
        """Return the problem for :func:`remat.solve`, which does not exist for an arena."""
        objective = "least-peak" if self.minimizes_peak else "least-cost"
        return Problem(graph, self.budget, self.order, self.max_computes, objective=objective)


@cache
def instances(manifest: Path = MANIFEST) -> dict[str, Instance]:
    """Return all instances by name, in the order of the manifest.

    Raises
    ------
    FormatError
        If the manifest is wrong.
    """
    listed = read_toml(manifest).get("instance", [])
    found = [decoded(Instance, entry, f"{manifest.name}: instance {number}") for number, entry in enumerate(listed)]
    return {each.name: each for each in found}


def problems(patterns: Iterable[str] = ("*",)) -> list[LibraryProblem]:
    """Return the problems whose names match a pattern: ``vgg16``, ``vgg*/fixed-*``, or a family.

    Raises
    ------
    ProblemError
        For a pattern that matches nothing; names it.
    """
    chosen: dict[str, LibraryProblem] = {}
    everything = [problem for each in instances().values() for problem in each.problems()]
    for pattern in patterns:
        wanted = pattern if "/" in pattern else f"{pattern}/*"
        found = {
            problem.name: problem for problem in everything
            if fnmatchcase(problem.name, wanted) or problem.instance.family == pattern
        }  # fmt: skip
        if not found:
            raise ProblemError(
                f"the library has no instance, problem or family {pattern!r}; `remat library list` shows all",
            )  # fmt: skip
        chosen |= found
    return list(chosen.values())


def instance(name: str) -> Instance:
    """Return an instance by name.

    Raises
    ------
    ProblemError
        If there is none.
    """
    if name not in instances():
        hint = nearest(name, instances()) or "; `remat library list` shows all"
        raise ProblemError(f"the library has no instance {name!r}{hint}")
    return instances()[name]


def _value(value: Any) -> Any:
    """Return an option for a generator: its sequences are tuples."""
    return tuple(value) if isinstance(value, list) else value
