"""Results of other tools as outcomes of cells: each file is validated when it enters a study."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remat.errors import RematError
from remat.graphs import ComputeGraph
from remat.schedule.formats.remat_json import schedule_to_text
from remat.schedule.io import read_schedule
from remat.studies.solving import Outcome, problem_of, row_of_schedule

#: Status of a file that is missing, unreadable or not valid.
REFUSED = "refused"


def outcome_of_file(pattern: str, graph: ComputeGraph, run: Mapping[str, Any]) -> Outcome:
    """Return the schedule in a file as the outcome of a cell, or the reason why it is refused.

    Parameters
    ----------
    pattern : str
        Path; ``*`` and ``?`` match one file.
    run : mapping
        As :attr:`remat.studies.plan.Cell.run`; its problem has budget and rules.
    """
    found = sorted(glob.glob(pattern))  # noqa: PTH207 - the folder of a pattern may have no file
    if len(found) != 1:
        why = "is missing" if not found else f"matches {len(found)} files"
        return Outcome({"status": REFUSED, "message": f"{pattern} {why}"})
    name = Path(found[0]).name
    problem = problem_of(graph, run)
    try:
        schedule = read_schedule(found[0], graph)
        certificate = problem.validate(schedule)
    except RematError as error:
        return Outcome({"status": REFUSED, "message": str(error)})
    if not certificate.accepted:
        return Outcome({"status": REFUSED, "message": f"{name}: {certificate.first}"})
    row = row_of_schedule(problem, certificate)
    return Outcome(
        {**row, "source": schedule.source, "message": f"read from {name}"}, schedule=schedule_to_text(schedule)
    )
