"""TensorFlow Lite models with operators reordered or repeated, and with offsets of tensors in the metadata.

The old file stays unchanged behind new tables (:mod:`remat.deploy.flat`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from remat.deploy.dataflow import FileOp, Instance, Value, check_same, sequence
from remat.deploy.flat import LINK, Fields, FlatBuffer, Piece, content, in_front, links, numbers, table, text
from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.graphs.formats.tflite.assembly import RESOURCES, Assembly, Bodies
from remat.graphs.formats.tflite.tables import ModelTables, model_tables
from remat.io.limits import budgeted
from remat.schedule import Schedule

#: Name of the metadata with offsets for TensorFlow Lite Micro, and the version of its format.
PLAN_NAME, PLAN_VERSION = b"OfflineMemoryAllocation", 1
#: State of all ops on resources, next to the numbers of variables.
STATE = "resources"
#: Offset of a tensor that the runtime places.
ONLINE = -1
# Field numbers and sizes: the schema of LiteRT 2.3 (``schema.fbs``), in which no field has moved since version 3.
_MODEL: Fields = {0: 4} | dict.fromkeys(range(1, 10), LINK)
_SUBGRAPHS, _BUFFERS, _METADATA = 2, 4, 6
_SUBGRAPH: Fields = dict.fromkeys(range(5), LINK) | {5: 4}
_TENSORS, _INPUTS, _OUTPUTS, _OPERATORS = range(4)
TENSOR: Fields = dict.fromkeys((0, 3, 4, 6, 7, 9), LINK) | {1: 1, 2: 4, 5: 1, 8: 1, 10: 4}
_TENSOR_NAME = 3
OPERATOR: Fields = {0: 4, 3: 1, 6: 1, 9: 8, 10: 8, 11: 1, 13: 4} | dict.fromkeys((1, 2, 4, 5, 7, 8, 12), LINK)
_OP_INPUTS, _OP_OUTPUTS, _CUSTOM_OPTIONS, _OP_LARGE = 1, 2, 5, 9


@dataclass(frozen=True, eq=False)
class TfliteFile:
    """A TensorFlow Lite model as the operators of its main subgraph."""

    data: bytes
    source: TfliteFile | None = None
    """Original file, which is the end of `data`."""
    changed: dict[int, Piece] = field(default_factory=dict, repr=False)
    """Fields of the main table that differ from the source."""
    remarks: list[str] = field(default_factory=list)
    batch: int | None = None
    """Batch to which the file was changed (:mod:`remat.deploy.tflite_batch`); None: the one of the file."""

    @cached_property
    def flat(self) -> FlatBuffer:
        """Tables of the file."""
        return FlatBuffer(self.data)

    @cached_property
    def subgraphs(self) -> tuple[int, ...]:
        """Positions of the subgraphs."""
        return self.flat.tables(self.flat.root, _SUBGRAPHS)

    @cached_property
    def tables(self) -> tuple[ModelTables, ...]:
        """Tables of the subgraphs: operators and tensors. Raise FormatError if there are none."""
        if not self.subgraphs:
            raise FormatError("no TensorFlow Lite model: it has no subgraph", "tflite")
        with budgeted():
            return tuple(model_tables(self.data, k) for k in range(len(self.subgraphs)))

    @cached_property
    def _read(self) -> tuple[Assembly, ComputeGraph]:
        bodies = Bodies(self.tables.__getitem__)
        with budgeted():
            assembly = Assembly(self.tables[0], fold_views=True, control_flow=True, remarks=self.remarks, bodies=bodies)
            return assembly, assembly.graph()

    @property
    def assembly(self) -> Assembly:
        """Map between the main subgraph and the graph."""
        return self._read[0]

    @property
    def graph(self) -> ComputeGraph:
        """Graph of the main subgraph."""
        return self._read[1]

    def assembled(
        self, *, in_place: bool = False, copied: frozenset[int] = frozenset()
    ) -> tuple[Assembly, ComputeGraph]:
        """Return a map and graph like `assembly` and `graph`, in which TFLM's kernels write in place or views copy."""
        assembly = Assembly(self.tables[0], True, True, [], in_place, copied)
        return assembly, assembly.graph()

    @cached_property
    def in_place(self) -> dict[int, list[tuple[int, int]]]:
        """Pairs (output, base of an input) that TFLM's reference kernels allow in place, by operator."""
        assembly, graph = self.assembled(in_place=True)
        number = {name: p for p, name in assembly.name_of.items()}
        return {
            assembly.position_of[op.name]: [(number[output], number[source]) for output, source in op.in_place]
            for op in graph.ops
            if op.in_place
        }

    def custom_options(self, position: int) -> dict[str, int]:
        """Return the whole numbers among the options of a custom operator of the main subgraph."""
        from flatbuffers import flexbuffers

        try:
            data = bytes(self.flat.numbers(self.places[0][position], _CUSTOM_OPTIONS, "B"))
            options = flexbuffers.GetRoot(data).AsMap
            pairs = zip(options.Keys, options.Values, strict=True)
            return {str(key.AsKey): int(value.AsInt) for key, value in pairs if value.IsInt}
        except Exception:  # not this format
            return {}

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the tables of all operators, by subgraph."""
        return tuple(self.flat.tables(each, _OPERATORS) for each in self.subgraphs)

    def calls(self, subgraph: int, position: int) -> tuple[int, ...]:
        """Return the subgraphs that an operator runs."""
        return self.tables[subgraph].operators[position].calls

    @cached_property
    def operators(self) -> tuple[FileOp, ...]:
        """Operators of the main subgraph, in the order of the file."""
        found = []
        variable = {k for k, tensor in enumerate(self.tables[0].tensors) if tensor.is_variable}
        origin = 0 if self.source is None else len(self.data) - len(self.source.data)
        for k, (entry, place) in enumerate(zip(self.tables[0].operators, self.places[0], strict=True)):
            fields = self.flat.fields(place, OPERATOR, f"op {k} ({entry.kind})")
            shown = {
                number: value if isinstance(value, bytes) else value - origin
                for number, value in sorted(fields.items())
                if number not in (_OP_INPUTS, _OP_OUTPUTS)
            }
            state: list[Value] = [p for p in dict.fromkeys((*entry.inputs, *entry.outputs)) if p in variable]
            found.append(
                FileOp(
                    f"op {k} ({entry.kind})",
                    tuple(None if p < 0 or p in variable else p for p in entry.inputs),
                    tuple(None if p < 0 or p in variable else p for p in entry.outputs),
                    repr((shown, [p if p in variable else -1 for p in (*entry.inputs, *entry.outputs)])).encode(),
                    (*state, *([STATE] if entry.kind in RESOURCES else [])),
                )
            )
        return tuple(found)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Outputs of the main subgraph."""
        return tuple(p for p in self.tables[0].outputs if p >= 0)

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """Number of the first tensor of each subgraph, over all subgraphs; finally the number of all tensors."""
        result = [0]
        for each in self.tables:
            result.append(result[-1] + len(each.tensors))
        return tuple(result)

    def plan(self) -> tuple[int, ...] | None:
        """Return the offsets in the file, one for each tensor of all subgraphs; None if it has none."""
        entry = self._metadata()
        if entry is None:
            return None
        buffers = self.flat.tables(self.flat.root, _BUFFERS)
        index = self.flat.scalar(entry, 1, "I")
        raw = bytes(self.flat.numbers(buffers[index], 0, "B")) if index < len(buffers) else b""
        words = struct.unpack(f"<{len(raw) // 4}i", raw[: len(raw) // 4 * 4])
        if len(words) < 3 or words[2] != len(words) - 3 or words[2] != self.bases[-1]:
            raise FormatError("its OfflineMemoryAllocation does not have an offset for each tensor of the file", "plan")
        return words[3:]

    def _metadata(self) -> int | None:
        for entry in self.flat.tables(self.flat.root, _METADATA):
            name = self.flat.link(entry, 0)
            if name is not None and self.data[name + 4 : name + 4 + self.flat.number("I", name)] == PLAN_NAME:
                return entry
        return None

    def scheduled(self, schedule: Schedule) -> TfliteFile:
        """Return the model with operators in the order of a schedule, one per compute.

        Raise FormatError if the model cannot be written, or would compute something else.
        """
        position = self.assembly.position_of
        computes = [position[name] for name in schedule.computes() if name in position]
        return self.in_sequence(sequence(self.operators, computes, self.outputs))

    def in_sequence(self, instances: Sequence[Instance]) -> TfliteFile:
        """Return the model with these instances as its operators; errors are those of :meth:`scheduled`."""
        made = self._with_instances(instances)
        check_same(self.operators, made.operators, zip(self.outputs, made.outputs, strict=True))
        return made

    def _with_instances(self, instances: Sequence[Instance]) -> TfliteFile:
        if [each.op for each in instances] == list(range(len(self.operators))):
            return self
        last = {value: version for each, value, version in _written(self.operators, instances)}
        tensors: list[int | Piece] = list(self.flat.tables(self.subgraphs[0], _TENSORS))
        number: dict[tuple[Value, int], int] = {}
        for _, value, version in _written(self.operators, instances):
            if version != last[value]:
                number[value, version] = len(tensors)
                tensors.append(self._renamed(value, version))
        places = self.places[0]
        operators: list[int | Piece] = []
        for each in instances:
            op = self.operators[each.op]
            uses = [*zip(op.reads, each.reads, strict=True), *zip(op.writes, each.writes, strict=True)]
            if not any(use in number for use in uses):
                operators.append(places[each.op])
                continue
            entry = self.tables[0].operators[each.op]
            fields: dict[int, bytes | int | Piece] = {**self.flat.fields(places[each.op], OPERATOR, op.label)}
            positions = [number.get(use, old) for use, old in zip(uses, (*entry.inputs, *entry.outputs), strict=True)]
            fields[_OP_INPUTS] = numbers(positions[: len(op.reads)])
            fields[_OP_OUTPUTS] = numbers(positions[len(op.reads) :])
            operators.append(table(fields))
        changed: dict[int, Piece] = {_OPERATORS: links(operators)}
        if number:
            changed[_TENSORS] = links(tensors)
        return self.with_fields({_SUBGRAPHS: self.with_main(changed)})

    def _renamed(self, value: Value, version: int) -> Piece:
        assert isinstance(value, int)
        place = self.flat.tables(self.subgraphs[0], _TENSORS)[value]
        fields: dict[int, bytes | int | Piece] = {**self.flat.fields(place, TENSOR, f"tensor {value}")}
        fields[_TENSOR_NAME] = text(f"{self.tables[0].tensors[value].name}#{version}".encode())
        return table(fields)

    def with_main(self, changed: Mapping[int, Piece]) -> Piece:
        """Return the list of subgraphs with changed fields of the main one, for :meth:`with_fields`."""
        main = self.flat.fields(self.subgraphs[0], _SUBGRAPH, "the main subgraph")
        return links([table({**main, **changed}), *self.subgraphs[1:]])

    def with_fields(self, changed: dict[int, Piece]) -> TfliteFile:
        """Return the file with changed fields of its main table."""
        if self.source is not None:
            return self.source.with_fields({**self.changed, **changed})
        outside = [
            buffer for buffer in self.flat.tables(self.flat.root, _BUFFERS) if self.flat.scalar(buffer, 1, "Q") > 1
        ]
        outside += [op for op in self.places[0] if self.flat.scalar(op, _OP_LARGE, "Q") > 1]
        if outside:
            raise FormatError(
                "weights or options lie behind the tables of the file, as in models of gigabytes: not written",
                "outside-buffers",
            )
        fields = self.flat.fields(self.flat.root, _MODEL, "the model")
        return TfliteFile(in_front(table({**fields, **changed}), self.data), self, changed)

    def alone(self, position: int) -> TfliteFile:
        """Return a model of one operator of the main subgraph: its tensors at offset 0, all others empty."""
        main, entry = self.subgraphs[0], self.tables[0].operators[position]
        touched = {p for p in (*entry.inputs, *entry.outputs) if p >= 0}
        known = self.tables[0].tensors
        tensors: list[int | Piece] = []
        for p, place in enumerate(self.flat.tables(main, _TENSORS)):
            if p in touched or known[p].data:
                tensors.append(place)
                continue
            fields = self.flat.fields(place, TENSOR, f"tensor {p}")
            tensors.append(table({number: fields[number] for number in (1, 2, 3, 4) if number in fields}
                                 | {0: numbers([0])}))  # fmt: skip
        given = [p for p in dict.fromkeys(entry.inputs) if p >= 0 and not known[p].data and not known[p].is_variable]
        subgraph = table({
            _TENSORS: links(tensors),
            _INPUTS: numbers(given),
            _OUTPUTS: numbers([p for p in entry.outputs if p >= 0]),
            _OPERATORS: links([self.places[0][position]]),
        })  # fmt: skip
        made = self.with_fields({_SUBGRAPHS: links([subgraph])})
        return made.with_plan([ONLINE if known[p].data or known[p].is_variable else 0 for p in range(len(known))])

    def with_plan(self, offsets: Sequence[int]) -> TfliteFile:
        """Return the model with these offsets in its metadata, one for each tensor of all subgraphs.

        The runtime places tensors with offset -1. Like runtimes, this checks only the number of offsets.
        """
        if len(offsets) != self.bases[-1]:
            raise FormatError(f"{len(offsets)} offsets for {self.bases[-1]} tensors", "plan")
        if max(offsets, default=0) >= 2**31:
            raise FormatError(
                f"a tensor would lie at {max(offsets):,}: TensorFlow Lite Micro takes offsets below 2 GiB", "plan"
            )
        if self._metadata() is not None and self.plan() == tuple(offsets):
            return self
        words = [PLAN_VERSION, len(self.subgraphs), len(offsets), *offsets]
        old = self.source or self
        buffers = old.flat.tables(old.flat.root, _BUFFERS)
        plan = table({0: content(struct.pack(f"<{len(words)}i", *words))})
        entry = table({0: text(PLAN_NAME), 1: struct.pack("<I", len(buffers))})
        kept = [each for each in old.flat.tables(old.flat.root, _METADATA) if each != old._metadata()]
        return self.with_fields({_BUFFERS: links([*buffers, plan]), _METADATA: links([*kept, entry])})


def _written(ops: Sequence[FileOp], instances: Sequence[Instance]) -> Iterator[tuple[Instance, Value, int]]:
    """Yield each written value with its instance and version, in the order of writing."""
    for each in instances:
        for value, version in zip(ops[each.op].writes, each.writes, strict=True):
            if value is not None:
                yield each, value, version
