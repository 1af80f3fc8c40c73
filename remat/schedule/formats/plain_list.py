"""Plain list of the ops to compute, frees implied: lines of text, or a JSON list of names.

In text, each non-empty line is the name of one op; lines that start with ``#`` are comments.
"""

from __future__ import annotations

import json
import re

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.formats import Source
from remat.io.limits import check_count
from remat.runtime.text import short
from remat.schedule.formats.base import ScheduleFormat
from remat.schedule.schedule import Schedule


def schedule_from_list(text: str) -> Schedule:
    """Return the schedule that computes the ops of a text, one name per line.

    Raise FormatError if it names no op. Raise ScheduleError if a name is not printable.

    Examples
    --------
    >>> schedule_from_list(chr(10).join(["# a twice", "a", "b", "a"])).computes()
    ['a', 'b', 'a']
    """
    check_count(text.count("\n"), "lines")
    names = [line.strip() for line in text.split("\n")]
    return _of_names([name for name in names if name and not name.startswith("#")])


def _of_names(names: list[str]) -> Schedule:
    if not names:
        raise FormatError("the list names no op; write one name per line", "empty-list")
    return Schedule.from_steps([("compute", name) for name in names])


def _is_json_list(source: Source) -> bool:
    return re.match(rb"\s*\[\s*[\"\]]", source.data[:4096]) is not None


#: Lines of other formats, which are not names of ops: HLO and MLIR, plans, source code, DOT, XML, sequences of Rotor.
_FOREIGN = re.compile(
    rb"HloModule\b|remat-plan\s|(?:ENTRY|ROOT)\s|%?[\w.\-]+\s*=\s|(?:module|func|def|class|digraph|graph)\b.*[{(:]|import\s"
    rb"|.*\{$|\}|<[!?a-zA-Z]|(?:Fe|Fn|CF|Fck|Fall)_\d"
)


def _recognizes(source: Source) -> bool:
    """Recognise a JSON list, or text whose first lines belong to no other format."""
    head = source.data[:4096]
    if _is_json_list(source):
        return True
    if source.looks_like_json or head.lstrip().startswith(b"[") or b"\0" in head:
        return False
    lines = [line.strip() for line in head.split(b"\n")]
    return not any(_FOREIGN.match(line) for line in lines if line and not line.startswith(b"#"))


def _read(source: Source, graph: ComputeGraph | None) -> Schedule:
    if not _is_json_list(source):
        return schedule_from_list(source.text)
    names = source.json
    check_count(len(names), "ops")
    for number, name in enumerate(names):
        if type(name) is not str:
            raise FormatError(f"entry {number} of the list must be the name of an op, not {short(name)}", "list-entry")
    return _of_names(names)


def _write(schedule: Schedule, graph: ComputeGraph | None) -> str:
    schedule.in_one_memory("a plain list")
    if schedule.has_frees:
        raise FormatError("a plain list cannot say where tensors are freed; leave the frees to be implied", "frees")
    return json.dumps(schedule.computes(), indent=0) + "\n"


FORMAT = ScheduleFormat(
    name="plain-list",
    description="op names, one per line or as a JSON list; frees implied",
    recognizes=_recognizes,
    read=_read,
    write=_write,
)
