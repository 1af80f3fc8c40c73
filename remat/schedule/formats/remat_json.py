"""Schedule file of this project, versions 1 and 2: a strict reader and a canonical writer.

Version 2 has steps that move tensors between device and host; a schedule without them is written in version 1.

The JSON Schema of the format is ``schedule.schema.json`` in this folder.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from remat.errors import FormatError
from remat.graphs.graph import MAX_NAME_LENGTH
from remat.io.documents import Document, Lines, Shape, canonical, check_header, decoded
from remat.io.limits import check_count
from remat.runtime.text import short
from remat.schedule.formats.base import ScheduleFormat
from remat.schedule.schedule import WORDS, Schedule, StepKind

NAME = "remat-schedule"
#: Versions without and with steps that move tensors.
VERSION, VERSION_WITH_TRANSFERS = 1, 2

_HEADER = ("graph", "graph_digest", "source")
Name = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH})]
Step = Annotated[
    tuple[Literal["compute", "free", "offload", "fetch", "discard"], Name],
    Field(strict=False),
    Shape(
        'step {number} is {value}; a step is ["compute", op], or free, offload, fetch or discard with a tensor',
        "a list of two strings",
    ),
]


class ScheduleDocument(Document):
    """Steps that compute the ops of a graph and free its tensors; in version 2 also those that move tensors.

    Without any free step, each value is freed right after its last use before it is computed or fetched again.
    """

    format: Literal["remat-schedule"]
    version: Literal[1, 2]
    """2 if a step offloads, fetches or discards."""
    steps: list[Step]
    """Each step: what it does, and the name of an op or a tensor."""
    graph: str = ""
    """Name of the graph; empty when unknown."""
    graph_digest: str = ""
    """SHA-256 (hex) of the graph; empty when unknown."""
    source: str = ""
    """Method or file that the schedule comes from."""
    meta: dict[str, Any] = {}
    """Further data."""


def schedule_from_document(document: Any) -> Schedule:
    """Return the schedule in a parsed JSON document in format ``remat-schedule``.

    Raise FormatError for another format or version; for missing or unknown keys, wrong types, and steps of unknown
    kinds, all listed with their places; for steps that move tensors in version 1. Raise ScheduleError naming a step
    whose name is empty, overlong or unprintable.

    Examples
    --------
    >>> text = schedule_to_text(Schedule.from_steps([("compute", "a")], graph="g"))
    >>> schedule_from_document(json.loads(text)).graph
    'g'
    """
    check_header(document, NAME, (VERSION, VERSION_WITH_TRANSFERS))
    if isinstance(document.get("steps"), list):
        check_count(len(document["steps"]), "steps")
    found = decoded(ScheduleDocument, document)
    header = {key: _text(getattr(found, key), key) for key in _HEADER}
    schedule = Schedule.from_steps(found.steps, **header, meta=found.meta)
    if schedule.has_transfers and found.version == VERSION:
        step = int((schedule.kinds > StepKind.FREE).argmax())
        raise FormatError(
            f"step {step} is {list(found.steps[step])!r}, which needs version 2, not {VERSION}", "version"
        )
    return schedule


def schedule_to_text(schedule: Schedule) -> str:
    """Return the canonical text of a schedule: same content, same text; one step per line; ASCII.

    Raise FormatError if `meta` has values that JSON cannot express.
    """
    ops, tensors = ([json.dumps(name) for name in table] for table in (schedule.op_names, schedule.tensor_names))
    names = (ops, *[tensors] * (len(WORDS) - 1))
    pairs = zip(schedule.kinds.tolist(), schedule.targets.tolist(), strict=True)
    header = {key: getattr(schedule, key) for key in _HEADER}
    steps = Lines(f'["{WORDS[kind]}", {names[kind][target]}]' for kind, target in pairs)
    version = VERSION_WITH_TRANSFERS if schedule.has_transfers else VERSION
    return canonical({"format": NAME, "version": version, **header, "steps": steps}, schedule.meta, "the schedule")


def _text(value: str, key: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which cannot be printed
        raise FormatError(f"{key} is not Unicode text: {short(value)}") from None
    return value


FORMAT = ScheduleFormat(
    name="remat-json",
    description="the schedule file of remat, versions 1 and 2",
    recognizes=lambda source: source.looks_like_json and source.json.get("format") == NAME,
    read=lambda source, graph: schedule_from_document(source.json),
    write=lambda schedule, graph: schedule_to_text(schedule),
)
