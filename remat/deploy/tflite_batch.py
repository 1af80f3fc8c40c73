"""TensorFlow Lite models for another batch: the shapes in the file change, and the signature stays open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from remat.deploy.flat import Piece, links, numbers, table
from remat.deploy.tflite_file import TENSOR, TfliteFile
from remat.errors import FormatError

#: Name of the only dimension that can be given; the format has no names of dimensions.
BATCH = "batch"
#: Most images of a batch, so that sizes of tensors stay whole numbers of 64 bits.
MAX_BATCH = 2**20
# Field numbers of the schema.
_SUBGRAPHS, _TENSORS, _SHAPE, _SIGNATURE = 2, 0, 0, 7


def with_dims(file: TfliteFile, dims: Mapping[str, int]) -> TfliteFile:
    """Return the model with ``dims["batch"]`` as the first extent of each tensor whose signature leaves it open.

    Raise FormatError for another dimension, and for a model with several subgraphs or without an open batch. Raise it
    also if an op reads the batch and writes a tensor of fixed size.
    """
    for name, size in dims.items():
        if name != BATCH or not 0 < size <= MAX_BATCH:
            raise FormatError(
                f"--dim {name}={size}: a TensorFlow Lite model takes --dim {BATCH}=SIZE, from 1 to {MAX_BATCH:,}, "
                "for the first dimension of its inputs",
                "dim", name,
            )  # fmt: skip
    batch = dims[BATCH]
    tables, places = file.tables[0], file.flat.tables(file.subgraphs[0], _TENSORS)
    if len(file.tables) > 1:
        raise FormatError("the model has several subgraphs: its batch cannot be changed", "subgraph")
    is_open = [file.flat.numbers(place, _SIGNATURE)[:1] == (-1,) for place in places]
    if not any(is_open[p] for p in tables.inputs if p >= 0):
        raise FormatError("the batch of the model is fixed: convert it with an open batch", "dim", BATCH)
    for entry in tables.operators:
        reads = any(is_open[p] for p in entry.inputs if p >= 0)
        fixed = [p for p in entry.outputs if p >= 0 and not is_open[p]]
        if reads and fixed and entry.kind not in {"SHAPE", "RANK"}:
            name = tables.tensors[fixed[0]].name
            raise FormatError(
                f"tensor {name!r}, an output of {entry.kind}, has a fixed batch: convert the model with the batch that "
                "is needed",
                "dim", name,
            )  # fmt: skip
    tensors: list[int | Piece] = list(places)
    for p, tensor in enumerate(tables.tensors):
        if is_open[p] and not tensor.data:
            fields: dict[int, bytes | int | Piece] = {**file.flat.fields(places[p], TENSOR, tensor.label)}
            tensors[p] = table(fields | {_SHAPE: numbers((batch, *tensor.shape[1:]))})
    made = file.with_fields({_SUBGRAPHS: file.with_main({_TENSORS: links(tensors)})})
    return replace(TfliteFile(made.data), batch=batch)
