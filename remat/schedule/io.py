"""Readers and writers of schedule files in any registered format."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from remat.errors import FormatError, ScheduleError
from remat.graphs import ComputeGraph
from remat.graphs.io import as_graph
from remat.io.files import write_atomic
from remat.io.formats import Source, reading
from remat.runtime.text import expect
from remat.schedule.formats.base import ScheduleFormat, schedule_formats
from remat.schedule.schedule import Schedule

if TYPE_CHECKING:
    from remat.graphs.io import GraphLike

    #: Schedules, and files of them.
    ScheduleLike = Schedule | str | os.PathLike[str]

#: Suffixes of schedules that commands write; the suffix of a model or picture would be misleading.
SUFFIXES = (".json", "")


def read_schedule(path: str | os.PathLike[str], graph: ComputeGraph | None = None) -> Schedule:
    """Read the schedule in a file, or in standard input for ``-``; the content determines the format.

    Parameters
    ----------
    graph : ComputeGraph, optional
        Graph of the schedule; formats of other tools need it.

    Raises
    ------
    FormatError
        Naming the file, and the place if known.
    ScheduleError
        Naming the file and the step, for malformed steps.
    """
    return read_with_format(path, graph)[0]


def read_with_format(path: str | os.PathLike[str], graph: ComputeGraph | None = None) -> tuple[Schedule, str]:
    """Apply :func:`read_schedule`; return the schedule and the name of its format."""
    if graph is not None:
        expect(graph, ComputeGraph, "graph", FormatError)
    source = Source.of_file(path)
    with reading():
        return schedule_formats.read(source, lambda found: (_schedule(found, source, graph), found.name))


def _schedule(found: ScheduleFormat, source: Source, graph: ComputeGraph | None) -> Schedule:
    if found.read is None:
        raise FormatError(f"schedule format {found.name!r} cannot be read")
    return found.read(source, graph)


def as_schedule(schedule: ScheduleLike, graph: ComputeGraph) -> Schedule:
    """Return a schedule as it is, or that of a file; raise as :func:`read_schedule`, ScheduleError for another type."""
    if isinstance(schedule, str | os.PathLike):
        return read_schedule(schedule, graph)
    expect(schedule, Schedule, "schedule", ScheduleError)
    return schedule


def graph_of(graph: GraphLike) -> ComputeGraph:
    """Return a graph as :func:`remat.graphs.io.as_graph` does; raise ScheduleError for an object of another type."""
    if isinstance(graph, str | os.PathLike) or hasattr(graph, "is_directed"):
        return as_graph(graph)
    expect(graph, ComputeGraph, "graph", ScheduleError)
    return graph


def write_schedule(
    schedule: Schedule,
    path: str | os.PathLike[str],
    format_name: str = "remat-json",
    graph: ComputeGraph | None = None,
    model: str | os.PathLike[str] | None = None,
) -> None:
    """Write a schedule file, version 1, or a file in another registered format, atomically.

    Parameters
    ----------
    format_name : str
        Name of a registered format that can be written.
    graph : ComputeGraph, optional
        Graph of the schedule; some formats need it.
    model : path, optional
        File that the graph was read from; format ``"hlo"`` writes its text in the order of the schedule.

    Raises
    ------
    FormatError
        If the format does not exist, cannot express the schedule or needs `model`, or the file cannot be written.
    ScheduleError
        Naming the first violation, for formats that require a schedule that runs.
    """
    expect(schedule, Schedule, "schedule", FormatError)
    if graph is not None:
        expect(graph, ComputeGraph, "graph", FormatError)
    known = []
    for schedule_format in schedule_formats():
        if schedule_format.write is None and schedule_format.write_model is None:
            continue
        if schedule_format.name == format_name:
            return write_atomic(path, _text(schedule_format, schedule, graph, model))
        known.append(schedule_format.name)
    raise FormatError(
        f"no schedule format that can be written is called {format_name!r} (there are {', '.join(known)})", "no-writer"
    )


def _text(
    into: ScheduleFormat, schedule: Schedule, graph: ComputeGraph | None, model: str | os.PathLike[str] | None
) -> str:
    if into.write is not None:
        return into.write(schedule, graph)
    assert into.write_model is not None
    if model is None:
        raise FormatError(f"format {into.name!r} writes the file that the graph was read from: name it", "needs-model")
    return into.write_model(schedule, graph, Source.of_file(model))
