"""Costs of ops from a measured profile: a CSV or JSON file with one set of costs per device, by op name.

CSV: the first line is ``op,us`` for one unnamed set in microseconds, or ``op,gpu [us],cpu [us]`` for several; each
further line is an op and its costs. An empty cell means that the device has no cost for the op.

JSON: ``{"format": "remat-costs", "version": 1, "sets": [{"device": "gpu", "unit": "us", "costs": {"op": 12}}]}``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from remat.errors import FormatError, GraphError
from remat.graphs.graph import COST_UNITS, MAX_TOTAL, ComputeGraph
from remat.io.documents import Document, Shape, check_header, decoded
from remat.io.files import parse_json, read_text, table_rows
from remat.runtime.text import LISTED, short

NAME = "remat-costs"
VERSION = 1
#: Units of a profile: those of graphs except ``none``.
UNITS = tuple(unit for unit in COST_UNITS if unit != "none")
#: Decimal alone would accept underscores and the digits of all scripts.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(inf(inity)?|s?nan[0-9]*)", re.ASCII | re.IGNORECASE)
_COLUMN = re.compile(r"(?P<device>.*\S)\s*\[(?P<unit>[^\[\]]*)\]")


@dataclass(frozen=True)
class CostSet:
    """Costs of ops on one device."""

    device: str
    """Empty if the profile names no device."""
    unit: str
    costs: Mapping[str, int]
    """In `unit`."""


@dataclass(frozen=True)
class Profile:
    """Content of a profile."""

    name: str
    """Name of the file, for messages."""
    sets: tuple[CostSet, ...]
    """At least one; devices differ."""

    def on(self, device: str | None = None) -> CostSet:
        """Return the costs on a device; None: on the only one.

        Raises
        ------
        FormatError
            If no device has that name, or there are several and none is named.
        """
        known = ", ".join(repr(each.device) for each in self.sets)
        if device is None:
            if len(self.sets) > 1:
                raise FormatError(
                    f"{self.name}: there are costs for several devices, name one of them: {known}", "device"
                )
            return self.sets[0]
        for each in self.sets:
            if each.device == device:
                return each
        raise FormatError(f"{self.name}: there are no costs for device {device!r}, only for {known}", "device")


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile from a CSV or JSON file; the content determines the format.

    Raises
    ------
    FormatError
        Naming the file and the line or the key: no header, an unknown unit, a duplicate op or device, or a cost that
        is not a number, negative, not finite, too large, or a fraction. The message for a fraction suggests a finer
        unit; costs are never rounded.
    """
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return _from_json(parse_json(text, str(path)), str(path))
    return _from_csv(text, str(path))


def with_costs(graph: ComputeGraph, profile: Profile, device: str | None = None) -> ComputeGraph:
    """Return `graph` with the costs and the unit of a profile.

    Parameters
    ----------
    device : str, optional
        Device whose costs to use; required if the profile has several.

    Raises
    ------
    FormatError
        If the profile does not have the device.
    GraphError
        Naming the first ops without a cost, or the first names in the profile that are not ops of the graph.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("two")
    >>> names = [b.op("a", size=4, cost=1), b.op("b", inputs=["a"], size=2, cost=1)]
    >>> measured = with_costs(b.build(), Profile("made here", (CostSet("gpu", "us", {"a": 12, "b": 30}),)))
    >>> measured.base_cost, measured.cost_unit
    (42, 'us')
    """
    chosen = profile.on(device)
    of_device = f" for device {chosen.device!r}" if chosen.device else ""
    missing = [name for name in graph.op_names if name not in chosen.costs]
    if missing:
        raise GraphError(
            f"{profile.name}: no cost{of_device} for {len(missing)} of the {len(graph.ops)} ops of graph "
            f"{graph.name!r}: {_some(missing)}",
            "costs",
        )
    unknown = [name for name in chosen.costs if name not in graph.op_index]
    if unknown:
        raise GraphError(
            f"{profile.name}: costs{of_device} for {len(unknown)} ops that graph {graph.name!r} does not have: "
            f"{_some(unknown)}",
            "costs",
        )
    ops = tuple(replace(op, cost=chosen.costs[op.name]) for op in graph.ops)
    return replace(graph, ops=ops, cost_unit=chosen.unit)


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:LISTED])) + (", ..." if len(names) > LISTED else "")


def _from_csv(text: str, name: str) -> Profile:
    rows = table_rows(text, name)
    header = [cell.strip() for cell in next(rows, (1, [""]))[1]]
    if len(header) < 2 or header[0] != "op":
        raise FormatError(f"{name}: line 1 must be 'op,us', or 'op,DEVICE [us],...' for several devices")
    columns: list[tuple[str, str, dict[str, int]]] = []
    for cell in header[1:]:
        match = _COLUMN.fullmatch(cell)
        device, unit = (match["device"], match["unit"].strip()) if match else ("", cell)
        columns.append((device, _unit(unit, f"{name}: line 1"), {}))
    sets = _distinct([CostSet(*column) for column in columns], f"{name}: line 1")
    lines: dict[str, int] = {}
    for line, (op, *cells) in rows:
        at = f"{name}: line {line}"
        if op in lines:
            raise FormatError(f"{at}: op {op!r} is on line {lines[op]} already")
        lines[op] = line
        for (_, unit, costs), cell in zip(columns, cells, strict=True):
            if cell.strip():
                costs[op] = _cost(cell.strip(), unit, f"{at}: the cost of op {op!r}")
    return Profile(name, sets)


def _distinct(sets: list[CostSet], at: str) -> tuple[CostSet, ...]:
    devices = [each.device for each in sets]
    if len(sets) > 1 and "" in devices:
        raise FormatError(f"{at}: with several sets of costs, each needs the name of its device")
    if len(set(devices)) < len(devices):
        twice = next(device for device in devices if devices.count(device) > 1)
        raise FormatError(f"{at}: device {twice!r} occurs twice")
    return tuple(sets)


Cost = Annotated[int | float, Shape("{at} must be a number", "")]


class SetDocument(Document):
    """Costs of ops on one device."""

    device: str = ""
    unit: str
    costs: dict[str, Cost]


class ProfileDocument(Document):
    """Costs of ops, with a set for each device."""

    format: Literal["remat-costs"]
    version: Literal[1]
    sets: list[SetDocument]


def _from_json(document: Any, name: str) -> Profile:
    try:
        check_header(document, NAME, VERSION, "; costs are a table op,us or a JSON file of costs")
        listed = decoded(ProfileDocument, document).sets
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None
    if not listed:
        raise FormatError(f"{name}: sets must be a list of at least one set of costs")
    sets = []
    for number, each in enumerate(listed):
        at = f"{name}: sets[{number}]"
        unit = _unit(each.unit, at)
        costs = {op: _cost(repr(value), unit, f"{at}: the cost of op {op!r}") for op, value in each.costs.items()}
        sets.append(CostSet(each.device, unit, costs))
    return Profile(name, _distinct(sets, name))


def _unit(unit: str, at: str) -> str:
    if unit not in UNITS:
        raise FormatError(f"{at}: unit {repr(unit)[:60]} is not one of {', '.join(UNITS)}")
    return unit


def _cost(text: str, unit: str, what: str) -> int:
    """Return the exact value of a whole number; refuse any other text."""
    if _NOT_FINITE.fullmatch(text):
        raise FormatError(f"{what} is not finite: {text[:60]}")
    if not _NUMBER.fullmatch(text):
        raise FormatError(f"{what} is not a number: {short(text)}")
    value = Decimal(text)
    if value < 0:
        raise FormatError(f"{what} is negative: {text[:60]}")
    if value.adjusted() > 30 or value >= MAX_TOTAL:
        raise FormatError(f"{what} is 2^62 or more: {text[:60]}")
    if value != value.to_integral_value():
        nanoseconds = value.scaleb(3)
        finer = (
            f"give the whole profile in ns, where it is {nanoseconds.to_integral_value():f}"
            if unit == "us" and nanoseconds == nanoseconds.to_integral_value()
            else "costs are whole numbers, so count in a finer unit"
        )
        raise FormatError(f"{what} is {text[:60]} {unit}, and nothing is rounded: {finer}")
    return int(value)


def load_profiled(graph: ComputeGraph, costs: str | Path | None, device: str | None) -> ComputeGraph:
    """Return `graph` with the costs from a file, if one is given; for the command line and the configuration.

    Raises
    ------
    FormatError
        As :func:`read_profile`, and for a device without a file.
    GraphError
        As :func:`with_costs`.
    """
    if costs is None:
        if device is not None:
            raise FormatError(f"device {device!r} is named, but no file of costs (--costs FILE)")
        return graph
    return with_costs(graph, read_profile(costs), device)
