"""Base of schedule formats, and the registry of those installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.formats import Formats, Source
from remat.schedule.schedule import Schedule

#: Formats of this package, as in its entry points, so that they work without installed metadata.
BUILT_IN = {
    "remat-json": "remat.schedule.formats.remat_json:FORMAT",
    "checkmate": "remat.schedule.formats.checkmate:FORMAT",
    "rockmate": "remat.schedule.formats.rockmate:FORMAT",
    "plan": "remat.schedule.formats.plan_files:JSON",
    "plan-text": "remat.schedule.formats.plan_files:TEXT",
    "hlo": "remat.schedule.formats.hlo:FORMAT",
    "rotor": "remat.schedule.formats.rotor:FORMAT",
    "saved-set": "remat.schedule.formats.saved_set:FORMAT",
    "plain-list": "remat.schedule.formats.plain_list:FORMAT",
}


@dataclass(frozen=True)
class ScheduleFormat:
    """File format of schedules; third parties register theirs in the group ``remat.schedule_formats``."""

    name: str
    description: str
    recognizes: Callable[[Source], bool] | None = None
    """Returns True if the content of a :class:`~remat.io.formats.Source` has this format; None: write-only format."""
    read: Callable[[Source, ComputeGraph | None], Schedule] | None = None
    """Returns the schedule in a recognised source, given its graph if known; raises FormatError or ScheduleError with
    the place, without the file name.
    """
    write: Callable[[Schedule, ComputeGraph | None], str] | None = None
    """Returns the text of a schedule, given its graph if known; raises FormatError or ScheduleError if the format
    cannot express it.
    """
    write_model: Callable[[Schedule, ComputeGraph | None, Source], str] | None = None
    """Returns the text of a model file in the order of a schedule, given the file that the graph was read from; raises
    as `write` does. For formats that contain more than a graph.
    """


#: All schedule formats: those of this package first, the least specific (plain list) last.
schedule_formats = Formats("schedule", ScheduleFormat, BUILT_IN, last=1)


def needed_graph(graph: ComputeGraph | None, what: str) -> ComputeGraph:
    """Return `graph`; raise FormatError if it is missing, for formats that need one."""
    if graph is None:
        raise FormatError(f"{what} can be read only together with its graph; name the graph", "needs-graph")
    return graph


def refuse_offload(at: str, what: str) -> NoReturn:
    """Refuse a schedule with an operation that moves a value between device and host.

    Raises
    ------
    FormatError
    """
    raise FormatError(f"{at} {what}; schedules that offload cannot be read yet, only those that recompute", "offload")
