"""Rules of runtimes for counting memory: the peak of :func:`runtime_graph` is the memory of a model there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from remat.deploy.arena import ALIGNMENT, lifetimes
from remat.deploy.onnx_file import OnnxFile
from remat.deploy.tflite_file import TfliteFile
from remat.errors import FormatError
from remat.graphs import ComputeGraph, Tensor

ModelFile = TfliteFile | OnnxFile


class Runtime(StrEnum):
    """A runtime that follows the order of the file."""

    TFLM = "tflm"
    LITERT = "litert"
    ONNXRUNTIME = "onnxruntime"


@dataclass(frozen=True)
class Rules:
    """Description of a runtime."""

    title: str
    package: str
    """Package that ``--check`` requires."""
    file: type[ModelFile]
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
}  # fmt: skip


def runtime_for(file: ModelFile, wanted: str | None) -> Runtime:
    """Return the runtime `wanted`, or by default the first one that loads this kind of model.

    Raise FormatError if there is no such runtime, or it does not load this kind of model.
    """
    fitting = [runtime for runtime, rules in RULES.items() if isinstance(file, rules.file)]
    if wanted is None:
        return fitting[0]
    if wanted not in fitting:
        raise FormatError(f"--runtime {wanted}: for this model there are {', '.join(fitting)}", "runtime", wanted)
    return Runtime(wanted)


def runtime_graph(file: ModelFile, runtime: Runtime, scratch: Mapping[int, int]) -> ComputeGraph:
    """Return the graph of a model with memory as its runtime counts it; op names are those of ``file.graph``.

    For TFLM, sizes are multiples of 16, elements of four bits have a byte each, and an op's workspace is the scratch of
    its kernel plus the tensors of subgraphs that it runs. LiteRT keeps graph inputs to the end. Operators that share a
    variable keep their order.
    """
    graph = file.graph
    if not isinstance(file, TfliteFile):
        return graph
    unit = ALIGNMENT if runtime is Runtime.TFLM else 1
    entries, packed = file.tables[0].tensors, runtime is not Runtime.TFLM
    sizes = {name: entries[p].bytes(packed=packed) for p, name in file.assembly.name_of.items()}
    tensors = [Tensor(t.name, -(-sizes[t.name] // unit) * unit) for t in graph.tensors]
    inside = _held_inside(file)
    ops, inputs = list(graph.ops), list(graph.inputs)
    if runtime is Runtime.LITERT and ops and ops[0].type == "inputs":
        inputs += ops.pop(0).outputs
    states: dict[object, str] = {}
    for k, op in enumerate(ops):
        position = file.assembly.position_of.get(op.name)
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
        ops[k] = replace(op, workspace=workspace, inputs=reads, outputs=writes)
    return ComputeGraph(
        graph.name, tensors, ops, inputs, graph.outputs, constant_memory=graph.constant_memory,
        cost_unit=graph.cost_unit, source=graph.source,
    )  # fmt: skip


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


def outside(file: ModelFile, runtime: Runtime) -> int:
    """Return the bytes of the graph that the runtime does not count: inputs, which callers of ONNX Runtime own."""
    if runtime is not Runtime.ONNXRUNTIME:
        return 0
    graph = file.graph
    return int(graph.arrays.size[np.flatnonzero(graph.arrays.is_input)].sum())
