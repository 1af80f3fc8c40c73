"""Models in the order, and with the addresses, of least memory for a runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from remat.backends.choice import BackendLike
from remat.deploy.arena import planned, runtime_head
from remat.deploy.counting import litert_graph, padding, tflm_graph
from remat.deploy.dataflow import sequence
from remat.deploy.litert import LitertPlanner, best_order
from remat.deploy.model_files import ALLOCATION_SECONDS, check_can_be_rewritten, rewritten
from remat.deploy.onnx_file import OnnxFile
from remat.deploy.program_file import ProgramFile, only_deployed
from remat.deploy.runs import UNCHANGED
from remat.deploy.runtimes import RULES, ModelFile, Runtime, runtime_for
from remat.deploy.scratch import kernel_scratch, litert_temporaries
from remat.deploy.tflite_file import TfliteFile
from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.graphs.formats.tflite.assembly import BODIES_REMARK
from remat.io.limits import completing
from remat.ordering.rewriting_search import best_rewriting
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule import Schedule, simulate
from remat.solving.order import order
from remat.solving.progress import OnProgress

if TYPE_CHECKING:
    from remat.allocation import Allocation
    from remat.solving.result import Result


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
class Search:
    """Settings of a search.

    Attributes
    ----------
    backend, options, time_limit, on_progress
        Solver, its options, time limit for order and addresses in seconds, and progress callback.
    measure : bool
        Measure the scratch of each TensorFlow Lite kernel if the runtime's package is installed.
    in_place : bool
        For TFLM and ExecuTorch, put outputs in place of inputs where their reference kernels allow it.
    rewrite : bool
        Search the best rewriting of the model, too, and keep it if it needs less. Its outputs are equal up to rounding.
    """

    backend: BackendLike | None = "cp-sat"
    options: SolveOptions = DEFAULT_OPTIONS
    time_limit: float | None = None
    on_progress: OnProgress | None = None
    measure: bool = True
    in_place: bool = True
    rewrite: bool = False


def deploy(file: ModelFile | ProgramFile, runtime: str | None = None, search: Search = Search()) -> Deployment:
    """Return the model with the order, and for TFLM and ExecuTorch the addresses, of least memory found.

    It never needs more memory than the given one.

    Parameters
    ----------
    file : TfliteFile, OnnxFile or ProgramFile
    runtime : {"tflm", "litert", "onnxruntime", "executorch"}, optional
        Default: the first that loads this kind of model.
    search : Search
        With `rewrite`, the model, the choice of rewrites and the rewritten model have a third of the time each.

    Raises
    ------
    FormatError
        With the name of the part that cannot be read, rewritten or written.
    """
    chosen = runtime_for(file, runtime)
    plan = _PLANNERS[chosen]
    if not search.rewrite:
        with completing():
            return plan(file, search)
    if isinstance(file, ProgramFile):
        raise only_deployed("--rewrite")
    check_can_be_rewritten(file)
    share = None if search.time_limit is None else search.time_limit / 3
    third = replace(search, time_limit=share)
    plain = plan(file, third)
    choice = best_rewriting(file.graph, deadline=Deadline.after(share), seed=search.options.seed or 0).after
    if not choice.rewrites:
        return plain
    found = plan(rewritten(file, choice.graph), third)
    if found.after >= plain.after:
        return plain
    return replace(found, before=plain.before, rewrites=tuple(str(each) for each in choice.rewrites))


def _for_tflm(file: TfliteFile, search: Search) -> Deployment:
    """Write order and addresses; the runtime places scratch in the gap that the addresses leave for it."""
    if file.batch:
        raise FormatError(
            f"{RULES[Runtime.TFLM].title} does not resize inputs: convert the model with a batch of {file.batch}, "
            "or use --runtime litert",
            "dim", "batch",
        )  # fmt: skip
    clock = Deadline.after(search.time_limit)
    scratch, notes = kernel_scratch(file, measure=search.measure)
    graph, position = tflm_graph(file, scratch, in_place=search.in_place)
    result, schedule = _ordered(graph, search, clock)
    computes = [position[op] for op in schedule.computes() if op in position]
    instances = sequence(file.operators, computes, file.outputs)
    moved = {k: scratch[each.op] for k, each in enumerate(instances) if each.op in scratch}
    seconds = max(clock.remaining, ALLOCATION_SECONDS)
    made, allocation = planned(
        file.in_sequence(instances), moved, time_limit=seconds if np.isfinite(seconds) else None,
        options=search.options, in_place=search.in_place,
    )  # fmt: skip
    gap = 0 if allocation.price is None else allocation.price - (result.peak or 0)
    notes += file.remarks + [f"gaps between tensors: {gap:,} bytes"] * (gap > 0)
    found = Deployment(
        made, Runtime.TFLM, runtime_head(file, scratch), runtime_head(made, moved), result.bound, result, allocation,
        tuple(notes),
    )  # fmt: skip
    return _not_worse(found, file)


def _for_litert(file: TfliteFile, search: Search) -> Deployment:
    """Write the order that the runtime's planner needs least memory for."""
    clock = Deadline.after(search.time_limit)
    temporaries, notes = litert_temporaries(file) if search.measure else ({}, [])
    planner = LitertPlanner(file, temporaries)
    graph, position = litert_graph(file, planner, temporaries)
    result, schedule = _ordered(graph, search, clock)
    computes = [position[op] for op in schedule.computes() if op in position]
    bound = result.bound - padding(file, temporaries)
    deadline = Deadline.after(min(max(clock.remaining, ALLOCATION_SECONDS), PLANNER_SECONDS))
    best, after = best_order(file, planner, [sorted(computes), computes], bound, deadline)
    made = file.in_sequence(sequence(file.operators, best, file.outputs))
    notes += [each for each in file.remarks if not each.startswith(BODIES_REMARK)]
    notes += ["subgraphs that operators run have arenas of their own, which are not counted"] * (len(file.tables) > 1)
    return _not_worse(Deployment(made, Runtime.LITERT, planner.arena(), after, bound, result, None, tuple(notes)), file)


def _for_onnxruntime(file: OnnxFile, search: Search) -> Deployment:
    """Write the order; graph inputs belong to the caller and are not counted."""
    graph = file.in_place_graph
    result, schedule = _ordered(graph, search, Deadline.after(search.time_limit))
    inputs = int(graph.arrays.size[graph.arrays.is_input].sum())
    given = simulate(graph, file.runtime_order).peak
    before, after, bound = (bytes_ - inputs for bytes_ in (given, result.peak or 0, result.bound))
    made = file.scheduled(schedule, runtime=True)
    settings = RULES[Runtime.ONNXRUNTIME].settings
    if any(node.type == "DequantizeLinear" for node in file.reading.network.nodes):
        settings += f", {UNCHANGED}=1"
    notes = [
        *file.remarks,
        f"the order holds with these settings of a session: {settings}",
        "scratch of kernels, packed weights and padding are added",
    ]
    return _not_worse(Deployment(made, Runtime.ONNXRUNTIME, before, after, bound, result, None, tuple(notes)), file)


def _for_executorch(file: ProgramFile, search: Search) -> Deployment:
    """Lower the program with order and addresses."""
    from remat.torch.executorch import MemoryPlanning, lowered

    planning = MemoryPlanning(
        in_place=search.in_place, time_limit=search.time_limit, backend=search.backend, options=search.options,
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


#: How each runtime counts, orders and plans a model: the function that returns its deployment.
_PLANNERS: dict[Runtime, Callable[[Any, Search], Deployment]] = {
    Runtime.TFLM: _for_tflm,
    Runtime.LITERT: _for_litert,
    Runtime.ONNXRUNTIME: _for_onnxruntime,
    Runtime.EXECUTORCH: _for_executorch,
}


def _ordered(graph: ComputeGraph, search: Search, clock: Deadline) -> tuple[Result, Schedule]:
    """Search an order; return the result and, if it is not better than the reference order, that order.

    With in-place pairs, start from the order that is best without them, which is found sooner.
    """
    plain = None
    if graph.in_place:
        half = Deadline.after(clock.remaining / 2)
        plain = order(
            graph.plain, "auto", search.backend, stop=half, options=search.options, on_progress=search.on_progress
        ).schedule
    result = order(
        graph, "auto", search.backend, stop=clock, warm_start=plain, options=search.options,
        on_progress=search.on_progress,
    )  # fmt: skip
    assert result.schedule is not None  # without a budget the reference order is a schedule
    return result, result.schedule if (result.peak or 0) < graph.reference_peak else Schedule.reference(graph)


def _not_worse(found: Deployment, file: ModelFile) -> Deployment:
    """Return the deployment, with the given file if that needs no more."""
    return found if found.after < found.before else replace(found, file=file, after=found.before)
