"""Schedule file of this project, version 1: a strict reader and a canonical writer.

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
from remat.schedule.schedule import Schedule

NAME = "remat-schedule"
VERSION = 1

_HEADER = ("graph", "graph_digest", "source")
Name = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH})]
Step = Annotated[
    tuple[Literal["compute", "free"], Name],
    Field(strict=False),
    Shape('step {number} is {value}, not ["compute", op] or ["free", tensor]', "a list of two strings"),
]


class ScheduleDocument(Document):
    """Steps that compute the ops of a graph and free its tensors.

    Without any free step, each value is freed right after its last use before it is computed again.
    """

    format: Literal["remat-schedule"]
    version: Literal[1]
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

    Raise FormatError for another format or version; for missing or unknown keys, wrong types, and steps that neither
    compute nor free, all listed with their places. Raise ScheduleError naming a step whose name is empty, overlong
    or unprintable.

    Examples
    --------
    >>> text = schedule_to_text(Schedule.from_steps([("compute", "a")], graph="g"))
    >>> schedule_from_document(json.loads(text)).graph
    'g'
    """
    check_header(document, NAME, VERSION)
    if isinstance(document.get("steps"), list):
        check_count(len(document["steps"]), "steps")
    found = decoded(ScheduleDocument, document)
    header = {key: _text(getattr(found, key), key) for key in _HEADER}
    return Schedule.from_steps(found.steps, **header, meta=found.meta)


def schedule_to_text(schedule: Schedule) -> str:
    """Return the canonical text of a schedule: same content, same text; one step per line; ASCII.

    Raise FormatError if `meta` has values that JSON cannot express.
    """
    names = [[json.dumps(name) for name in table] for table in (schedule.op_names, schedule.tensor_names)]
    words = ("compute", "free")
    pairs = zip(schedule.kinds.tolist(), schedule.targets.tolist(), strict=True)
    header = {key: getattr(schedule, key) for key in _HEADER}
    steps = Lines(f'["{words[kind]}", {names[kind][target]}]' for kind, target in pairs)
    return canonical({"format": NAME, "version": VERSION, **header, "steps": steps}, schedule.meta, "the schedule")


def _text(value: str, key: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which cannot be printed
        raise FormatError(f"{key} is not Unicode text: {short(value)}") from None
    return value


FORMAT = ScheduleFormat(
    name="remat-json",
    description="the schedule file of remat, version 1",
    recognizes=lambda source: source.looks_like_json and source.json.get("format") == NAME,
    read=lambda source, graph: schedule_from_document(source.json),
    write=lambda schedule, graph: schedule_to_text(schedule),
)
