"""Scratch that TFLM's kernels ask for, measured with models of one operator."""

from __future__ import annotations

import tempfile
from pathlib import Path

from remat.deploy.arena import ALIGNMENT
from remat.deploy.runs import is_installed, run_models
from remat.deploy.runtimes import ModelFile, Runtime
from remat.deploy.tflite_file import TfliteFile
from remat.errors import FormatError

#: Seconds for all models of one operator.
SECONDS = 60.0


def kernel_scratch(file: ModelFile) -> tuple[dict[int, int], list[str]]:
    """Return the bytes of scratch by operator of the main subgraph, and remarks.

    A model of the operator alone, with all its tensors at offset 0, has a head of its largest tensor and its scratch.
    Without the package tflite-micro nothing is known. The kernels are those of that package, TFLM's reference kernels
    on this machine; optimised libraries may ask for more.
    """
    assert isinstance(file, TfliteFile)
    if not is_installed(Runtime.TFLM):
        return {}, ["scratch of kernels is not counted: pip install tflite-micro to have it measured"]
    kinds: dict[tuple[object, ...], list[int]] = {}
    tables = file.tables[0]
    for position, entry in enumerate(tables.operators):
        shapes = tuple((tables.tensors[p].kind, tables.tensors[p].shape) if p >= 0 else None for p in entry.inputs)
        constants = tuple(p for p in entry.inputs if p >= 0 and tables.tensors[p].data)
        kinds.setdefault((file.operators[position].content, shapes, constants), []).append(position)
    found: dict[int, int] = {}
    failed: set[str] = set()
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
        for positions, report in zip(
            places, run_models(Runtime.TFLM, paths, Path(folder), invoke=False, seconds=SECONDS), strict=True
        ):
            entry = tables.operators[positions[0]]
            if "error" in report:
                failed.add(entry.kind)
                continue
            touched = [tables.tensors[p] for p in (*entry.inputs, *entry.outputs) if p >= 0]
            largest = max((t.bytes() for t in touched if not t.data and not t.is_variable), default=0)
            found.update(dict.fromkeys(positions, report["bytes"] - -(-largest // ALIGNMENT) * ALIGNMENT))
    unknown = [f"scratch is not known of {', '.join(sorted(failed))}"] if failed else []
    total = max(found.values(), default=0)
    return found, [f"scratch of kernels: at most {total:,} bytes for an operator, counted"] * bool(total) + unknown
