"""Models in the order, and with the addresses, of least memory for a runtime; reading, writing and checking them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remat.backends.choice import BackendLike
from remat.deploy.arena import ALIGNMENT, planned, runtime_head
from remat.deploy.onnx_file import OnnxFile
from remat.deploy.onnx_rewriting import check_rewritable, rewritten_onnx
from remat.deploy.runs import is_installed, run_models
from remat.deploy.runtimes import RULES, ModelFile, Runtime, outside, runtime_for, runtime_graph
from remat.deploy.tflite_file import TfliteFile
from remat.deploy.tflite_rewriting import check_variables, rewritten_tflite
from remat.errors import FormatError, RematError, VerificationError
from remat.graphs import ComputeGraph
from remat.graphs.formats.onnx.stream import looks_like_model
from remat.graphs.io import MODEL_SUFFIXES
from remat.io.files import read_bytes, write_atomic
from remat.io.formats import reading
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule import Schedule, Verdict, validate
from remat.schedule.io import write_schedule
from remat.solving.order import order
from remat.solving.progress import OnProgress

if TYPE_CHECKING:
    from remat.allocation import Allocation
    from remat.solving.result import Result


#: Time limit in seconds for the single-operator models that measure scratch.
SECONDS = 60.0


def kernel_scratch(file: ModelFile) -> tuple[dict[int, int], list[str]]:
    """Return the bytes of scratch by operator of the main subgraph, and remarks.

    With all tensors of an operator at offset 0, the head of a model of this operator alone is its largest tensor plus
    its scratch. The package tflite-micro runs TFLM's reference kernels on this machine; optimised libraries may request
    more. Without the package nothing is measured.
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
            largest = max((t.bytes(packed=False) for t in touched if not t.data and not t.is_variable), default=0)
            found.update(dict.fromkeys(positions, report["bytes"] - -(-largest // ALIGNMENT) * ALIGNMENT))
    unknown = [f"scratch is unknown for {', '.join(sorted(failed))}"] if failed else []
    total = max(found.values(), default=0)
    return found, [f"scratch of kernels: at most {total:,} bytes for an operator, counted"] * bool(total) + unknown


#: Largest readable model in bytes; its references are 32 bits wide.
MAX_MODEL = 2**31 - 1
#: Least seconds for addresses, even if the search for an order has used up the time.
ALLOCATION_SECONDS = 2.0


@dataclass(frozen=True, eq=False)
class Deployment:
    """A model for a runtime, and its memory in bytes as that runtime counts it.

    Attributes
    ----------
    file : TfliteFile or OnnxFile
        The model, written and checked.
    runtime : Runtime
    before, after : int
        Memory of the original and of this model: for TFLM the head of the arena, by the runtime's planner and by
        certified addresses; for others the peak.
    bound : int
        Lower bound for any order and any addresses.
    result : Result
        Result of the search for an order.
    allocation : Allocation or None
        Result of the search for addresses; None if the runtime plans them itself.
    notes : tuple of str
        Remarks on memory that is not counted, and on settings.
    """

    file: ModelFile
    runtime: Runtime
    before: int
    after: int
    bound: int
    result: Result
    allocation: Allocation | None = None
    notes: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """True if no order needs less memory; outputs written in place of inputs are not considered."""
        return self.after <= self.bound


@dataclass(frozen=True)
class Check:
    """Bytes that a runtime reported for the original and the new model, whose outputs were bitwise equal."""

    before: int
    after: int
    outputs: int


@dataclass(frozen=True)
class Search:
    """Settings of a search: solver, options, time limit for order and addresses in seconds, progress callback."""

    backend: BackendLike | None = "cp-sat"
    options: SolveOptions = DEFAULT_OPTIONS
    time_limit: float | None = None
    on_progress: OnProgress | None = None


def read_model_file(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> ModelFile:
    """Read the model in a file, whose content determines the format.

    Raises
    ------
    FormatError
        With the name of the file, if it is neither an ONNX nor a TensorFlow Lite model.
    """
    data = read_bytes(path, MAX_MODEL)
    if data[4:8] == b"TFL3":
        if dims:
            raise FormatError(f"{path}: --dim is for ONNX models")
        file: ModelFile = TfliteFile(data)
    elif looks_like_model(data):
        file = OnnxFile(data, dict(dims or {}))
    else:
        raise FormatError(f"{path}: neither an ONNX nor a TensorFlow Lite model", "not-a-model", str(path))
    with reading():
        try:
            file.graph  # noqa: B018  (reads it, within the budget of a file)
        except RematError as error:
            raise type(error)(f"{path}: {error}", error.kind.rpartition(".")[2], error.culprit) from None
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
        check_variables(file) if isinstance(file, TfliteFile) else check_rewritable(file)
    except FormatError as error:
        raise FormatError(f"{path}: {error}", error.kind.rpartition(".")[2], str(path)) from None
    return file


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


def deploy(
    file: ModelFile, runtime: str | None = None, search: Search = Search(), *, measure: bool = True
) -> Deployment:
    """Return the model with the order, and for TFLM the addresses, of least memory found.

    Parameters
    ----------
    file : TfliteFile or OnnxFile
    runtime : {"tflm", "litert", "onnxruntime"}, optional
        Default: the first that loads this kind of model.
    search : Search
    measure : bool
        For TFLM, measure the scratch of each kernel if the package is installed.

    Raises
    ------
    FormatError
        With the name of the part that cannot be read or written.
    """
    chosen = runtime_for(file, runtime)
    scratch, notes = kernel_scratch(file) if measure and chosen is Runtime.TFLM else ({}, [])
    graph = runtime_graph(file, chosen, scratch)
    apart, clock = outside(file, chosen), Deadline.after(search.time_limit)
    result = order(graph, "auto", search.backend, stop=clock, options=search.options, on_progress=search.on_progress)
    assert result.schedule is not None  # without a budget the reference order is a schedule
    schedule = result.schedule if (result.peak or 0) < graph.reference_peak else Schedule.reference(graph)
    made = file.scheduled(schedule)
    before, after, allocation = graph.reference_peak, result.peak or 0, None
    if chosen is Runtime.TFLM:
        assert isinstance(file, TfliteFile)
        assert isinstance(made, TfliteFile)
        before = runtime_head(file, scratch)
        seconds = max(clock.remaining, ALLOCATION_SECONDS)
        written, allocation = planned(
            made, scratch, time_limit=seconds if np.isfinite(seconds) else None, options=search.options
        )
        made, after = written, runtime_head(written, scratch)
        if after >= before:
            made, after = file, before
    notes += file.remarks + _remains(chosen, graph.reference_peak, result, allocation)
    return Deployment(
        made, chosen, before - apart, after - apart, result.bound - apart, result, allocation, tuple(notes)
    )


def _remains(runtime: Runtime, reference: int, result: Result, allocation: Allocation | None) -> list[str]:
    """Return remarks on memory that the figures omit, and on gaps that they include."""
    if runtime is Runtime.LITERT:
        return ["LiteRT plans addresses while it loads the model: gaps between tensors are added"]
    if runtime is Runtime.ONNXRUNTIME:
        return [
            f"the order holds with these settings of a session: {RULES[runtime].settings}",
            "scratch of kernels, constants that the model computes, packed weights and padding are added",
        ]
    gap = 0 if allocation is None or allocation.price is None else allocation.price - (result.peak or 0)
    return [f"gaps between tensors: {gap:,} bytes"] if gap else []


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


def write_model(file: ModelFile, path: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
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


def check_models(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    runtime: Runtime,
    dims: Mapping[str, int] | None = None,
) -> Check:
    """Run two models in their runtime and compare their outputs.

    Raises
    ------
    RematError
        If the runtime is not installed.
    VerificationError
        If a model does not run, or outputs are not bitwise equal.
    """
    title = RULES[runtime].title
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        models = [Path(before).resolve(), Path(after).resolve()]
        reports = run_models(runtime, models, Path(folder), dims=dims)
        for model, report in zip((before, after), reports, strict=True):
            if "error" in report:
                raise VerificationError(f"{model}: {title} does not run it: {report['error']}", "not-run", str(model))
        with np.load(Path(folder) / "0.npz") as old, np.load(Path(folder) / "1.npz") as new:
            for k, name in enumerate(old.files):
                if old[name].dtype != new[name].dtype or old[name].tobytes() != new[name].tobytes():
                    raise VerificationError(
                        f"{after}: output {k} is not that of {before} in {title}", "other-output", str(after)
                    )
            return Check(reports[0]["bytes"], reports[1]["bytes"], len(old.files))
