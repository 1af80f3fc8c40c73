"""Schedules of Checkmate: the matrices R and S of its stages, or its list of register operations.

Source: P. Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020,
section 4. Node ``i`` is the ``i``-th op of the reference order; each op has one output and each tensor one producer.
"""

from __future__ import annotations

import io
import json
import struct
import tokenize
import zipfile
import zlib
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.documents import Lines, Shape, canonical, decoded
from remat.io.formats import Source
from remat.runtime.arrays import Bool, Float
from remat.runtime.text import short
from remat.schedule.early_frees import running
from remat.schedule.formats.base import ScheduleFormat, needed_graph
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import graph_positions

Bits = Bool

#: Largest number of entries of a matrix.
MAX_ENTRIES = 25_000_000
#: Largest number of computes in matrices plus the values they read.
MAX_WORK = 5_000_000
#: Largest size of an archive in bytes, most files in it, and bytes allowed for the header of a matrix.
MAX_ARCHIVE, MAX_MEMBERS, HEADER = 64 * 1024 * 1024, 64, 16 * 1024
#: Entries of a matrix that are processed together.
_BLOCK = 1_000_000
#: Solvers return 0 and 1 up to their integrality tolerance; values further away are errors.
INTEGRALITY = 1e-4

#: Exceptions that the readers of .zip and .npy raise on malformed bytes.
_BROKEN_ARCHIVE = (
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError, ValueError, OverflowError, OSError,
    EOFError, RuntimeError,
)  # fmt: skip

RegisterOperation = Annotated[
    Annotated[tuple[Literal["alloc"], int, int, int], Field(strict=False)]
    | Annotated[tuple[Literal["compute"], int, int, dict[str, Any], int], Field(strict=False)]
    | Annotated[tuple[Literal["free"], int, int], Field(strict=False)],
    Shape("{at} is not an alloc, compute or free operation", kind=""),
]

COMPUTE, FREE = int(StepKind.COMPUTE), int(StepKind.FREE)


def schedule_from_matrices(graph: ComputeGraph, computed: NDArray[Any], retained: NDArray[Any]) -> Schedule:
    """Return the schedule of Checkmate's matrices.

    Each stage first frees values that it neither reads nor retains for the next stage. The computed nodes then run in
    the reference order. After each node, the values it touched are freed unless they are read later in the stage or
    retained. Values that the matrices retain stay live even if nothing reads them. Graph outputs stay live in the last
    stage.

    `computed` is R, of shape (stages, ops): 1 where the node is computed in the stage. `retained` is S, of the same
    shape: 1 where its value is retained from the previous stage. Raise FormatError for a wrong shape, an entry that is
    neither 0 nor 1 (up to the integrality tolerance of solvers), or too many computes. Raise it too for a stage that
    retains a value that the previous stage does not have. Each op must have exactly one output of its own.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=1), b.op("b", inputs=["a"], size=1)]
    >>> s = schedule_from_matrices(b.build(), np.eye(2), np.array([[0, 0], [1, 0]]))
    >>> [" ".join(step) for step in s.steps()]
    ['compute a', 'compute b', 'free a', 'free b']
    """
    values = node_values(graph)
    computed, retained = _bits(computed, "R", len(values)), _bits(retained, "S", len(values))
    if len(computed) != len(retained):
        raise FormatError(f"R has {len(computed)} stages, but S has {len(retained)}", "stages")
    arrays = graph.arrays
    order = arrays.order.tolist()
    node = np.empty(len(graph.tensors), dtype=np.int64)
    node[values] = np.arange(len(values))
    # graph inputs are not nodes, as they are always live; reversed, as implied frees are
    reads = [node[t[~arrays.is_input[t]]][::-1].tolist() for t in (arrays.op_inputs[o] for o in order)]
    outputs = arrays.is_output[values]
    work = int((computed.sum(axis=0) * np.array([1 + len(each) for each in reads])).sum())
    if work > MAX_WORK:
        raise FormatError(f"R asks for {int(computed.sum()):,} computes that read {work:,} values: too many")

    kinds: list[int] = []
    targets: list[int] = []
    live = np.zeros(len(values), dtype=np.bool_)

    def free(i: int) -> None:
        live[i] = False
        kinds.append(FREE)
        targets.append(values[i])

    for stage in range(len(computed)):
        lost = np.flatnonzero(retained[stage] & ~live)
        if len(lost):
            name = graph.op_names[order[lost[0]]]
            raise FormatError(
                f"S[{stage}][{lost[0]}] retains the value of op {name!r}, which the stage before does not end with",
                "retained",
            )
        kept = retained[stage + 1] if stage + 1 < len(retained) else outputs
        run = np.flatnonzero(computed[stage]).tolist()
        last_read = {i: k for k in run for i in reads[k]}
        for i in np.flatnonzero(live & ~kept).tolist():
            if i not in last_read:
                free(i)
        for k in run:
            kinds.append(COMPUTE)
            targets.append(order[k])
            live[k] = True
            for i in (*reads[k], k):
                if live[i] and not kept[i] and last_read.get(i, -1) <= k:
                    free(i)
    return _schedule(graph, kinds, targets)


def matrices_of_schedule(graph: ComputeGraph, schedule: Schedule) -> tuple[Bits, Bits]:
    """Return the matrices R and S of a schedule; :func:`schedule_from_matrices` gives the schedule back.

    A stage ends with the first compute of an op, as in Checkmate, and also where the computes leave the reference
    order. A schedule of Checkmate's kind therefore has one stage per op, and any other schedule has more.

    Raise FormatError if an op does not have exactly one output of its own, there are too many stages, or matrices
    cannot express a free. They express frees right after the last read in a stage, and between stages. Raise
    ScheduleError naming the first violation, if the schedule does not run on `graph`.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=1), b.op("b", inputs=["a"], size=1)]
    >>> computed, retained = matrices_of_schedule(b.build(), Schedule.reference(b.build()))
    >>> computed.astype(int).tolist(), retained.astype(int).tolist()
    ([[1, 0], [0, 1]], [[0, 0], [1, 0]])
    """
    values = node_values(graph)
    written = running(graph, schedule.in_one_memory("a matrix of Checkmate"))
    targets, is_compute = graph_positions(graph, written), written.kinds == COMPUTE
    nodes = graph.arrays.position[targets[is_compute]]
    first = np.zeros(len(nodes), dtype=np.bool_)
    first[np.unique(nodes, return_index=True)[1]] = True
    begins = np.ones(len(nodes), dtype=np.bool_)
    begins[1:] = first[:-1] | (nodes[1:] <= nodes[:-1])
    stage = np.cumsum(begins) - 1
    stages = int(begins.sum())
    if stages * len(values) > MAX_ENTRIES:
        raise FormatError(f"{stages:,} stages of {len(values):,} ops: more than {MAX_ENTRIES:,} entries", "matrix")
    computed = np.zeros((stages, len(values)), dtype=np.bool_)
    computed[stage, nodes] = True
    retained = np.zeros_like(computed)
    node = np.full(len(graph.tensors), len(values))  # graph inputs are not nodes: a column that is cut off
    node[values] = np.arange(len(values))
    reads = graph.arrays.op_inputs.shared_lists()
    live = np.zeros(len(values) + 1, dtype=np.bool_)
    touched = np.zeros(len(values) + 1, dtype=np.int64)  # by the last compute that reads or writes it
    late: list[int] = []  # freed since the last compute, which did not touch them
    number = -1  # of the compute
    for compute, target in zip(is_compute.tolist(), targets.tolist(), strict=True):
        if compute:
            number += 1
            if begins[number]:
                retained[stage[number]] = live[:-1]
                retained[stage[number], late] = True  # freed when the stage starts
            late.clear()
            live[nodes[number]] = True
            touched[[nodes[number], *node[reads[target]]]] = number
        else:
            live[node[target]] = False
            if touched[node[target]] < number:
                late.append(int(node[target]))
    back = schedule_from_matrices(graph, computed, retained)
    for place, (mine, theirs) in enumerate(zip(_frees(graph, written), _frees(graph, back), strict=True)):
        if mine != theirs and place + 1 < len(nodes):
            name = graph.tensor_names[min(mine ^ theirs)]
            raise FormatError(
                f"Checkmate's matrices cannot say how {name!r} is freed after compute {place} "
                f"({graph.op_names[targets[is_compute][place]]!r}), only after the last read in a stage; leave the "
                "frees to be implied",
                "frees",
            )
    return computed, retained


def _frees(graph: ComputeGraph, schedule: Schedule) -> list[set[int]]:
    """Return the tensors that are freed after each compute and before the next."""
    freed: list[set[int]] = []
    for kind, target in zip(schedule.kinds.tolist(), graph_positions(graph, schedule).tolist(), strict=True):
        if kind == COMPUTE:
            freed.append(set())
        else:
            freed[-1].add(target)
    return freed


def schedule_from_registers(graph: ComputeGraph, ops: Any) -> Schedule:
    """Return the schedule of a list of register operations.

    ``["alloc", register, node, bytes]`` allocates a register, ``["compute", node, register, {input node: register},
    cost]`` fills it, ``["free", register, node]`` releases it. An alloc belongs to the compute that follows. Raise
    FormatError, naming the operation, if it is malformed, uses a register with another value, or contradicts the
    graph's sizes or costs. Holding one value in two registers at once is refused, too: a schedule cannot express it.
    """
    values = node_values(graph)
    order = graph.arrays.order.tolist()
    held: dict[int, int] = {}
    kinds: list[int] = []
    targets: list[int] = []
    for number, op in enumerate(decoded(list[RegisterOperation], ops, "ops")):
        at = f"ops[{number}]"
        match op:
            case ("alloc", register, node, size):
                _check_node(node, order, at)
                if register in held or node in held.values():
                    raise FormatError(f"{at}: register {register} or the value of node {node} is in use", "register")
                if size != graph.tensors[values[node]].size:
                    raise FormatError(f"{at}: {size} bytes for node {node}, other than in the graph", "register-bytes")
                held[register] = node
            case ("compute", node, register, dict(inputs), cost):
                _check_node(node, order, at)
                if held.get(register) != node:
                    raise FormatError(f"{at}: register {register} was not taken for node {node}", "register")
                if cost != graph.ops[order[node]].cost:
                    raise FormatError(f"{at}: cost {cost} of node {node}, other than in the graph", "register-cost")
                for key, place in inputs.items():
                    if type(place) is not int or str(held.get(place)) != key:
                        raise FormatError(f"{at}: register {short(place)} does not hold node {short(key)}", "register")
                kinds.append(COMPUTE)
                targets.append(order[node])
            case ("free", register, node):
                if held.pop(register, None) != node:
                    raise FormatError(f"{at}: register {register} does not hold node {node}", "register")
                kinds.append(FREE)
                targets.append(values[node])
    return _schedule(graph, kinds, targets)


def node_values(graph: ComputeGraph) -> list[int]:
    """Return the only output tensor of each op, in reference order.

    Raise FormatError naming an op with no or several outputs, or a tensor with several producers, which Checkmate does
    not have.
    """
    arrays = graph.arrays
    several = np.flatnonzero(arrays.op_outputs.counts != 1)
    if len(several):
        name = graph.op_names[several[0]]
        raise FormatError(
            f"op {name!r} has {arrays.op_outputs.counts[several[0]]} outputs; Checkmate has one per op",
            "several-outputs",
        )
    shared = np.flatnonzero(arrays.producers.counts > 1)
    if len(shared):
        raise FormatError(
            f"tensor {graph.tensor_names[shared[0]]!r} has several producers; Checkmate has one per tensor",
            "several-producers",
        )
    return arrays.op_outputs.indices[arrays.order].tolist()


def _schedule(graph: ComputeGraph, kinds: list[int], targets: list[int]) -> Schedule:
    return Schedule.for_graph(graph, np.array(kinds, dtype=np.int8), np.array(targets, dtype=np.int64))


def _check_node(node: int, order: list[int], at: str) -> None:
    if not 0 <= node < len(order):
        raise FormatError(f"{at}: node {node} is not one of the graph's {len(order)} ops", "node")


def _bits(matrix: NDArray[Any], name: str, columns: int) -> Bits:
    if matrix.ndim != 2 or matrix.shape[1] != columns or not len(matrix):
        raise FormatError(f"{name} has shape {matrix.shape}; the graph has {columns} ops, one column each", "matrix")
    if matrix.dtype == np.bool_:
        return matrix
    ones = np.empty(matrix.shape, dtype=np.bool_)
    rows = max(1, _BLOCK // columns)
    for first in range(0, len(matrix), rows):  # in blocks: copies of the whole would take several times its memory
        value = matrix[first : first + rows].astype(np.float64)
        block = np.abs(value - 1) <= INTEGRALITY
        wrong = ~(block | (np.abs(value) <= INTEGRALITY))
        if wrong.any():
            stage, i = np.argwhere(wrong)[0].tolist()
            raise FormatError(
                f"{name}[{first + stage}][{i}] is {matrix[first + stage, i].item()!r}, neither 0 nor 1", "matrix-entry"
            )
        ones[first : first + rows] = block
    return ones


def _json_matrix(value: Any, name: str) -> Float:
    rows = decoded(list[list[float]], value, name)
    if rows and (len({len(row) for row in rows}) > 1 or len(rows) * len(rows[0]) > MAX_ENTRIES):
        raise FormatError(f"{name} is not a matrix with at most {MAX_ENTRIES:,} entries", "matrix")
    return np.array(rows, dtype=np.float64)


def _zipped_matrix(archive: zipfile.ZipFile, name: str, columns: int) -> Bits:
    """Read a matrix of an .npz archive; checks the declared size before unpacking and unpickles nothing."""
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(f"{name} is compressed in a way that numpy does not write", "archive")
    if member.file_size > HEADER + 8 * MAX_ENTRIES:
        raise FormatError(
            f"{name} unpacks to {member.file_size:,} bytes: not a matrix with at most {MAX_ENTRIES:,} entries", "matrix"
        )
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise FormatError(f"{name} is an array of {dtype}, not of numbers", "matrix")
        if len(shape) != 2 or min(shape) < 0 or shape[0] * shape[1] > MAX_ENTRIES:
            raise FormatError(f"{name} has shape {shape}: no matrix with at most {MAX_ENTRIES:,} entries", "matrix")
        if shape[1] != columns:
            raise FormatError(f"{name} has shape {shape}; the graph has {columns} ops, one column each", "matrix")
        if member.file_size > HEADER + shape[0] * shape[1] * dtype.itemsize:
            raise FormatError(f"{name} is longer than a matrix of shape {shape}", "matrix")
    with archive.open(member) as file:
        return _bits(np.lib.format.read_array(file, allow_pickle=False), name, columns)


def _is_archive(source: Source) -> bool:
    return source.data.startswith(b"PK\x03\x04")


def _recognizes(source: Source) -> bool:
    if _is_archive(source):
        return True
    return source.looks_like_json and ({"R", "S"} <= source.json.keys() or source.json.get("producer") == "Checkmate")


def _read(source: Source, graph: ComputeGraph | None) -> Schedule:
    graph = needed_graph(graph, "a Checkmate schedule")
    if _is_archive(source):
        columns = len(node_values(graph))
        # opening an archive reads the whole list of files, where every 46 bytes can become an object
        if len(source.data) > MAX_ARCHIVE or source.data.count(b"PK\x01\x02") > MAX_MEMBERS:
            raise FormatError(f"the archive has more than {MAX_ARCHIVE:,} bytes or {MAX_MEMBERS} files", "archive")
        try:
            with zipfile.ZipFile(io.BytesIO(source.data)) as archive:
                computed, retained = (_zipped_matrix(archive, name, columns) for name in "RS")
        except KeyError as error:
            raise FormatError(f"the archive misses a matrix: {error.args[0]}", "archive") from None
        except _BROKEN_ARCHIVE as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise FormatError(f"not an archive of matrices R and S: {reason}", "archive") from None
        return schedule_from_matrices(graph, computed, retained)
    document = source.json
    if "ops" in document:
        return schedule_from_registers(graph, document["ops"])
    return schedule_from_matrices(graph, *(_json_matrix(document.get(name), name) for name in "RS"))


def _write(schedule: Schedule, graph: ComputeGraph | None) -> str:
    graph = needed_graph(graph, "a Checkmate schedule")
    matrices = zip("RS", matrices_of_schedule(graph, schedule), strict=True)
    rows = {name: Lines(json.dumps(row) for row in matrix.astype(int).tolist()) for name, matrix in matrices}
    return canonical({"graph": graph.name, **rows})


FORMAT = ScheduleFormat(
    name="checkmate",
    description="Checkmate's matrices R and S (.npz or JSON), or its register operations (JSON)",
    recognizes=_recognizes,
    read=_read,
    write=_write,
)
