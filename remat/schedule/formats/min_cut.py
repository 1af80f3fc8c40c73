"""What torch's partitioner logs of its choice: the artefact ``min_cut_information``, as a schedule of a captured step.

With ``AOT_PARTITIONER_DEBUG=1 TORCH_TRACE=DIR`` torch writes it into its trace log, once for each budget strictly
between 0 and 1 for which the knapsack ran (torch/_functorch/_activation_checkpointing/ac_logging_utils.py); tlparse
writes it out as a file of its own. Both are read: the JSON document, and a log that has such documents.

Nodes have name, target, shape and the names of what they read. They lack types, the index of a ``getitem``, arguments
that are no nodes, and, but for candidates of the knapsack, bytes and runtime. So it is no graph, and a schedule only of
a graph that has the same ops by the same names, which is verified node by node: a step captured by ``remat capture``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from remat.errors import FormatError
from remat.graphs import ComputeGraph, Op
from remat.io.documents import ForeignDocument, decoded
from remat.io.files import parse_json
from remat.io.formats import Source
from remat.io.text import short
from remat.schedule.formats.base import ScheduleFormat, needed_graph
from remat.schedule.saved_sets import schedule_of_saved
from remat.schedule.schedule import Schedule

NAME = "min_cut_information"
_KEYS = {"Joint Graph Node Information", "Min Cut Solution Saved Values"}
#: How a log line says that the lines after it, each with a tab in front, are such a document.
_MARK = f'"name": "{NAME}"'
_GETITEM = "getitem"
#: Most documents of one log that are tried.
MAX_DOCUMENTS = 1000


class Node(ForeignDocument):
    """A node of torch's joint graph."""

    target: str
    input_arguments: list[str]


class MinCutDocument(ForeignDocument):
    """What is read of the artefact."""

    nodes: dict[str, Node] = Field(alias="Joint Graph Node Information")
    saved: list[str] = Field(alias="Min Cut Solution Saved Values")
    budget: float | None = Field(default=None, alias="Memory Budget")


def schedule_from_min_cut(graph: ComputeGraph, document: Any) -> Schedule:
    """The schedule of torch's saved values: see :func:`remat.schedule.saved_sets.schedule_of_saved`.

    Ops that torch merged because they compute the same stay apart; one is kept where the op that torch kept for it is.

    Parameters
    ----------
    graph : ComputeGraph
        The captured step: ops named by their fx nodes, their types the targets.
    document : JSON value

    Raises
    ------
    FormatError
        If the document is malformed, or not of this step: naming the first op that it lacks, that is something else
        there, or that reads something else.
    """
    found = decoded(MinCutDocument, document)
    match = _Match(graph, found.nodes)
    saved = match.saved_tensors(found.saved)
    schedule = schedule_of_saved(graph, saved, source="torch's partitioner")
    counts = Counter(schedule.computes())
    random = graph.meta.get("random_ops", ())
    unsafe = [op for op in random if counts[op] > 1] if isinstance(random, list | tuple) else []
    meta = {"budget": found.budget, "unsafe": unsafe, "merged": sorted(match.twins)}
    return replace(schedule, meta=meta)


class _Match:
    """Which op of a graph each node of torch's graph stands for, and which tensor each value lives in."""

    def __init__(self, graph: ComputeGraph, nodes: Mapping[str, Node]) -> None:
        self.graph, self.nodes = graph, nodes
        #: Of each node that is no op: the op or input node whose storage it is a view of; and by which getitem, if any.
        self.base: dict[str, str] = {}
        self.item: dict[str, str | None] = {}
        #: Ops that torch merged into others, and these.
        self.twins: dict[str, set[str]] = {}
        self._resolve()
        #: For each op its reads in the file: pairs of an op and the getitem of it (None: its only value); and back.
        self.reads: dict[str, set[tuple[str, str | None]]] = {}
        self.readers: dict[tuple[str, str | None], set[str]] = {}
        self.items: dict[str, list[str]] = {}
        for name, node in nodes.items():
            if name in graph.op_index:
                self.reads[name] = {pair for each in node.input_arguments if (pair := self._read(each)) is not None}
                for pair in self.reads[name]:
                    self.readers.setdefault(pair, set()).add(name)
            elif self.item[name] == name:
                self.items.setdefault(self.base[name], []).append(name)
        self._check()

    def _resolve(self) -> None:
        """Views are followed to the first of what they read; a node stands after what it reads."""
        for name, node in self.nodes.items():
            for each in node.input_arguments:
                if each not in self.nodes:
                    raise FormatError(f"node {short(name)} reads {short(each)}, which is no node of the file")
                if each not in self.base:
                    raise FormatError(f"node {short(name)} reads {short(each)}, which comes after it")
            op = self._op(name)
            first = node.input_arguments[0] if node.input_arguments else None
            if op is not None:
                if op.type != node.target:
                    raise self._other(f"op {short(name)} is {short(op.type)}, but {short(node.target)} in the file")
                self.base[name], self.item[name] = name, None
            elif first is None:
                self.base[name], self.item[name] = name, None
            elif _GETITEM in node.target and self.base[first] == first:
                self.base[name], self.item[name] = first, name
            else:
                self.base[name], self.item[name] = self.base[first], self.item[first]

    def _op(self, name: str) -> Op | None:
        place = self.graph.op_index.get(name)
        return None if place is None else self.graph.ops[place]

    def _read(self, name: str) -> tuple[str, str | None] | None:
        """The op and item that a node's value is; None for parameters, inputs and views of them."""
        base = self.base[name]
        return (base, self.item[name]) if base in self.graph.op_index else None

    def _check(self) -> None:
        """Each op of the graph is in the file and reads the same there, or is one that torch merged with another."""
        arrays, graph = self.graph.arrays, self.graph
        by_kind: dict[Any, set[str]] = {}
        likeness: dict[str, int] = {}  # a number for each op; the same for those that may compute the same
        numbers: dict[Any, int] = {}
        for place in arrays.order.tolist():
            op = graph.ops[place]
            if op.name == "begin_backward":
                continue
            before = {graph.ops[o].name for t in arrays.op_inputs[place] for o in arrays.producers[t]}
            before.discard("begin_backward")
            before.discard(op.name)
            sizes = tuple(graph.tensors[t].size for t in arrays.op_outputs[place])
            kind = (op.type, sizes, frozenset(likeness[each] for each in before))
            likeness[op.name] = numbers.setdefault(kind, len(numbers))
            if op.name in self.nodes:
                by_kind.setdefault(kind, set()).add(op.name)
                there = {each for each, _ in self.reads[op.name]}
                for each in sorted(before):
                    if not there & {each, *self.twins.get(each, ())}:
                        raise self._other(f"op {short(op.name)} reads {short(each)}, but not in the file")
                allowed = before.union(*(self.twins.get(each, ()) for each in before))
                for each in sorted(there - allowed):
                    raise self._other(f"op {short(op.name)} reads {short(each)} in the file, but not in the graph")
            elif kind in by_kind:
                self.twins[op.name] = by_kind[kind]
            else:
                raise self._other(f"op {short(op.name)} ({short(op.type)}) is not in the file")

    def _other(self, what: str) -> FormatError:
        return FormatError(
            f"{what}: the file is not of graph {self.graph.name!r} (a file of Inductor has its decomposed ops; "
            "backend='aot_eager' has those of remat capture)"
        )

    def saved_tensors(self, saved: Iterable[str]) -> list[str]:
        """The tensors of the graph that saved values live in, and those of ops merged with their ops."""
        graph = self.graph
        items: dict[str, set[str | None]] = {}
        for name in saved:
            if name not in self.nodes:
                raise FormatError(f"the saved value {short(name)} is no node of the file")
            pair = self._read(name)
            if pair is not None:
                items.setdefault(pair[0], set()).add(pair[1])
        positions = {op: self._positions(op, kept) for op, kept in items.items()}
        for op, twins in self.twins.items():
            kept = [positions[each] for each in sorted(twins) if each in positions]
            if len(kept) == len(twins):  # of several that it may have been, all
                positions[op] = set.intersection(*kept)
        return [graph.ops[graph.op_index[op]].outputs[i] for op, kept in positions.items() for i in sorted(kept)]

    def _positions(self, op: str, kept: set[str | None]) -> set[int]:
        """Which outputs of an op the getitems `kept` are: told by who reads them, and by their order.

        A getitem has no index in the file. Tracing makes them in the order of the outputs.
        """
        graph = self.graph
        outputs = graph.ops[graph.op_index[op]].outputs
        if None in kept or len(outputs) == 1:
            return set(range(len(outputs)))
        theirs: dict[frozenset[str], list[str]] = {}
        for item in self.items.get(op, ()):
            theirs.setdefault(frozenset(self.readers.get((op, item), set())), []).append(item)
        mine: dict[frozenset[str], list[int]] = {}
        for i, tensor in enumerate(outputs):
            place = graph.tensor_index[tensor]
            ops = {graph.ops[o].name for o in graph.arrays.consumers[place]}
            mine.setdefault(frozenset(ops & self.reads.keys()), []).append(i)
        found: set[int] = set()
        for readers, names in theirs.items():
            chosen = [k for k, name in enumerate(names) if name in kept]
            if not chosen:
                continue
            places = mine.get(readers, [])
            if len(places) != len(names) and len(chosen) != len(names):
                raise FormatError(
                    f"the saved value {short(names[chosen[0]])} may be any of {len(places)} outputs of op {short(op)}: "
                    "the file does not say which, and who reads it does not tell"
                )
            if not places:
                raise self._other(f"no output of op {short(op)} is read by those that read {short(names[0])}")
            found.update((places[k] for k in chosen) if len(places) == len(names) else places)
        return found


# -- files -----------------------------------------------------------------------------------------------------


def documents_of(source: Source) -> list[Any]:
    """The documents of a source: one, or all of a trace log, in its order.

    Raises
    ------
    FormatError
        If a document is not JSON, or there are too many.
    """
    if source.looks_like_json:
        return [source.json]
    found, lines = [], source.text.split("\n")
    for number, line in enumerate(lines):
        if _MARK not in line or line.startswith("\t"):
            continue
        end = number + 1
        while end < len(lines) and lines[end].startswith("\t"):
            end += 1
        found.append("\n".join(each[1:] for each in lines[number + 1 : end]))
    if len(found) > MAX_DOCUMENTS:
        raise FormatError(f"{len(found):,} documents {NAME}, more than the {MAX_DOCUMENTS:,} that are read")
    return [parse_json(text, f"{source.name}: {NAME} {k}") for k, text in enumerate(found, 1)]


def _recognizes(source: Source) -> bool:
    if source.looks_like_json:
        return isinstance(source.json, dict) and source.json.keys() >= _KEYS
    return _MARK.encode() in source.data


def _read(source: Source, graph: ComputeGraph | None) -> Schedule:
    graph = needed_graph(graph, f"torch's {NAME}")
    documents = documents_of(source)
    error = FormatError(f"no document {NAME} stands in the log")
    for document in reversed(documents):  # the last that fits: a log may have several graphs, and several attempts
        try:
            return schedule_from_min_cut(graph, document)
        except FormatError as fault:
            error = fault
    if len(documents) > 1:
        raise FormatError(f"none of {len(documents)} documents {NAME} fits: the first: {error}")
    raise error


FORMAT = ScheduleFormat(
    name="min-cut",
    description="torch's artefact min_cut_information, or a trace log that has it; read only",
    recognizes=_recognizes,
    read=_read,
)
