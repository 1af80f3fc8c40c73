"""Expressions of a program whose values are worth a name, with code to paste."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from remat.jax.captured import Captured
from remat.jax.saved_names import SavedNames


class Expression(NamedTuple):
    """Place of an expression in a source file; columns count from 0."""

    file: str
    function: str
    line: int
    start: int
    end: int


@dataclass(frozen=True)
class Suggestion:
    """An expression whose values should have a name.

    Attributes
    ----------
    file, function : str
    line : int
    name : str
    code : str
        The line with ``checkpoint_name``; empty if the source is not at hand.
    size : int
        Bytes of all values of the expression.
    peak : int
        Certified peak if they are saved in addition to the names chosen, and earlier suggestions.
    overhead : float or None
        Extra cost in % then.
    """

    file: str
    function: str
    line: int
    name: str
    code: str
    size: int
    peak: int
    overhead: float | None

    def __str__(self) -> str:
        extra = "" if self.overhead is None else f", extra cost {self.overhead:.4g} %"
        code = f": {self.code}" if self.code else ""
        return (
            f"{self.file}:{self.line} ({self.function}): name {self.name!r} saves {self.size:,} bytes, peak "
            f"{self.peak:,} bytes{extra}{code}"
        )


def suggestions(captured: Captured, sets: SavedNames, chosen: frozenset[str], most: int) -> Iterator[Suggestion]:
    """Yield the expressions whose values, saved in addition, lower the cost most within the budget, one after another.

    Parameters
    ----------
    captured : Captured
        Trace that saves nothing, with an op for each ``checkpoint_name``.
    sets : SavedNames
        The sets of this trace.
    chosen : frozenset of str
        Names that are saved.
    most : int
        Number of suggestions.
    """
    candidates = _results(captured, frozenset(sets.recomputed))
    sizes = {tensor.name: tensor.size for tensor in captured.graph.tensors}
    taken, used = frozenset[str](), set(sets.names)
    now = sets.certificate(chosen)
    for _ in range(most):
        tried = [
            (certificate.cost, certificate.peak, place, certificate)
            for place, tensors in candidates.items()
            if (certificate := sets.certificate(chosen, taken | tensors)).accepted and certificate.cost < now.cost
        ]
        if not tried:
            return
        *_, place, now = min(tried, key=lambda each: each[:2])
        tensors = candidates.pop(place)
        taken |= tensors
        name, code = _named(place, used)
        used.add(name)
        yield Suggestion(
            place.file, place.function, place.line, name, code, sum(sizes[each] for each in tensors), now.peak,
            now.overhead,
        )  # fmt: skip


def _results(captured: Captured, recomputed: frozenset[str]) -> dict[Expression, frozenset[str]]:
    """Return the recomputed tensors that are the value of an expression: other expressions read them."""
    graph = captured.graph
    places = {op.name: _place(each) for op, each in zip(graph.ops, captured.equations, strict=True)}
    read_elsewhere: set[str] = set()
    writer = {tensor: op.name for op in graph.ops for tensor in op.outputs}
    for op in graph.ops:
        if op.phase != "backward":
            read_elsewhere.update(each for each in op.inputs if places[writer[each]] != places[op.name])
    found: dict[Expression, set[str]] = {}
    for op in graph.ops:
        place = places[op.name]
        if place is not None and op.name in recomputed and op.type != "name":
            found.setdefault(place, set()).update(read_elsewhere.intersection(op.outputs))
    return {place: frozenset(tensors) for place, tensors in found.items() if tensors}


def _place(equation: Any) -> Expression | None:
    """Return the innermost expression of the user that made an equation.

    The module with this information is private in JAX, so it may be missing.
    """
    try:
        from jax._src import source_info_util

        frame = source_info_util.user_frame(equation.source_info.traceback)
    except (ImportError, AttributeError, TypeError):
        return None
    if frame is None:
        return None
    end = frame.end_column if frame.end_line == frame.start_line else 0
    function = frame.function_name.rpartition(".")[2]
    return Expression(frame.file_name, function, frame.start_line, frame.start_column, end)


def _named(place: Expression, used: set[str]) -> tuple[str, str]:
    """Return a new name for an expression, and its line with ``checkpoint_name``."""
    text = linecache.getline(place.file, place.line).rstrip().encode()
    inner = text[place.start : place.end].decode(errors="replace")
    target = re.match(r"\s*(\w+)\s*=[^=]", text.decode(errors="replace"))
    base = name = f"{place.function.strip('<>')}_{target[1] if target else 'value'}"
    number = 2
    while name in used:
        name, number = f"{base}_{number}", number + 1
    if not inner:
        return name, ""
    before, after = text[: place.start].decode(), text[place.end :].decode()
    return name, f'{before}checkpoint_name({inner}, "{name}"){after}'.strip()
