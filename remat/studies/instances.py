"""Instances of a study: graphs by name, from files and generators, and random input orders of them."""

from __future__ import annotations

import glob
import hashlib
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from remat.config.sections import Section
from remat.errors import FormatError, GraphError
from remat.experiments.library.instances import problems
from remat.graphs import ComputeGraph
from remat.graphs.formats.remat_json import graph_to_text
from remat.graphs.generators import generate
from remat.graphs.io import load_graph, read_graph

#: List of words in a file.
Words = Annotated[tuple[str, ...], Field(strict=False)]


class InstancesSection(Section):
    """Graphs of a study."""

    zoo: Words = ()
    """Names of zoo graphs."""
    library: Words = ()
    """Instances of the reference library by name, family or pattern, without their budgets; none of allocation."""
    files: Words = ()
    """Graph files; ``*``, ``?`` and ``**`` match many."""
    generate: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = ()
    """Tables with ``generator`` and its options; a list stands for each of its values."""
    orders: Annotated[int, Field(ge=0)] = 0
    """Random input orders of each graph, in addition to its own."""


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
    before = [set(row) for row in graph.arrays.op_predecessors.lists()]
    after = graph.arrays.op_successors.lists()
    ready = [op for op, needed in enumerate(before) if not needed]
    order = []
    while ready:
        place = draw.randrange(len(ready))
        ready[place], ready[-1] = ready[-1], ready[place]
        order.append(op := ready.pop())
        for other in after[op]:
            before[other].discard(op)
            if not before[other]:
                ready.append(other)
    return graph.with_order([graph.op_names[op] for op in order])


def with_orders(graphs: Iterable[tuple[str, ComputeGraph]], orders: int) -> Iterator[Instance]:
    """Yield each graph as an instance, followed by up to `orders` random input orders of it."""
    for label, graph in graphs:
        own = Instance(label, graph)
        yield own
        seen = {own.digest}
        for seed in range(orders):
            other = Instance(f"{label} order {seed}", random_order(graph, seed))
            if other.digest not in seen:  # a small graph has few orders
                yield other
            seen.add(other.digest)


def graphs_of(section: InstancesSection, folder: Path, name: str) -> Iterator[tuple[str, ComputeGraph]]:
    """Yield label and graph of each instance; paths are relative to `folder`, `name` is for errors."""
    for word in section.zoo:
        yield word, load_graph(word)
    found = (each.instance for each in (problems(section.library) if section.library else ()))
    for label, entry in {each.name: each for each in found if not each.floor}.items():
        yield label, entry.graph()
    for pattern in section.files:
        paths = sorted(glob.glob(str(folder / pattern), recursive=True))  # noqa: PTH207 - patterns may be absolute
        if not paths:
            raise FormatError(f"{name}: no file matches {pattern!r}", "no-file", pattern)
        for path in paths:
            yield os.path.relpath(path, folder), read_graph(path)
    for table in section.generate:
        options = dict(table)
        generator = options.pop("generator", None)
        if not isinstance(generator, str):
            raise FormatError(f"{name}: a table of instances.generate has no 'generator'", "wrong-key", "generator")
        for values in choices(options):
            label = " ".join([generator, *(f"{key}={value}" for key, value in values.items())])
            try:
                yield label, generate(generator, values)
            except (TypeError, ValueError) as error:  # a value of the wrong type
                raise GraphError(f"{name}: {label}: {error}", "generator", label) from None


def choices(table: Mapping[str, Any], whole: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the table with one value of each list; lists of the keys in `whole` are values."""
    lists = [value if isinstance(value, list) and key not in whole else [value] for key, value in table.items()]
    for values in product(*lists):
        yield dict(zip(table, values, strict=True))
