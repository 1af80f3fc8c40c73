"""A model with the order and the addresses of least memory for a runtime, and the scratch that its kernels ask for."""

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


#: Largest model that is read; its references are 32 bits wide.
MAX_MODEL = 2**31 - 1
#: Seconds for addresses at least, also where the order has used up the time.
ALLOCATION_SECONDS = 2.0


@dataclass(frozen=True, eq=False)
class Deployment:
    """A model for a runtime, and what it needs there. Memory in bytes, as the runtime counts.

    Attributes
    ----------
    file : TfliteFile or OnnxFile
        The model, written and checked.
    runtime : Runtime
    before, after : int
        What the model needed and needs; for TFLM the head of its arena by its own planner and by certified addresses,
        for others the peak.
    bound : int
        No order needs less, with any addresses.
    result : Result
        The search for the order.
    allocation : Allocation or None
        The search for addresses; None for runtimes that plan them.
    notes : tuple of str
        What is left out or remains.
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
        """True when no order needs less, outputs in place aside."""
        return self.after <= self.bound


@dataclass(frozen=True)
class Check:
    """Bytes that a runtime reported for the model before and after; the outputs were equal bit by bit."""

    before: int
    after: int
    outputs: int


@dataclass(frozen=True)
class Search:
    """How to search: solver, options, seconds for order and addresses, and what receives progress."""

    backend: BackendLike | None = "cp-sat"
    options: SolveOptions = DEFAULT_OPTIONS
    time_limit: float | None = None
    on_progress: OnProgress | None = None


def read_model_file(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> ModelFile:
    """Return the model in a file, found from its content.

    Raises
    ------
    FormatError
        Naming the file, if it is neither an ONNX nor a TensorFlow Lite model.
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
    """Return the model in a file whose rewriting can be written back.

    Raises
    ------
    FormatError
        Naming the file, if it is no model, or if no rewriting of it can be written.
    """
    file = read_model_file(path)
    try:
        check_variables(file) if isinstance(file, TfliteFile) else check_rewritable(file)
    except FormatError as error:
        raise FormatError(f"{path}: {error}", error.kind.rpartition(".")[2], str(path)) from None
    return file


def rewritten(file: ModelFile, graph: ComputeGraph) -> ModelFile:
    """Return the model of a graph made of ``file.graph`` by rewriting; see the functions of the two formats.

    Raises
    ------
    FormatError
        If the model cannot be written or is not read as expected.
    GraphError
        Naming the op, where the graph does not compute what the model computes.
    """
    return rewritten_tflite(file, graph) if isinstance(file, TfliteFile) else rewritten_onnx(file, graph)


def deploy(
    file: ModelFile, runtime: str | None = None, search: Search = Search(), *, measure: bool = True
) -> Deployment:
    """Return the model with the order, and for TFLM the addresses, that need the least memory found.

    Parameters
    ----------
    file : TfliteFile or OnnxFile
    runtime : {"tflm", "litert", "onnxruntime"}, optional
        Default: the first that loads such a model.
    search : Search
    measure : bool
        Measure the scratch of each kernel with TFLM, where it is installed.

    Raises
    ------
    FormatError
        If the model cannot be read or written; names what of it.
    """
    chosen = runtime_for(file, runtime)
    scratch, notes = kernel_scratch(file) if measure and chosen is Runtime.TFLM else ({}, [])
    graph = runtime_graph(file, chosen, scratch)
    apart, clock = outside(file, chosen), Deadline.after(search.time_limit)
    result = order(graph, "auto", search.backend, stop=clock, options=search.options, on_progress=search.on_progress)
    assert result.schedule is not None  # there is no budget, and the reference order is one
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
    """Return what the figures leave out or contain in addition to the tensors."""
    if runtime is Runtime.LITERT:
        return ["LiteRT plans addresses while it loads the model: gaps between tensors come on top"]
    if runtime is Runtime.ONNXRUNTIME:
        return [
            f"the order holds with these settings of a session: {RULES[runtime].settings}",
            "scratch of kernels, constants that the model computes, packed weights and padding come on top",
        ]
    gap = 0 if allocation is None or allocation.price is None else allocation.price - (result.peak or 0)
    return [f"gaps between tensors: {gap:,} bytes"] if gap else []


def deployed(file: ModelFile, schedule: Schedule, deadline: Deadline | None = None) -> ModelFile:
    """Return the model that runs by a schedule, with addresses where it is one of TensorFlow Lite.

    Parameters
    ----------
    schedule : Schedule
        Of ``file.graph``; ops that it recomputes stand more than once in the model.

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
    """Write a model that was made from the file `source`.

    Raises
    ------
    FormatError
        If it cannot be written, or its weights lie in files that it would no longer find.
    """
    here, there = Path(source).resolve().parent, Path(path).resolve().parent
    if isinstance(file, OnnxFile) and file.has_external_data and here != there:
        raise FormatError(
            f"{path}: {source} has weights in files of its folder; write the new model there, too", "external-data"
        )
    write_atomic(path, file.data)


def write_answer(schedule: Schedule, path: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
    """Write a schedule, or under a model's suffix the model `source` that runs by it.

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
        If one does not run, or an output differs in a bit.
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
