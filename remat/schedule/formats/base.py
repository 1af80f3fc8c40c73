"""What a schedule format is, and the registry of all that are installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.formats import Formats, Source
from remat.schedule.schedule import Schedule

#: The formats of this package, as in its entry points: they work without installed metadata, too.
BUILT_IN = {
    "remat-json": "remat.schedule.formats.remat_json:FORMAT",
    "checkmate": "remat.schedule.formats.checkmate:FORMAT",
    "rockmate": "remat.schedule.formats.rockmate:FORMAT",
    "plan": "remat.schedule.formats.plan_files:JSON",
    "plan-text": "remat.schedule.formats.plan_files:TEXT",
    "hlo": "remat.schedule.formats.hlo:FORMAT",
    "rotor": "remat.schedule.formats.rotor:FORMAT",
    "plain-list": "remat.schedule.formats.plain_list:FORMAT",
}


@dataclass(frozen=True)
class ScheduleFormat:
    """A file format of schedules; third parties register theirs in the group ``remat.schedule_formats``.

    Attributes
    ----------
    name, description : str
    recognizes : callable, optional
        Whether a :class:`~remat.io.formats.Source` is in this format, by its content; None: the format is never read.
    read : callable, optional
        The schedule of a recognised source, with the graph it is for where that is known; raises FormatError or
        ScheduleError that name the place, not the file.
    write : callable, optional
        The text of a schedule, given the graph too where that is known; raises FormatError or ScheduleError where the
        format cannot say it.
    write_model : callable, optional
        The text of the model that the graph was read from, given as the source of its file, in the order of a schedule;
        raises as `write` does. For formats that say more than a graph knows.
    """

    name: str
    description: str
    recognizes: Callable[[Source], bool] | None = None
    read: Callable[[Source, ComputeGraph | None], Schedule] | None = None
    write: Callable[[Schedule, ComputeGraph | None], str] | None = None
    write_model: Callable[[Schedule, ComputeGraph | None, Source], str] | None = None


#: All schedule formats, those of this package first, the least particular (plain list) last.
schedule_formats = Formats("schedule", ScheduleFormat, BUILT_IN, last=1)


def needed_graph(graph: ComputeGraph | None, what: str) -> ComputeGraph:
    """`graph`, for formats that make no sense without; raises FormatError where it is missing."""
    if graph is None:
        raise FormatError(f"{what} is nothing without the graph it is for", "needs-graph")
    return graph


def refuse_offload(at: str, what: str) -> NoReturn:
    """Refuse a schedule for the operation at a place that moves a value between device and host.

    Raises
    ------
    FormatError
    """
    raise FormatError(f"{at} {what}; schedules that offload cannot be read yet, only those that recompute", "offload")
