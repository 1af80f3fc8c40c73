"""The schedule file of this project, version 1: a strict reader and a canonical writer.

The JSON Schema of the format is ``schedule.schema.json`` beside this file.
"""

from __future__ import annotations

import json
from typing import Any

from remat.errors import FormatError
from remat.io.formats import Source
from remat.io.text import short
from remat.schedule.formats.base import ScheduleFormat
from remat.schedule.schedule import Schedule

NAME = "remat-schedule"
VERSION = 1

_HEADER = ("graph", "graph_digest", "source")
_KEYS = frozenset(("format", "version", *_HEADER, "steps", "meta"))


def schedule_from_document(document: Any) -> Schedule:
    """The schedule of a parsed JSON document in format ``remat-schedule``.

    Raises
    ------
    FormatError
        For another format or version, missing or unknown keys and wrong types; the message names the place.
    ScheduleError
        Naming a step that neither computes nor frees.

    Examples
    --------
    >>> text = schedule_to_text(Schedule.from_steps([("compute", "a")], graph="g"))
    >>> schedule_from_document(json.loads(text)).graph
    'g'
    """
    if type(document) is not dict:
        raise FormatError(f"the document must be an object, not {short(document)}")
    if document.get("format") != NAME:
        raise FormatError(f"format is {short(document.get('format'))}, not {NAME!r}")
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise FormatError(f"version is {short(document.get('version'))}; this program reads version {VERSION}")
    for key in document:
        if key not in _KEYS:
            raise FormatError(f"unknown key {short(key)}")
    if type(document.get("steps")) is not list:
        raise FormatError(f"steps must be a list, not {short(document.get('steps'))}")
    header: dict[str, Any] = {key: _text(document.get(key, ""), key) for key in _HEADER}
    meta = document.get("meta", {})
    if type(meta) is not dict:
        raise FormatError(f"meta must be an object, not {short(meta)}")
    for number, step in enumerate(document["steps"]):
        if type(step) is not list:
            raise FormatError(f"steps[{number}] must be a list of two strings, not {short(step)}")
    return Schedule.from_steps(document["steps"], **header, meta=meta)


def schedule_to_text(schedule: Schedule) -> str:
    """The canonical text of a schedule: same content, same text; one step per line; ASCII.

    Raises
    ------
    FormatError
        If `meta` holds something that JSON cannot express.
    """
    parts = [f'"format": "{NAME}"', f'"version": {VERSION}']
    parts += [f'"{key}": {json.dumps(getattr(schedule, key))}' for key in _HEADER]
    names = [[json.dumps(name) for name in table] for table in (schedule.op_names, schedule.tensor_names)]
    words = ("compute", "free")
    pairs = zip(schedule.kinds.tolist(), schedule.targets.tolist(), strict=True)
    steps = ",\n".join([f'["{words[kind]}", {names[kind][target]}]' for kind, target in pairs])
    parts.append(f'"steps": [\n{steps}\n]' if steps else '"steps": []')
    try:
        meta = json.dumps(dict(schedule.meta), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"meta of the schedule is not JSON: {error}") from None
    parts.append(f'"meta": {meta}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _text(value: Any, key: str) -> str:
    if type(value) is not str:
        raise FormatError(f"{key} must be a string, not {short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which nobody can print
        raise FormatError(f"{key} is not Unicode text: {short(value)}") from None
    return value


def _recognizes(source: Source) -> bool:
    return source.looks_like_json and isinstance(source.json, dict) and source.json.get("format") == NAME


FORMAT = ScheduleFormat(
    name="remat-json",
    description="the schedule file of remat, version 1",
    recognizes=_recognizes,
    read=lambda source, graph: schedule_from_document(source.json),
    write=lambda schedule, graph: schedule_to_text(schedule),
)
