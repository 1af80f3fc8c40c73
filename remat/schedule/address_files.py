"""Files of addresses: CSV tables, this project's JSON, and TFLite's offline memory plan."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from remat.errors import FormatError, ScheduleError
from remat.graphs import ComputeGraph
from remat.io.documents import Document, Lines, canonical, check_header, decoded
from remat.io.files import decode_text, parse_json, read_bytes, write_atomic
from remat.runtime.text import short
from remat.schedule.addresses import Addresses, Memory
from remat.schedule.buffer_tables import table_from_text, table_text
from remat.schedule.buffers import MAX_BYTES, Buffers

NAME, VERSION = "remat-addresses", 1
#: Version of the plan that a TFLite model carries as metadata "OfflineMemoryAllocation".
TFLITE_VERSION = 1
#: Alignment of tensors in TFLite, in bytes.
TFLITE_ALIGNMENT = 16
NO_FILE = "a TFLite plan has an offset for each tensor of a TFLite file, and the graph does not come from one"


class BufferEntry(Document):
    """Buffer with its address."""

    id: str
    lower: int
    """First step at which it is live, from 0."""
    upper: int
    """First step at which it is no longer live."""
    size: int
    """Bytes."""
    offset: int
    """Bytes from the start of its memory."""
    memory: int = 0
    """Position in `memories`."""


class MemoryEntry(Document):
    """Memory that holds buffers."""

    name: str
    capacity: int | None = None
    """Bytes; null: unlimited."""


class AddressesDocument(Document):
    """Addresses of the buffers of a schedule."""

    format: Literal["remat-addresses"]
    version: Literal[1]
    buffers: list[BufferEntry]
    memories: list[MemoryEntry]
    alignment: int = 1
    graph: str = ""
    graph_digest: str = ""
    source: str = ""


def json_text(addresses: Addresses) -> str:
    """Return the canonical text of addresses in format ``remat-addresses``: one buffer per line; ASCII."""
    b = addresses.buffers
    arrays = (b.lower, b.upper, b.size, addresses.offset, addresses.memory)
    words = ("lower", "upper", "size", "offset", "memory")
    rows = Lines(
        json.dumps({"id": name, **dict(zip(words, row, strict=True))})
        for name, *row in zip(b.names, *(array.tolist() for array in arrays), strict=True)
    )
    return canonical({
        "format": NAME, "version": VERSION, "graph": b.graph, "graph_digest": b.graph_digest,
        "source": addresses.source, "alignment": addresses.alignment,
        "memories": [{"name": memory.name, "capacity": memory.capacity} for memory in addresses.memories],
        "buffers": rows,
    })  # fmt: skip


def addresses_from_document(document: Any) -> Addresses:
    """Return the addresses in a parsed JSON document in format ``remat-addresses``.

    Raise FormatError for another format or version, missing or unknown keys, or wrong types; each with its place.
    """
    check_header(document, NAME, VERSION, "; `remat allocate ... -o FILE.json` writes addresses")
    found = decoded(AddressesDocument, document)
    try:
        rows = [(e.lower, e.upper, e.size, e.offset, e.memory) for e in found.buffers]
        columns = np.array(rows, dtype=np.int64).reshape(len(rows), 5).T
        buffers = Buffers.of([entry.id for entry in found.buffers], *columns[:3])
        memories = tuple(Memory(entry.name, entry.capacity) for entry in found.memories)
        return Addresses(buffers, columns[3].copy(), columns[4].copy(), memories, found.alignment, found.source)
    except OverflowError:
        raise FormatError(f"a number of a buffer is larger than {MAX_BYTES:,}") from None
    except ScheduleError as error:
        raise FormatError(str(error)) from None


@dataclass(frozen=True)
class TfliteTensors:
    """Positions in a TFLite plan of a graph's tensors, for a graph read from a TFLite file."""

    count: int
    """Number of tensors in all subgraphs of the file."""
    positions: tuple[tuple[int, ...], ...]
    """For each tensor of the graph: its own position and those of the views that share its bytes; empty for one of no
    bytes that keeps ops in order.
    """
    idle: tuple[int, ...] = ()
    """Positions of tensors that no operator reads or writes. A runtime would hold them all at once."""
    packed: str = ""
    """Name of a tensor that needs more bytes in TensorFlow Lite Micro than in the graph; empty if there is none."""

    @classmethod
    def of(cls, graph: ComputeGraph) -> TfliteTensors | None:
        """Return the positions for a graph, from its `meta`; None if it does not come from a TFLite file."""
        found = graph.meta.get("tflite")
        if not isinstance(found, Mapping):
            return None
        count, positions, idle = (found.get(key) for key in ("tensors", "positions", "idle"))
        if not isinstance(count, int) or not isinstance(positions, Sequence) or not isinstance(idle, Sequence):
            return None
        rows = [row for row in positions if isinstance(row, Sequence)]
        used = [*(p for row in rows for p in row), *idle]
        if len(rows) != len(graph.tensors) or not all(isinstance(p, int) and 0 <= p < count for p in used):
            return None
        return cls(count, tuple(map(tuple, rows)), tuple(idle), str(found.get("packed", "")))


def tflite_offsets(addresses: Addresses, tensors: TfliteTensors) -> list[int]:
    """Return the plan that a TFLite model carries: a list of 32-bit integers.

    Its entries: the version, the number of subgraphs (which runtimes ignore), the number of offsets, and one byte
    offset per tensor of the file. Offset -1 leaves a tensor to the runtime: a constant, or a tensor without a buffer
    here. Tensors that no operator reads or writes have offset 0. Source: TensorFlow Lite Micro,
    ``memory_management.md``, "Offline planned tensor allocations".

    Raise FormatError naming the tensor, if the plan cannot express its address: two addresses for one tensor
    (recomputation), several memories, or an offset of 2 GiB or more. Raise it too if the tensor is larger in the
    runtime than in the graph.
    """
    if tensors.packed:
        raise FormatError(
            f"tensor {tensors.packed!r} has a byte for each element of 4 bits in TensorFlow Lite Micro, more than in "
            "the graph: remat deploy plans its address", "packed", tensors.packed,
        )  # fmt: skip
    offsets = [-1] * tensors.count
    for position in tensors.idle:
        offsets[position] = 0
    if len({*addresses.memory.tolist()}) > 1:
        raise FormatError("a TFLite plan knows one memory, but the buffers lie in several")
    places, names = addresses.buffers.tensor.tolist(), addresses.buffers.names
    for name, tensor, offset in zip(names, places, addresses.offset.tolist(), strict=True):
        if tensor < 0 or not tensors.positions[tensor]:
            continue
        if offset >= 2**31:
            raise FormatError(f"a TFLite plan has offsets below 2 GiB, but {short(name)} lies at {offset:,}")
        before = offsets[tensors.positions[tensor][0]]
        if before not in (-1, offset):
            raise FormatError(
                f"a TFLite plan has one address for each tensor, but {short(name)} lies at {offset:,} and an earlier "
                f"instance at {before:,}; `remat order` and `remat solve` write models with an operator for each"
            )
        for position in tensors.positions[tensor]:
            offsets[position] = offset
    return [TFLITE_VERSION, 1, tensors.count, *offsets]


def addresses_from_tflite(words: list[int], buffers: Buffers, tensors: TfliteTensors, source: str = "") -> Addresses:
    """Return the addresses that a TFLite plan gives to tensors among `buffers`; others are placed at runtime.

    Raise FormatError if the number of tensors differs, or the plan leaves a tensor with a buffer to be placed at
    runtime.
    """
    if len(words) < 3 or words[2] != len(words) - 3:
        raise FormatError(f"not a TFLite plan: {len(words)} numbers, of which the third is to count those after it")
    if words[2] != tensors.count:
        raise FormatError(f"the TFLite plan has offsets for {words[2]} tensors, but the file has {tensors.count}")
    kept = np.flatnonzero(buffers.tensor >= 0)
    first = np.array([row[0] for row in tensors.positions], dtype=np.int64)
    offset = np.array(words[3:], dtype=np.int64)[first[buffers.tensor[kept]]]
    if (offset < 0).any():
        name = buffers.names[int(kept[(offset < 0).argmax()])]
        raise FormatError(f"the TFLite plan leaves tensor {short(name)} to be placed at runtime")
    number = {k: place for place, k in enumerate(kept.tolist())}
    part = Buffers(
        tuple(buffers.names[k] for k in kept.tolist()), buffers.lower[kept], buffers.upper[kept], buffers.size[kept],
        buffers.tensor[kept], buffers.graph, buffers.graph_digest,
        tuple((number[later], number[earlier]) for later, earlier in buffers.after),
    )  # fmt: skip
    return Addresses(part, offset, np.zeros(len(kept), dtype=np.int64), source=source)


#: Names of the formats in which addresses are written.
FORMATS = ("json", "csv", "tflite")
_SUFFIXES = {".csv": "csv", ".json": "json", ".bin": "tflite"}


def format_for(path: str | os.PathLike[str], wanted: str | None = None) -> str:
    """Return the `wanted` format; default: the format of the path's suffix, or ``json`` for other suffixes.

    Raise FormatError if the `wanted` format does not exist.
    """
    if wanted is None:
        return _SUFFIXES.get(Path(path).suffix.lower(), "json")
    if wanted not in FORMATS:
        raise FormatError(f"addresses are written as {', '.join(FORMATS)}, not as {short(wanted)}")
    return wanted


def write_addresses(
    addresses: Addresses, path: str | os.PathLike[str], to: str | None = None, tensors: TfliteTensors | None = None
) -> None:
    """Write addresses to a file atomically.

    Parameters
    ----------
    to : {"json", "csv", "tflite"}, optional
        Default: the format of the suffix (``.json``, ``.csv``, or ``.bin`` for tflite).
    tensors : TfliteTensors, optional
        Positions for the graph; TFLite plans need them.

    Raises
    ------
    FormatError
        Naming the file, if it cannot be written or the format cannot express the addresses.
    """
    wanted = format_for(path, to)
    if wanted != "tflite":
        write_atomic(path, json_text(addresses) if wanted == "json" else table_text(addresses.buffers, addresses))
        return
    if tensors is None:
        raise FormatError(f"{path}: {NO_FILE}", "no-tflite-file")
    try:
        words = tflite_offsets(addresses, tensors)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    write_atomic(path, struct.pack(f"<{len(words)}i", *words))


def read_addresses(
    path: str | os.PathLike[str], buffers: Buffers | None = None, tensors: TfliteTensors | None = None
) -> Addresses:
    """Read addresses in any of the formats, recognised by content.

    Parameters
    ----------
    buffers : Buffers, optional
        Buffers of the schedule; a TFLite plan, which contains only offsets, needs them.
    tensors : TfliteTensors, optional
        Positions for the graph; a TFLite plan needs them too.

    Raises
    ------
    FormatError
        Naming the file and the place in it.
    """
    data = read_bytes(path)
    name = str(path)
    try:
        if data.lstrip()[:1] == b"{":
            return addresses_from_document(parse_json(decode_text(data, name), name))
        if b"\0" in data:
            if len(data) % 4:
                raise FormatError(f"not a TFLite plan: {len(data)} bytes are no whole number of 32-bit integers")
            if buffers is None or tensors is None:
                raise FormatError("a TFLite plan has offsets alone: it can be read only with its graph and schedule")
            words = list(struct.unpack(f"<{len(data) // 4}i", data))
            return addresses_from_tflite(words, buffers, tensors, name)
    except FormatError as error:
        said = str(error)
        raise FormatError(said if said.startswith(name) else f"{name}: {said}") from None
    _, found = table_from_text(decode_text(data, name), name)
    if found is None:
        raise FormatError(f"{name}: the table has no column offset, so there are no addresses in it", "no-offset")
    return found
