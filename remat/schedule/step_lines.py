"""Lines of the steps of a schedule in the text file it was read from."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from remat.errors import RematError
from remat.graphs import ComputeGraph
from remat.io.files import is_standard_stream, read_text
from remat.schedule.certificate import Violation
from remat.schedule.formats.rotor import operation_of_steps, operations_of_text
from remat.schedule.schedule import WORDS, Schedule

_STEP = re.compile(rf'\s*\["(?:{"|".join(WORDS)})", "')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPERATION = re.compile(r"[^\s,\[\]]+")


@dataclass(frozen=True)
class StepLines:
    """File of a schedule and the line of each of its steps, from 1; no lines if they are unknown."""

    file: str
    lines: list[int]

    @classmethod
    def of(cls, path: str | os.PathLike[str], format_name: str, schedule: Schedule, graph: ComputeGraph) -> StepLines:
        """Return the lines of the file at `path`; see :func:`step_lines`."""
        return cls(Path(path).name, step_lines(path, format_name, schedule, graph))

    def number(self, step: int) -> int | None:
        """Return the line of a step; None if unknown."""
        return self.lines[step] if self.lines else None


def described(violation: Violation, lines: StepLines | None) -> str:
    """Return the message of a violation with the line of its step, if known."""
    number = None if lines is None or violation.step is None else lines.number(violation.step)
    if lines is None or number is None:
        return violation.message
    return f"{violation.message} (line {number} of {lines.file})"


def step_lines(
    path: str | os.PathLike[str], format_name: str, schedule: Schedule, graph: ComputeGraph
) -> list[int]:  # fmt: skip
    """Return the line of each step in the file at `path`, from 1; empty if the format has none or they are unknown."""
    of_text = _READERS.get(format_name)
    if of_text is None or is_standard_stream(path):
        return []
    try:
        lines = of_text(read_text(path), graph)
    except RematError:  # the file has changed
        return []
    return lines if len(lines) == len(schedule) else []


def _of_steps(text: str, graph: ComputeGraph) -> list[int]:
    """Return the lines of a file of this project that has one step per line."""
    return [number for number, line in enumerate(text.split("\n"), 1) if _STEP.match(line)]


def _of_names(text: str, graph: ComputeGraph) -> list[int]:
    """Return the lines of the names in a plain list, as text or JSON."""
    if text.lstrip().startswith("["):
        return _lines_of(_STRING, text)
    lines = enumerate(text.split("\n"), 1)
    return [number for number, line in lines if (name := line.strip()) and not name.startswith("#")]


def _of_operations(text: str, graph: ComputeGraph) -> list[int]:
    """Return the line of the operation of Rotor that each step belongs to."""
    lines = _lines_of(_OPERATION, text)
    return [lines[number] for number in operation_of_steps(graph, operations_of_text(text))]


def _lines_of(pattern: re.Pattern[str], text: str) -> list[int]:
    lines, line, end = [], 1, 0
    for match in pattern.finditer(text):
        line += text.count("\n", end, match.start())
        end = match.start()
        lines.append(line)
    return lines


_READERS: dict[str, Callable[[str, ComputeGraph], list[int]]] = {
    "remat-json": _of_steps, "plain-list": _of_names, "rotor": _of_operations,
}  # fmt: skip
