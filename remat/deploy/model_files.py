"""Reading models that can be deployed, and writing models of schedules and of rewritten graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from remat.deploy.arena import planned
from remat.deploy.onnx_file import OnnxFile
from remat.deploy.onnx_rewriting import check_rewritable, rewritten_onnx
from remat.deploy.program_file import MAGIC, ProgramFile, only_deployed
from remat.deploy.runtimes import ModelFile
from remat.deploy.tflite_batch import with_dims
from remat.deploy.tflite_file import TfliteFile
from remat.deploy.tflite_rewriting import check_variables, rewritten_tflite
from remat.errors import FormatError, RematError
from remat.graphs import ComputeGraph
from remat.graphs.formats.onnx.stream import looks_like_model
from remat.graphs.io import MODEL_SUFFIXES, given_values
from remat.io.files import read_bytes, write_atomic
from remat.io.formats import reading
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule, Verdict, validate
from remat.schedule.io import write_schedule

#: Largest readable model in bytes; its references are 32 bits wide.
MAX_MODEL = 2**31 - 1
#: Least seconds for addresses, even if the search for an order has used up the time.
ALLOCATION_SECONDS = 2.0


def read_deployable(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> ModelFile | ProgramFile:
    """Read a model or an exported PyTorch program from a file, whose content determines the format.

    Raises
    ------
    FormatError
        With the name of the file, if it is not an ONNX model, a TensorFlow Lite model, or a ``.pt2`` file, or `dims`
        are not among its open dimensions (TensorFlow Lite: ``batch``).
    """
    data = read_bytes(path, MAX_MODEL)
    is_tflite = data[4:8] == b"TFL3"
    if (given_values() or (dims and not is_tflite)) and not looks_like_model(data):
        raise FormatError(f"{path}: --dim is for ONNX and TensorFlow Lite models, --value for ONNX models")
    if is_tflite:
        file: ModelFile | ProgramFile = TfliteFile(data)
    elif looks_like_model(data):
        file = OnnxFile(data, dict(dims or {}))
    elif data.startswith(MAGIC):
        file = ProgramFile(data)
    else:
        raise FormatError(
            f"{path}: neither an ONNX model, a TensorFlow Lite model, nor a .pt2 file", "not-a-model", str(path)
        )
    with reading():
        try:
            if dims and isinstance(file, TfliteFile):
                file = with_dims(file, dims)
            file.program if isinstance(file, ProgramFile) else file.graph  # read it, within the budget of a file
        except RematError as error:
            raise type(error)(f"{path}: {error}", error.kind.rpartition(".")[2], error.culprit) from None
    return file


def read_model_file(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> ModelFile:
    """Read the model in a file, whose content determines the format.

    Raises
    ------
    FormatError
        With the name of the file, if it is neither an ONNX nor a TensorFlow Lite model.
    """
    file = read_deployable(path, dims)
    if isinstance(file, ProgramFile):
        raise only_deployed(path)
    return file


def read_rewritable(path: str | os.PathLike[str]) -> ModelFile:
    """Read a model whose rewriting can be written back.

    Raises
    ------
    FormatError
        With the name of the file, if it is not a model or its rewriting cannot be written.
    """
    file = read_model_file(path)
    try:
        check_can_be_rewritten(file)
    except FormatError as error:
        raise FormatError(f"{path}: {error}", error.kind.rpartition(".")[2], str(path)) from None
    return file


def check_can_be_rewritten(file: ModelFile) -> None:
    """Raise FormatError if a rewriting of the model cannot be written."""
    if isinstance(file, TfliteFile) and file.batch:
        raise FormatError("a model with another batch is not rewritten: leave out --dim or --rewrite", "dim", "batch")
    check_variables(file) if isinstance(file, TfliteFile) else check_rewritable(file)


def rewritten(file: ModelFile, graph: ComputeGraph) -> ModelFile:
    """Return the model of a graph that rewriting made of ``file.graph``; see the functions of the two formats.

    Raises
    ------
    FormatError
        If the model cannot be written, or does not read back as expected.
    GraphError
        With the name of the op, if the graph does not compute the same as the model.
    """
    return rewritten_tflite(file, graph) if isinstance(file, TfliteFile) else rewritten_onnx(file, graph)


def deployed(file: ModelFile, schedule: Schedule, deadline: Deadline | None = None) -> ModelFile:
    """Return the model with operators in the order of a schedule; a TensorFlow Lite model also gets addresses.

    Parameters
    ----------
    schedule : Schedule
        Schedule of ``file.graph``; the model repeats the ops that it recomputes.

    Raises
    ------
    FormatError
        If the schedule is not valid, or the model cannot be written.
    """
    certificate = validate(file.graph, schedule)
    if certificate.verdict is Verdict.INVALID:
        raise FormatError(f"the schedule does not run on the model: {certificate.first}", "schedule")
    made = file.scheduled(schedule)
    if made.graph.reference_peak > certificate.peak:
        raise FormatError(
            f"the model would need {made.graph.reference_peak:,} bytes, the schedule {certificate.peak:,}"
        )
    if isinstance(made, TfliteFile):
        seconds = ALLOCATION_SECONDS if deadline is None else max(deadline.remaining, ALLOCATION_SECONDS)
        made, _ = planned(made, time_limit=seconds if np.isfinite(seconds) else None)
    return made


def write_model(file: ModelFile | ProgramFile, path: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
    """Write a model derived from the file `source`.

    Raises
    ------
    FormatError
        If it cannot be written, or would no longer find the files of its weights.
    """
    here, there = Path(source).resolve().parent, Path(path).resolve().parent
    if isinstance(file, OnnxFile) and file.has_external_data and here != there:
        raise FormatError(
            f"{path}: {source} has weights in files of its folder; write the new model there, too", "external-data"
        )
    write_atomic(path, file.data)


def write_answer(schedule: Schedule, path: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
    """Write a schedule or, if `path` has the suffix of a model, the model `source` with this schedule.

    Raises
    ------
    FormatError
        As :func:`deployed` and :func:`write_model`.
    """
    if Path(path).suffix.lower() not in MODEL_SUFFIXES:
        write_schedule(schedule, path)
        return
    write_model(deployed(read_model_file(source), schedule), path, source)
