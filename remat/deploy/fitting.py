"""Memory of a device: what a deployed model needs of it, what stands at the peak, and what partial execution brings."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from remat.deploy.deployment import Deployment
from remat.deploy.program_file import ProgramFile
from remat.deploy.runs import is_installed, run_models
from remat.deploy.runtimes import ModelFile, Runtime
from remat.deploy.tflite_file import TfliteFile
from remat.errors import RematError
from remat.graphs.formats.tflite.assembly import QUANTISED, Assembly
from remat.ordering.partial_execution import PartialExecution, partial_execution
from remat.ordering.row_execution import RowExecution, row_execution
from remat.runtime.deadline import Deadline
from remat.schedule import validate

#: Most seconds for each estimate of partial execution, and for measuring the runtime's own data.
PARTS_SECONDS, MEASURE_SECONDS = 20.0, 60.0


@dataclass(frozen=True)
class Fit:
    """Need of a model, and its peak, in a memory; sizes are in bytes.

    Attributes
    ----------
    memory : int
        Size of the memory.
    needed : int
        Need of the deployed model, with the data of the runtime.
    least : int
        No order and no addresses need less.
    runtime_data : int or None
        Bytes that TensorFlow Lite Micro keeps for its own structures, measured on this machine; None: not counted.
    op : str
        Op at the peak, as in the graph of the model.
    held : tuple of (str, int)
        Tensors held there, largest first, as the runtime counts them.
    scratch : int
        Workspace of the op.
    in_place : int
        Bytes that `held` counts twice, since outputs lie on inputs.
    parts : PartialExecution or None
        Estimate for layers in parts of their channels, made only if the model does not fit; None also if nothing was
        found.
    rows : RowExecution or None
        Estimate for layers in bands of rows, likewise.
    """

    memory: int
    needed: int
    least: int
    runtime_data: int | None
    op: str
    held: tuple[tuple[str, int], ...]
    scratch: int
    in_place: int
    parts: PartialExecution | None = None
    rows: RowExecution | None = None

    @property
    def fits(self) -> bool:
        """True if the model needs no more than the memory."""
        return self.needed <= self.memory


def fit(file: ModelFile | ProgramFile, found: Deployment, memory: int) -> Fit:
    """Return what the deployed model `found` of `file` needs of a memory."""
    written = found.file
    data = None if isinstance(written, ProgramFile) or found.runtime is not Runtime.TFLM else runtime_data(written)
    schedule, graph = found.result.schedule, found.result.problem.graph
    assert schedule is not None
    certificate = validate(graph, schedule)
    apart = {*graph.inputs} if found.runtime is Runtime.ONNXRUNTIME else set()
    held = tuple((name, size) for name, size in certificate.live_at_peak if size and name not in apart)
    needed, least = found.after + (data or 0), found.bound + (data or 0)
    op = certificate.peak_op or ""
    scratch = graph.ops[graph.op_index[op]].workspace if op else 0
    parts, rows = None, None
    if needed > memory and not isinstance(file, ProgramFile):
        parts, rows = _estimates(file, memory - (data or 0))
    return Fit(
        memory, needed, least, data, op, held, scratch, certificate.in_place_at_peak,
        parts if parts is not None and parts.after < found.after else None,  # a rewritten model may need less
        rows if rows is not None and rows.after < found.after else None,
    )  # fmt: skip


def runtime_data(file: ModelFile) -> int | None:
    """Return the bytes of TensorFlow Lite Micro's own structures (the tail of its arena); None if not measured."""
    if not is_installed(Runtime.TFLM):
        return None
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        path = Path(folder) / "model.tflite"
        path.write_bytes(file.data)
        report = run_models(Runtime.TFLM, [path], Path(folder), invoke=False, seconds=MEASURE_SECONDS)[0]
    return report.get("tail")


def _estimates(file: ModelFile, goal: int) -> tuple[PartialExecution | None, RowExecution | None]:
    """Estimate what parts of channels bring, and bands of rows up to a goal in bytes.

    None if nothing, or if the shapes of the model do not allow it.
    """
    graph, width = file.graph, None
    parts: PartialExecution | None = None
    rows: RowExecution | None = None
    with suppress(RematError):  # an estimate must not stand in the way of the model
        if isinstance(file, TfliteFile):  # with descriptions of quantised layers, too
            graph = Assembly(file.tables[0], fold_views=True, control_flow=True, remarks=[], quantised=True).graph()
            width = 4 if any(entry.kind in QUANTISED for entry in file.tables[0].tensors) else None
        with suppress(RematError):
            parts = partial_execution(graph, Deadline.after(PARTS_SECONDS), accumulator_bytes=width)
        rows = row_execution(graph, Deadline.after(PARTS_SECONDS), goal)
    return parts, rows
