"""Rules of runtimes for counting memory: the peak of :func:`runtime_graph` is the memory of a model there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from remat.deploy.arena import ALIGNMENT, lifetimes
from remat.deploy.litert import ALIGNMENT as LITERT_ALIGNMENT
from remat.deploy.litert import LitertPlanner
from remat.deploy.onnx_file import OnnxFile
from remat.deploy.program_file import ProgramFile
from remat.deploy.tflite_file import TfliteFile
from remat.errors import FormatError
from remat.graphs import ComputeGraph, Tensor

#: Files that are written back with their operators in another order.
ModelFile = TfliteFile | OnnxFile


class Runtime(StrEnum):
    """A runtime that follows the order of the file."""

    TFLM = "tflm"
    LITERT = "litert"
    ONNXRUNTIME = "onnxruntime"
    EXECUTORCH = "executorch"


@dataclass(frozen=True)
class Rules:
    """Description of a runtime."""

    title: str
    package: str
    """Package that ``--check`` requires."""
    file: type[ModelFile | ProgramFile]
    """Type of the models that it loads."""
    settings: str = ""
    """Session settings that keep the order of the file; empty if none are needed."""


RULES = {
    Runtime.TFLM: Rules("TensorFlow Lite Micro", "tflite-micro", TfliteFile),
    Runtime.LITERT: Rules("LiteRT without delegates", "ai-edge-litert", TfliteFile),
    Runtime.ONNXRUNTIME: Rules(
        "ONNX Runtime on CPUs", "onnxruntime", OnnxFile,
        "execution_order=PRIORITY_BASED, graph_optimization_level=ORT_DISABLE_ALL, enable_mem_reuse=False, "
        "enable_mem_pattern=False",
    ),
    Runtime.EXECUTORCH: Rules("ExecuTorch with portable kernels", "executorch", ProgramFile),
}  # fmt: skip


def runtime_for(file: ModelFile | ProgramFile, wanted: str | None) -> Runtime:
    """Return the runtime `wanted`, or by default the first one that loads this kind of model.

    Raise FormatError if there is no such runtime, or it does not load this kind of model.
    """
    fitting = [runtime for runtime, rules in RULES.items() if isinstance(file, rules.file)]
    if wanted is None:
        return fitting[0]
    if wanted not in fitting:
        raise FormatError(f"--runtime {wanted}: for this model there are {', '.join(fitting)}", "runtime", wanted)
    return Runtime(wanted)


def runtime_graph(
    file: ModelFile, runtime: Runtime, scratch: Mapping[int, int], *, in_place: bool = False
) -> tuple[ComputeGraph, dict[str, int]]:
    """Return the graph of a model with memory as its runtime counts it, and the operator of the file for each op.

    For TFLM, elements of four bits have a byte each, and a workspace is the scratch of the kernel plus the tensors
    of subgraphs that it runs. LiteRT keeps graph inputs to the end, and copies views of graph inputs and outputs. Sizes
    are multiples of the alignment. Operators that share a variable keep their order. Ops write in place of an input
    where kernels of the runtime allow it; for TFLM, whose plan decides it, only with `in_place`.
    """
    if not isinstance(file, TfliteFile):
        return file.in_place_graph, file.reading.assembly.position_of
    is_tflm = runtime is Runtime.TFLM
    planner = None if is_tflm else LitertPlanner(file)
    copied = frozenset() if planner is None else frozenset(file.assembly.base) - planner.shared.keys()
    assembly, graph = file.assembled(in_place=in_place and is_tflm, copied=copied)
    places = {} if planner is None else planner.pairs()
    name_of, base = assembly.name_of, assembly.base
    unit = ALIGNMENT if is_tflm else LITERT_ALIGNMENT
    entries = file.tables[0].tensors
    sizes = {name: entries[p].bytes(packed=not is_tflm) for p, name in name_of.items()}
    tensors = [Tensor(t.name, -(-sizes[t.name] // unit) * unit) for t in graph.tensors]
    inside = _held_inside(file) if is_tflm else {}
    ops, inputs = list(graph.ops), list(graph.inputs)
    if not is_tflm and ops and ops[0].type == "inputs":
        inputs += ops.pop(0).outputs
    states: dict[object, str] = {}
    for k, op in enumerate(ops):
        position = assembly.position_of.get(op.name)
        if position is None:
            continue
        workspace = -(-scratch.get(position, 0) // unit) * unit + inside.get(position, 0)
        reads, writes = op.inputs, op.outputs
        for key in file.operators[position].state:
            token = f"{op.name} keeps {key}"
            reads += (states[key],) if key in states else ()
            writes += (token,)
            states[key] = token
            tensors.append(Tensor(token, 0))
        pairs = op.in_place
        if position in places:
            output, source = (name_of[base.get(p, p)] for p in places[position])
            pairs = ((output, source),)
        ops[k] = replace(op, workspace=workspace, inputs=reads, outputs=writes, in_place=pairs)
    counted = ComputeGraph(
        graph.name, tensors, ops, inputs, graph.outputs, constant_memory=graph.constant_memory,
        cost_unit=graph.cost_unit, source=graph.source,
    )  # fmt: skip
    return counted, assembly.position_of


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


def padding(file: TfliteFile) -> int:
    """Return the most bytes that rounding adds to a tensor: LiteRT does not round the size of the topmost one."""
    sizes = [entry.bytes() for entry in file.tables[0].tensors if not entry.data]
    return max((-size % LITERT_ALIGNMENT for size in sizes), default=0)


def outside(file: ModelFile, runtime: Runtime) -> int:
    """Return the bytes of the graph that the runtime does not count: inputs, which callers of ONNX Runtime own."""
    if runtime is not Runtime.ONNXRUNTIME:
        return 0
    graph = file.graph
    return int(graph.arrays.size[np.flatnonzero(graph.arrays.is_input)].sum())
