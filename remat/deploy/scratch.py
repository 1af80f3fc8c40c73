"""Scratch that TensorFlow Lite Micro's kernels request, measured or from a table of the reference kernels.

Source of the table: tflite-micro 90b983c, ``RequestScratchBufferInArena`` in ``micro/kernels``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from remat.deploy.arena import aligned
from remat.deploy.runs import is_installed, run_models
from remat.deploy.runtimes import Runtime
from remat.deploy.tflite_file import TfliteFile
from remat.errors import FormatError
from remat.graphs.formats.tflite.tables import TensorEntry

#: Time limit in seconds for the single-operator models that measure scratch.
SECONDS = 60.0
#: Bytes of a pointer (smaller on microcontrollers of 32 bits), and of ``int`` and ``float``.
POINTER, WORD = 8, 4
_DETECTION = "custom.TFLite_Detection_PostProcess"

#: Inputs and first output of an operator; None for a missing optional input.
_Tensors = list[TensorEntry | None]
_Formula = Callable[[_Tensors, TensorEntry, dict[str, int]], list[int]]


def kernel_scratch(file: TfliteFile, *, measure: bool = True) -> tuple[dict[int, int], list[str]]:
    """Return the bytes of scratch by operator of the main subgraph, and remarks.

    Without `measure` or the package tflite-micro, and for an operator that it does not run alone, the table is used.
    """
    table = {position: reference_scratch(file, position) for position in range(len(file.operators))}
    measured = measured_scratch(file) if measure and is_installed(Runtime.TFLM) else {}
    found = table | measured
    notes = []
    if total := max(found.values(), default=0):
        how = "measured" if measured else "by the formulas of the kernels"
        notes.append(
            f"scratch of reference kernels: at most {total:,} bytes for an operator, {how} and counted; "
            "that of other kernel libraries (CMSIS-NN, Xtensa, Ethos-U) is unknown"
        )
    kinds = {file.tables[0].operators[k].kind for k in table.keys() - measured.keys()}
    if unknown := sorted(kind for kind in kinds if kind.startswith(("custom.", "operator")) and kind != _DETECTION):
        notes.append(f"scratch is unknown for {', '.join(unknown)}")
    return {position: size for position, size in found.items() if size}, notes


def measured_scratch(file: TfliteFile) -> dict[int, int]:
    """Return the bytes of scratch by operator, for those that the package tflite-micro runs alone.

    With all tensors of an operator at offset 0, the head of a model of this operator alone is its largest tensor plus
    its scratch.
    """
    tables, found = file.tables[0], {}
    for positions, report in _alone(file, Runtime.TFLM):
        entry = tables.operators[positions[0]]
        touched = [tables.tensors[p] for p in (*entry.inputs, *entry.outputs) if p >= 0]
        largest = max((t.bytes(packed=False) for t in touched if not t.data and not t.is_variable), default=0)
        found.update(dict.fromkeys(positions, max(report["bytes"] - aligned(largest), 0)))
    return found


def litert_temporaries(file: TfliteFile) -> tuple[dict[int, list[int]], list[str]]:
    """Return the bytes of the temporary tensors of LiteRT's kernels by operator, 0 outside the arena, and remarks.

    They are those of one thread on this machine, measured if the package ai-edge-litert is installed.
    """
    if not is_installed(Runtime.LITERT):
        return {}, ["temporary tensors of kernels are not counted: pip install ai-edge-litert to have them measured"]
    found: dict[int, list[int]] = {}
    for positions, report in _alone(file, Runtime.LITERT):
        if any(report["temporaries"]):
            found.update(dict.fromkeys(positions, report["temporaries"]))
    total = max(map(sum, found.values()), default=0)
    return found, [f"temporary tensors of kernels: at most {total:,} bytes for an operator, counted"] * bool(total)


def _alone(file: TfliteFile, runtime: Runtime) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Load a model for each different operator alone; yield positions of the operator and the report."""
    tables = file.tables[0]
    kinds: dict[tuple[object, ...], list[int]] = {}
    for position, entry in enumerate(tables.operators):
        shapes = tuple((tables.tensors[p].kind, tables.tensors[p].shape) if p >= 0 else None for p in entry.inputs)
        constants = tuple(p for p in entry.inputs if p >= 0 and tables.tensors[p].data)
        kinds.setdefault((file.operators[position].content, shapes, constants), []).append(position)
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        paths, places = [], []
        for positions in kinds.values():
            if file.calls(0, positions[0]):
                continue
            path = Path(folder) / f"{positions[0]}.tflite"
            try:
                path.write_bytes(file.alone(positions[0]).data)
            except FormatError:
                continue
            paths.append(path)
            places.append(positions)
        reports = run_models(runtime, paths, Path(folder), invoke=False, seconds=SECONDS)
        yield from ((where, report) for where, report in zip(places, reports, strict=True) if "error" not in report)


def reference_scratch(file: TfliteFile, position: int) -> int:
    """Return the bytes of scratch that the reference kernel of an operator of the main subgraph requests."""
    entry, tensors = file.tables[0].operators[position], file.tables[0].tensors
    formula = _FORMULAS.get(entry.kind)
    if formula is None or not entry.outputs or entry.outputs[0] < 0:
        return 0
    inputs: _Tensors = [tensors[p] if p >= 0 else None for p in entry.inputs]
    options = file.custom_options(position) if entry.kind == _DETECTION else {}
    try:
        return sum(aligned(size) for size in formula(inputs, tensors[entry.outputs[0]], options))
    except (IndexError, AttributeError, KeyError):  # not the inputs of such an operator
        return 0


def _given(inputs: _Tensors, position: int) -> TensorEntry:
    found = inputs[position]
    if found is None:
        raise IndexError(position)
    return found


def _unpacked_weights(inputs: _Tensors, output: TensorEntry, options: dict[str, int]) -> list[int]:
    weights = _given(inputs, 1)
    return [weights.elements] if weights.kind == "INT4" else []


def _axes(inputs: _Tensors) -> list[int]:
    return [WORD * len(_given(inputs, 0).shape), WORD * _given(inputs, 1).elements]


def _mean(inputs: _Tensors, output: TensorEntry, options: dict[str, int]) -> list[int]:
    sums = [WORD * output.elements] if _given(inputs, 0).kind in ("INT8", "INT16") else []
    return sums + _axes(inputs)


def _svdf(inputs: _Tensors, output: TensorEntry, options: dict[str, int]) -> list[int]:
    batch, filters, units = _given(inputs, 0).shape[0], _given(inputs, 1).shape[0], output.shape[1]
    sums = [WORD * batch * units] if _given(inputs, 0).kind == "INT8" else []
    return [WORD * batch * filters, *sums]


def _transpose_conv(inputs: _Tensors, output: TensorEntry, options: dict[str, int]) -> list[int]:
    kind, bias = _given(inputs, 2).kind, inputs[3] if len(inputs) > 3 else None
    sums = [{"INT8": 4, "INT16": 8}[kind] * output.elements] if kind in ("INT8", "INT16") else []
    return sums + ([8 * bias.elements] if kind == "INT16" and bias is not None and bias.kind == "INT16" else [])


def _detection(inputs: _Tensors, output: TensorEntry, options: dict[str, int]) -> list[int]:
    boxes, classes = _given(inputs, 0).shape[1], _given(inputs, 1).shape
    most, kinds = max(options["max_detections"], 0), max(options["num_classes"], 0)
    words = [4 * boxes, classes[1] * classes[2], boxes, boxes, boxes, *[most * boxes] * 3]
    return [boxes, *(WORD * each for each in (*words, max(kinds, most) * boxes, min(boxes, most) * boxes))]


_FORMULAS: dict[str, _Formula] = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"), _unpacked_weights),
    **dict.fromkeys(("MEAN", "SUM"), _mean),
    **dict.fromkeys(("REDUCE_MAX", "REDUCE_MIN", "REDUCE_ALL"), lambda inputs, output, options: _axes(inputs)),
    "ADD_N": lambda inputs, output, options: [POINTER * len(inputs)] * (output.kind in ("FLOAT32", "INT8")),
    "MIRROR_PAD": lambda inputs, output, options: [WORD * len(_given(inputs, 0).shape)] * 2,
    "SVDF": _svdf,
    "TRANSPOSE_CONV": _transpose_conv,
    # four buffers of the size of the cell state, input 19
    "UNIDIRECTIONAL_SEQUENCE_LSTM": lambda inputs, output, options: [_given(inputs, 19).bytes()] * 4,
    _DETECTION: _detection,
}
