"""Models in the order, and with the addresses, of least memory for a runtime; reading, writing and checking them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remat.backends.choice import BackendLike
from remat.deploy.arena import planned, runtime_head
from remat.deploy.comparison import difference, tolerance
from remat.deploy.dataflow import sequence
from remat.deploy.litert import LitertPlanner, best_order
from remat.deploy.onnx_file import OnnxFile
from remat.deploy.onnx_rewriting import check_rewritable, rewritten_onnx
from remat.deploy.program_file import MAGIC, ProgramFile, only_deployed
from remat.deploy.runs import run_models
from remat.deploy.runtimes import RULES, ModelFile, Runtime, outside, padding, runtime_for, runtime_graph
from remat.deploy.scratch import kernel_scratch, litert_temporaries
from remat.deploy.tflite_file import TfliteFile
from remat.deploy.tflite_rewriting import check_variables, rewritten_tflite
from remat.errors import FormatError, RematError, VerificationError
from remat.graphs import ComputeGraph
from remat.graphs.formats.onnx.stream import looks_like_model
from remat.graphs.io import MODEL_SUFFIXES, given_values
from remat.io.files import read_bytes, write_atomic
from remat.io.formats import reading
from remat.ordering.rewriting_search import best_rewriting
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule import Schedule, Verdict, validate
from remat.schedule.io import write_schedule
from remat.solving.order import order
from remat.solving.progress import OnProgress

if TYPE_CHECKING:
    from remat.allocation import Allocation
    from remat.solving.result import Result


#: Largest readable model in bytes; its references are 32 bits wide.
MAX_MODEL = 2**31 - 1
#: Least seconds for addresses, even if the search for an order has used up the time.
ALLOCATION_SECONDS = 2.0
#: Most seconds for orders that suit LiteRT's planner better.
PLANNER_SECONDS = 20.0


@dataclass(frozen=True, eq=False)
class Deployment:
    """A model for a runtime, and its memory in bytes as that runtime counts it.

    Attributes
    ----------
    file : TfliteFile, OnnxFile or ProgramFile
        The model, written and checked.
    runtime : Runtime
    before, after : int
        Memory of the original and of this model: for TFLM the head of the arena, by the runtime's planner and by
        certified addresses; for LiteRT the arena of its planner; for ExecuTorch the planned memory of the file; for
        ONNX Runtime the peak.
    bound : int
        Lower bound for any order, any addresses, and outputs in place of inputs where kernels allow it.
    result : Result
        Result of the search for an order.
    allocation : Allocation or None
        Result of the search for addresses; None if the runtime plans them itself.
    notes : tuple of str
        Remarks on memory that is not counted, and on settings.
    rewrites : tuple of str
        Rewrites made before the search; `bound` is then that of the rewritten model.
    """

    file: ModelFile | ProgramFile
    runtime: Runtime
    before: int
    after: int
    bound: int
    result: Result
    allocation: Allocation | None = None
    notes: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """True if no order and no addresses need less memory."""
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


def read_deployable(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> ModelFile | ProgramFile:
    """Read a model or an exported PyTorch program from a file, whose content determines the format.

    Raises
    ------
    FormatError
        With the name of the file, if it is not an ONNX model, a TensorFlow Lite model, or a ``.pt2`` file.
    """
    data = read_bytes(path, MAX_MODEL)
    if (dims or given_values()) and not looks_like_model(data):
        raise FormatError(f"{path}: --dim and --value are for ONNX models")
    if data[4:8] == b"TFL3":
        file: ModelFile | ProgramFile = TfliteFile(data)
    elif looks_like_model(data):
        file = OnnxFile(data, dict(dims or {}))
    elif data.startswith(MAGIC):
        file = ProgramFile(data)
    else:
        raise FormatError(f"{path}: neither an ONNX nor a TensorFlow Lite model", "not-a-model", str(path))
    with reading():
        try:
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
    file: ModelFile | ProgramFile,
    runtime: str | None = None,
    search: Search = Search(),
    *,
    measure: bool = True,
    in_place: bool = True,
) -> Deployment:
    """Return the model with the order, and for TFLM and ExecuTorch the addresses, of least memory found.

    It never needs more memory than the given one.

    Parameters
    ----------
    file : TfliteFile, OnnxFile or ProgramFile
    runtime : {"tflm", "litert", "onnxruntime", "executorch"}, optional
        Default: the first that loads this kind of model.
    search : Search
    measure : bool
        Measure the scratch of each TensorFlow Lite kernel if the runtime's package is installed.
    in_place : bool
        For TFLM and ExecuTorch, put outputs in place of inputs where their reference kernels allow it.

    Raises
    ------
    FormatError
        With the name of the part that cannot be read or written.
    """
    chosen, clock = runtime_for(file, runtime), Deadline.after(search.time_limit)
    if isinstance(file, ProgramFile):
        return _deploy_program(file, search, in_place)
    scratch, notes = _scratch(file, chosen, measure=measure)
    graph, position = runtime_graph(file, chosen, {k: sum(sizes) for k, sizes in scratch.items()}, in_place=in_place)
    result = _ordered(graph, search, clock)
    assert result.schedule is not None  # without a budget the reference order is a schedule
    schedule = result.schedule if (result.peak or 0) < graph.reference_peak else Schedule.reference(graph)
    positions = [position[op] for op in schedule.computes() if op in position]
    allocation, made, bound = None, file, result.bound
    if chosen is Runtime.TFLM:
        assert isinstance(file, TfliteFile)
        sizes = {k: each[0] for k, each in scratch.items()}
        instances = sequence(file.operators, positions, file.outputs)
        moved = {k: sizes[each.op] for k, each in enumerate(instances) if each.op in sizes}
        seconds = max(clock.remaining, ALLOCATION_SECONDS)
        made, allocation = planned(
            file.in_sequence(instances), moved, time_limit=seconds if np.isfinite(seconds) else None,
            options=search.options, in_place=in_place,
        )  # fmt: skip
        before, after = runtime_head(file, sizes), runtime_head(made, moved)
    elif chosen is Runtime.LITERT:
        assert isinstance(file, TfliteFile)
        bound -= padding(file)
        planner, limit = LitertPlanner(file, scratch), min(max(clock.remaining, ALLOCATION_SECONDS), PLANNER_SECONDS)
        found, after = best_order(file, planner, [sorted(positions), positions], bound, Deadline.after(limit))
        made, before = file.in_sequence(sequence(file.operators, found, file.outputs)), planner.arena()
    else:
        made, before, after = file.scheduled(schedule), graph.reference_peak, result.peak or 0
    if after >= before:
        made, after = file, before
    apart = outside(file, chosen)
    notes += file.remarks + _remains(chosen, result, allocation)
    return Deployment(made, chosen, before - apart, after - apart, bound - apart, result, allocation, tuple(notes))


def deploy_rewritten(
    file: ModelFile | ProgramFile,
    runtime: str | None = None,
    search: Search = Search(),
    *,
    measure: bool = True,
    in_place: bool = True,
) -> Deployment:
    """Apply :func:`deploy` to a model and to its best rewriting, and return the smaller one.

    Parameters are those of :func:`deploy`; the two and the choice of rewrites have a third of the time each. Outputs of
    a rewritten model are equal up to rounding.

    Raises
    ------
    FormatError
        As :func:`deploy`, or if a rewriting of the model cannot be written.
    """
    if isinstance(file, ProgramFile):
        raise only_deployed("--rewrite")
    check_variables(file) if isinstance(file, TfliteFile) else check_rewritable(file)
    share = None if search.time_limit is None else search.time_limit / 3
    third = replace(search, time_limit=share)
    plain = deploy(file, runtime, third, measure=measure, in_place=in_place)
    choice = best_rewriting(file.graph, deadline=Deadline.after(share), seed=search.options.seed or 0).after
    if not choice.rewrites:
        return plain
    found = deploy(rewritten(file, choice.graph), runtime, third, measure=measure, in_place=in_place)
    if found.after >= plain.after:
        return plain
    return replace(found, before=plain.before, rewrites=tuple(str(each) for each in choice.rewrites))


def _deploy_program(file: ProgramFile, search: Search, in_place: bool) -> Deployment:
    """Return the ``.pte`` file of an exported program."""
    from remat.torch.executorch import MemoryPlanning, lowered

    planning = MemoryPlanning(
        in_place=in_place, time_limit=search.time_limit, backend=search.backend, options=search.options,
        on_progress=search.on_progress,
    )  # fmt: skip
    data = lowered(file.program, planning)
    plan = planning.plans[-1]
    if plan.result is None:
        raise FormatError("the program computes nothing")
    notes = ["scratch of kernels and tables of the method are added", *plan.notes]
    if plan.in_place:
        notes.insert(0, f"outputs in place of an input: {plan.in_place:,}")
    before, after = sum(plan.before), sum(plan.after)
    return Deployment(
        ProgramFile(data), Runtime.EXECUTORCH, before, after, plan.bound, plan.result, None, tuple(notes)
    )  # fmt: skip


def _ordered(graph: ComputeGraph, search: Search, clock: Deadline) -> Result:
    """Search an order; with in-place pairs start from the order that is best without them, which is found sooner."""
    plain = None
    if graph.in_place:
        half = Deadline.after(clock.remaining / 2)
        plain = order(
            graph.plain, "auto", search.backend, stop=half, options=search.options, on_progress=search.on_progress
        ).schedule
    return order(
        graph, "auto", search.backend, stop=clock, warm_start=plain, options=search.options,
        on_progress=search.on_progress,
    )  # fmt: skip


def _scratch(file: ModelFile, runtime: Runtime, *, measure: bool) -> tuple[dict[int, list[int]], list[str]]:
    """Return the sizes that kernels request at each operator of a TensorFlow Lite model, and remarks."""
    if not isinstance(file, TfliteFile):
        return {}, []
    if runtime is Runtime.LITERT:
        return litert_temporaries(file) if measure else ({}, [])
    sizes, notes = kernel_scratch(file, measure=measure)
    return {position: [size] for position, size in sizes.items()}, notes


def _remains(runtime: Runtime, result: Result, allocation: Allocation | None) -> list[str]:
    """Return remarks on memory that the figures omit, and on gaps that they include."""
    if runtime is Runtime.ONNXRUNTIME:
        return [
            f"the order holds with these settings of a session: {RULES[runtime].settings}",
            "scratch of kernels, constants that the model computes, packed weights and padding are added",
        ]
    gap = 0 if allocation is None or allocation.price is None else allocation.price - (result.peak or 0)
    return [f"gaps between tensors: {gap:,} bytes"] if gap > 0 else []


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


def check_models(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    runtime: Runtime,
    dims: Mapping[str, int] | None = None,
    *,
    exact: bool = True,
) -> Check:
    """Run two models in their runtime and compare their outputs.

    `exact`: bit by bit; otherwise up to rounding, as :func:`compare_outputs` does.

    Raises
    ------
    RematError
        If the runtime is not installed.
    VerificationError
        If a model does not run, or outputs are not equal.
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
                first, second = old[name], new[name]
                same = first.dtype == second.dtype and first.tobytes() == second.tobytes()
                if not same and (exact or not difference(first, second) <= tolerance(first.dtype)):
                    raise VerificationError(
                        f"{after}: output {k} is not that of {before} in {title}", "other-output", str(after)
                    )
            return Check(reports[0]["bytes"], reports[1]["bytes"], len(old.files))
