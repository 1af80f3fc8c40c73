"""Reading schedules in any registered format, writing them in our own."""

from __future__ import annotations

import os

from remat.errors import FormatError, ScheduleError
from remat.files import write_atomic
from remat.graphs import ComputeGraph
from remat.graphs.formats import Source
from remat.schedule.formats import schedule_formats
from remat.schedule.remat_json import schedule_to_text
from remat.schedule.schedule import Schedule


def read_schedule(path: str | os.PathLike[str], graph: ComputeGraph | None = None) -> Schedule:
    """The schedule in a file; its format is found from its content.

    Parameters
    ----------
    graph : ComputeGraph, optional
        The graph it is for; formats of other tools need it.

    Raises
    ------
    FormatError
        Naming the file, and the place where there is one.
    ScheduleError
        Naming the file and the step, for steps that make no sense.
    """
    source = Source.of_file(path)
    known = []
    for schedule_format in schedule_formats():
        known.append(schedule_format.name)
        if schedule_format.recognizes(source):
            try:
                return schedule_format.read(source, graph)
            except (FormatError, ScheduleError) as error:
                message = str(error)
                if not message.startswith(f"{source.name}: "):  # decoding the source names it already
                    message = f"{source.name}: {message}"
                raise type(error)(message) from None
    raise FormatError(f"{source.name}: not a schedule in any known format ({', '.join(known)})")


def write_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write a schedule file, version 1, whole or not at all.

    Raises
    ------
    FormatError
        Naming the file, if it cannot be written.
    """
    write_atomic(path, schedule_to_text(schedule))
