"""Graphs of TensorFlow Lite models whose peak is the memory of the model in a runtime, as that runtime counts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from remat.deploy.arena import ALIGNMENT, lifetimes
from remat.deploy.litert import ALIGNMENT as LITERT_ALIGNMENT
from remat.deploy.litert import LitertPlanner
from remat.deploy.tflite_file import STATE, TfliteFile
from remat.graphs import ComputeGraph, Tensor
from remat.graphs.formats.tflite.assembly import Assembly


@dataclass(frozen=True)
class _Count:
    """Rules of a runtime for one model, by operator of the file."""

    unit: int
    """Alignment: sizes are rounded up to multiples of it."""
    packed: bool
    """True if elements of four bits share a byte."""
    workspace: Mapping[int, int]
    pairs: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Outputs in place of an input, by number of tensor, where the graph does not have them."""
    keeps_inputs: bool = False
    """True if graph inputs stay to the end."""


def tflm_graph(file: TfliteFile, scratch: Mapping[int, int], *, in_place: bool) -> tuple[ComputeGraph, dict[str, int]]:
    """Return the graph for TensorFlow Lite Micro, and the operator of the file for each op.

    Elements of four bits have a byte each. A workspace is the scratch of the kernel plus the tensors of subgraphs that
    it runs. With `in_place`, ops write in place of an input where reference kernels allow it.
    """
    inside = _held_inside(file)
    workspace = {k: _rounded(scratch.get(k, 0), ALIGNMENT) + inside.get(k, 0) for k in {*scratch, *inside}}
    assembly, graph = file.assembled(in_place=in_place)
    return _counted(file, assembly, graph, _Count(ALIGNMENT, False, workspace)), assembly.position_of


def litert_graph(
    file: TfliteFile, planner: LitertPlanner, temporaries: Mapping[int, Sequence[int]]
) -> tuple[ComputeGraph, dict[str, int]]:
    """Return the graph for LiteRT without delegates, and the operator of the file for each op.

    Graph inputs stay to the end; views of graph inputs and outputs are copied. Ops write in place of an input where the
    runtime does.
    """
    copied = frozenset(file.assembly.base) - planner.shared.keys()
    assembly, graph = file.assembled(copied=copied)
    workspace = {k: sum(_rounded(size, LITERT_ALIGNMENT) for size in sizes) for k, sizes in temporaries.items()}
    count = _Count(LITERT_ALIGNMENT, True, workspace, planner.pairs(), keeps_inputs=True)
    return _counted(file, assembly, graph, count), assembly.position_of


def _counted(file: TfliteFile, assembly: Assembly, graph: ComputeGraph, count: _Count) -> ComputeGraph:
    """Return the graph with the runtime's sizes; operators that share a variable keep their order."""
    name_of, base, entries = assembly.name_of, assembly.base, file.tables[0].tensors
    sizes = {name: entries[p].bytes(packed=count.packed) for p, name in name_of.items()}
    tensors = [Tensor(t.name, _rounded(sizes.get(t.name, t.size), count.unit)) for t in graph.tensors]
    ops, inputs = list(graph.ops), list(graph.inputs)
    if count.keeps_inputs and ops and ops[0].type == "inputs":
        inputs += ops.pop(0).outputs
    states: dict[object, str] = {}
    for k, op in enumerate(ops):
        position = assembly.position_of.get(op.name)
        if position is None:
            continue
        reads, writes = op.inputs, op.outputs
        for key in set(file.operators[position].state) - {STATE}:  # which the graph keeps in order
            token = f"{op.name} keeps {key}"
            reads += (states[key],) if key in states else ()
            writes += (token,)
            states[key] = token
            tensors.append(Tensor(token, 0))
        pairs = op.in_place
        if position in count.pairs:
            output, source = (name_of[base.get(p, p)] for p in count.pairs[position])
            pairs = ((output, source),)
        workspace = count.workspace.get(position, 0)
        ops[k] = replace(op, workspace=workspace, inputs=reads, outputs=writes, in_place=pairs)
    return ComputeGraph(
        graph.name, tensors, ops, inputs, graph.outputs, constant_memory=graph.constant_memory,
        cost_unit=graph.cost_unit, source=graph.source,
    )  # fmt: skip


def _rounded(size: int, unit: int) -> int:
    """Return the size rounded up to a multiple of the alignment."""
    return -(-size // unit) * unit


def _held_inside(file: TfliteFile) -> dict[int, int]:
    """Return the most bytes that the subgraphs of each operator hold."""
    found: dict[int, int] = {}
    if len(file.tables) == 1:
        return found
    held, main = lifetimes(file), file.bases[1]
    size = -(-held.size[main:] // ALIGNMENT) * ALIGNMENT
    for position, (begin, end) in enumerate(held.scopes):
        sums = [int(size[(held.first[main:] <= s) & (held.last[main:] >= s)].sum()) for s in range(begin, end + 1)]
        if file.calls(0, position):
            found[position] = max(sums)
    return found


def padding(file: TfliteFile, temporaries: Mapping[int, Sequence[int]]) -> int:
    """Return the most bytes that rounding adds to a tensor: LiteRT does not round the size of the topmost one.

    Graph inputs are placed first, so they lie below all others. `temporaries`: bytes of those of each kernel.
    """
    tables = file.tables[0]
    below = {*tables.inputs}
    sizes = [entry.bytes() for p, entry in enumerate(tables.tensors) if not entry.is_apart and p not in below]
    sizes += [size for some in temporaries.values() for size in some]
    return max((-size % LITERT_ALIGNMENT for size in sizes), default=0)
