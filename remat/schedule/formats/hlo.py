"""Schedules of XLA: the order of a scheduled HLO module, with rematerialisation clones as recomputations.

The same text is also a graph (:mod:`remat.graphs.formats.hlo`); frees are implied.
"""

from __future__ import annotations

from remat.errors import FormatError, GraphError
from remat.graphs import ComputeGraph
from remat.graphs.formats.hlo import HloProgram, program_from_text, recognizes
from remat.graphs.formats.hlo.writing import scheduled_text
from remat.io.formats import Source
from remat.runtime.text import short
from remat.schedule.formats.base import ScheduleFormat
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import simulate_valid


def schedule_of_program(program: HloProgram, graph: ComputeGraph | None = None) -> Schedule:
    """Return the schedule of a program, for its own graph or for one that has all its ops.

    `graph` may be that of the same module before XLA's rematerialisation. Raise FormatError if the program is not
    scheduled, or runs an op that `graph` does not have.
    """
    if not program.is_scheduled:
        raise FormatError("the module lacks is_scheduled=true, so its text is no order of execution")
    graph = program.graph if graph is None else graph
    lacking = next((name for name in program.steps if name not in graph.op_index), None)
    if lacking is not None:
        raise FormatError(f"the module runs {short(lacking)}, which graph {graph.name!r} lacks")
    order = [graph.op_index[name] for name in program.steps]
    return Schedule.of_computes(graph, order, source="XLA")


def _read(source: Source, graph: ComputeGraph | None) -> Schedule:
    try:
        program = program_from_text(source.text)
    except GraphError as error:
        raise FormatError(str(error)) from None
    return schedule_of_program(program, graph)


def _write(schedule: Schedule, graph: ComputeGraph | None, model: Source) -> str:
    if not recognizes(model):
        raise FormatError(f"{model.name} is no text of an HLO module, which alone can be written as one", "hlo-model")
    schedule.in_one_memory("HLO text")
    if schedule.has_frees:
        raise FormatError("HLO text cannot say where tensors are freed; leave the frees to be implied", "frees")
    program = program_from_text(model.text)
    simulate_valid(program.graph, schedule)
    text = scheduled_text(model.text, schedule.computes())
    if list(program_from_text(text).steps) != schedule.computes():
        raise FormatError("the clones of this schedule are other ops when the text is read again", "hlo-clones")
    return text


FORMAT = ScheduleFormat(
    name="hlo",
    description="text of a scheduled XLA HLO module; clones of its rematerialisation are recomputations",
    recognizes=recognizes,
    read=_read,
    write_model=_write,
)
