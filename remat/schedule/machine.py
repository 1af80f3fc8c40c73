"""Machines with two memories: a device, a host, and the links between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from remat.errors import ProblemError
from remat.graphs import ComputeGraph
from remat.runtime.sizes import NANOSECONDS, UNITS
from remat.runtime.text import counted, nearest, short

_NUMBER = r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)\s*"
_RATE = re.compile(rf"{_NUMBER}([A-Za-z]+)\s*/\s*s", re.ASCII)
_SIZE = re.compile(rf"{_NUMBER}([A-Za-z]*)", re.ASCII)
_LATENCY = re.compile(rf"{_NUMBER}(ns|us|ms|s)", re.ASCII)
_WORK = re.compile(rf"{_NUMBER}([kMGTP]?)(?:flops?|macs?|cycles?)?(?:\s*/\s*s)?", re.ASCII)
_RELATIVE = re.compile(rf"{_NUMBER}(%?)", re.ASCII)
_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}


@dataclass(frozen=True, slots=True)
class Machine:
    """A device with a host: its memory, and the links that move tensors between both.

    The device's memory is the budget of a problem. A transfer of *s* bytes takes the latency and then s divided by the
    rate of its link, rounded up to whole cost units; so the costs of a graph must be times, or `compute_rate` must say
    how many of its cost units the device does in a second.

    Attributes
    ----------
    write_rate, read_rate : int or None
        Bytes per second from device to host and from host to device; None: transfers take no time but the latency; 0:
        there is no such link.
    host : int or None
        Bytes of the host that copies may take; None: unlimited.
    latency : int
        Nanoseconds before the first byte of each transfer.
    full_duplex : bool
        True if both directions work at the same time; otherwise one link does one transfer after the other.
    compute_rate : int or None
        Cost units per second, for graphs whose costs are no times.
    link_power : int or None
        Power of a transfer in thousandths of that of computing; None: not known, so schedules have no energy.
    time_limit : int or None
        Longest time of a schedule, in thousandths of that of computing each op once; None: no limit.

    Raises
    ------
    ProblemError
        For a negative number or one of another type.

    Examples
    --------
    >>> print(Machine.parse("pcie4,host=64GiB"))
    24 GB/s, 68,719,476,736 bytes of host memory
    """

    write_rate: int | None = None
    read_rate: int | None = None
    host: int | None = None
    latency: int = 0
    full_duplex: bool = True
    compute_rate: int | None = None
    link_power: int | None = None
    time_limit: int | None = None

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "full_duplex"):
            value = getattr(self, name)
            wrong = isinstance(value, bool) or not isinstance(value, int) or value < (name == "compute_rate")
            if wrong and not (value is None and name != "latency"):
                raise ProblemError(f"{name} of a machine must be a whole number from 0, not {short(value)}", "machine")

    @classmethod
    def parse(cls, text: str) -> Machine:
        """Return the machine that a text describes: a preset, or settings, or a preset with settings.

        Parameters
        ----------
        text : str
            Parts separated by commas: first the name of one of :data:`PRESETS`, if any, then ``write=``, ``read=``
            (``24GB/s``, or ``unlimited``) or ``rate=`` for both, ``host=64GiB``, ``latency=10us``,
            ``duplex=half|full``, ``compute=312Tflop/s``, ``link-power=0.4`` (relative to computing), ``limit=120%`` (of
            the time of computing each op once).

        Raises
        ------
        ProblemError
            Naming the part that cannot be read.

        Examples
        --------
        >>> half = Machine.parse("rate=12GB/s, latency=10us, duplex=half, host=1GiB")
        >>> half.write_rate, half.latency, half.full_duplex
        (12000000000, 10000, False)
        """
        first, *rest = text.split(",")
        if "=" in first:
            machine, rest = cls(write_rate=0, read_rate=0), [first, *rest]
        elif first.strip() in PRESETS:
            machine = PRESETS[first.strip()]
        else:
            known, name = ", ".join(PRESETS), first.strip()
            measured = "; only the shell, configurations and remat.torch measure links" if name == MEASURED else ""
            raise ProblemError(
                f"machine {short(name)} is not one of {known}, nor settings such as rate=24GB/s,host=64GiB"
                f"{measured or nearest(name, PRESETS)}",
                "machine",
            )
        for part in rest:
            word, _, value = part.partition("=")
            setting = SETTINGS.get(word.strip())
            if setting is None:
                raise ProblemError(
                    f"{short(part.strip())} is no setting of a machine; there are {', '.join(SETTINGS)}", "machine"
                )
            machine = replace(machine, **setting(value.strip()))
        return machine

    @property
    def can_move(self) -> bool:
        """True if a tensor can go to the host and come back."""
        return self.write_rate != 0 and self.read_rate != 0 and self.host != 0

    def per_second(self, graph: ComputeGraph) -> int:
        """Return how many cost units of `graph` a second has.

        Raises
        ------
        ProblemError
            If the costs are no times and the machine has no compute rate.
        """
        if graph.cost_unit in NANOSECONDS:
            return NANOSECONDS["s"] // NANOSECONDS[graph.cost_unit]
        if self.compute_rate is None:
            raise ProblemError(
                f"costs of graph {graph.name!r} are in {graph.cost_unit!r}, no unit of time: say how many the machine "
                "does in a second (compute=312Tflop/s), or give measured costs",
                "no-times",
            )
        return self.compute_rate

    def transfer_times(self, graph: ComputeGraph) -> tuple[list[int | None], list[int | None]]:
        """Return the times to write and to read each tensor, in cost units; None where it cannot be moved.

        That is where there is no link, or for tensors named in ``meta["on_device"]`` of the graph: those that something
        else holds, such as the results of a forward pass.

        Raises
        ------
        ProblemError
            As :meth:`per_second` does.

        Examples
        --------
        >>> from remat.graphs.families import unit_chain
        >>> from dataclasses import replace
        >>> graph = replace(unit_chain(1), cost_unit="us")
        >>> Machine(write_rate=10**6, read_rate=None, latency=1500).transfer_times(graph)
        ([3, 3, 3], [2, 2, 2])
        """
        ticks = self.per_second(graph)
        delay = -(-self.latency * ticks // 10**9)
        stay = on_device(graph)

        def taken(rate: int | None) -> list[int | None]:
            if rate == 0:
                return [None] * len(graph.tensors)
            times = [delay + (0 if rate is None else -(-t.size * ticks // rate)) for t in graph.tensors]
            return [None if t.name in stay else time for t, time in zip(graph.tensors, times, strict=True)]

        return taken(self.write_rate), taken(self.read_rate)

    def transfer_energies(self, graph: ComputeGraph) -> tuple[list[int], list[int]]:
        """Return the energies to write and to read each tensor, in units of the energy of a cost unit of computing.

        A transfer takes its time at the power of the link, rounded up; 0 where it cannot be moved.

        Raises
        ------
        ProblemError
            If the machine has no `link_power`, or as :meth:`per_second` does.

        Examples
        --------
        >>> from remat.graphs.families import unit_chain
        >>> from dataclasses import replace
        >>> Machine.parse("rate=500kB/s,link-power=0.7").transfer_energies(replace(unit_chain(1), cost_unit="us"))
        ([2, 2, 2], [2, 2, 2])
        """
        power = self.link_power
        if power is None:
            raise ProblemError("the machine has no power of transfers; give one such as link-power=0.4", "no-energy")
        write, read = self.transfer_times(graph)
        return [-(-power * (t or 0) // 1000) for t in write], [-(-power * (t or 0) // 1000) for t in read]

    def longest_time(self, graph: ComputeGraph) -> int | None:
        """Return the longest time of a schedule in cost units, rounded down; None: no limit."""
        return None if self.time_limit is None else graph.base_cost * self.time_limit // 1000

    @classmethod
    def of(cls, given: Machine | str | Mapping[str, Any]) -> Machine:
        """Return a machine as it is, or read it from a text (:meth:`parse`) or a table of its settings.

        Raises
        ------
        ProblemError
            If it cannot be read.

        Examples
        --------
        >>> Machine.of({"preset": "pcie4", "host": "64GiB"}) == Machine.of("pcie4,host=64GiB")
        True
        """
        if isinstance(given, Machine):
            return given
        if isinstance(given, Mapping):
            given = cls.text_of(given)
        if not isinstance(given, str):
            raise ProblemError(f"a machine is written like pcie4,host=64GiB, not {short(given)}", "machine")
        return cls.parse(given)

    @staticmethod
    def text_of(table: Mapping[str, Any]) -> str:
        """Return a table of settings, with the first word as ``preset``, as a text for :meth:`parse`."""
        parts = [f"{name}={value}" for name, value in table.items() if name != "preset"]
        return ",".join([*([str(table["preset"])] if "preset" in table else []), *parts])

    @property
    def settings(self) -> str:
        """Text that :meth:`parse` reads as this machine.

        Examples
        --------
        >>> Machine.parse("pcie4,host=1GiB,duplex=half").settings
        'write=24000000000B/s,read=24000000000B/s,host=1073741824,duplex=half'
        """
        rates = {"write": self.write_rate, "read": self.read_rate}
        parts = [f"{name}={'unlimited' if rate is None else f'{rate}B/s'}" for name, rate in rates.items()]
        parts += [] if self.host is None else [f"host={self.host}"]
        parts += [f"latency={self.latency}ns"] if self.latency else []
        parts += [] if self.full_duplex else ["duplex=half"]
        parts += [] if self.compute_rate is None else [f"compute={self.compute_rate}"]
        parts += [] if self.link_power is None else [f"link-power={self.link_power / 1000:g}"]
        return ",".join([*parts, *([] if self.time_limit is None else [f"limit={self.time_limit / 10:g}%"])])

    def as_dict(self) -> dict[str, Any]:
        """Return the machine as JSON values; those that later versions added only where they are given."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        later = ("link_power", "time_limit")
        return {name: value for name, value in values.items() if name not in later or value is not None}

    def __str__(self) -> str:
        rates = [_rate_text(rate) for rate in (self.write_rate, self.read_rate)]
        links = rates[0] if rates[0] == rates[1] else f"{rates[0]} to the host, {rates[1]} back"
        host = "unlimited host memory" if self.host is None else f"{counted(self.host, 'byte')} of host memory"
        parts = [links, host]
        if self.latency:
            parts.append(f"latency {self.latency:,} ns")
        if not self.full_duplex:
            parts.append("half duplex")
        if self.link_power is not None:
            parts.append(f"transfers at {self.link_power / 1000:g} of the power of computing")
        if self.time_limit is not None:
            parts.append(f"at most {self.time_limit / 10:g} % of the time of each op once")
        return ", ".join(parts)


#: Key of a graph's ``meta`` with the names of the tensors that cannot be moved.
ON_DEVICE = "on_device"


def on_device(graph: ComputeGraph) -> frozenset[str]:
    """Return the tensors that cannot be moved: ``meta["on_device"]`` of the graph."""
    named = graph.meta.get(ON_DEVICE)
    listed = named if isinstance(named, list | tuple) else ()
    return frozenset(name for name in listed if isinstance(name, str))


def _rate_text(rate: int | None) -> str:
    return "unlimited rate" if rate is None else "no link" if rate == 0 else f"{rate / 1e9:g} GB/s"


def _scaled(pattern: re.Pattern[str], units: Mapping[str, int], text: str, example: str) -> int:
    """Return a number with a unit as a whole number of the smallest unit, rounded down."""
    match = pattern.fullmatch(text[:60])
    unit = match[2] if match else ""
    scale = units.get(unit, units.get(unit.lower()))
    if match is None or scale is None:
        raise ProblemError(f"{short(text)} is no such value of a machine; write {example}", "machine")
    return int(Fraction(match[1]) * scale)


def _rate(text: str) -> int | None:
    return None if text == "unlimited" else _scaled(_RATE, UNITS, text, "24GB/s, or unlimited")


def _host(text: str) -> int | None:
    return None if text == "unlimited" else _scaled(_SIZE, UNITS, text, "64GiB, or unlimited")


def _duplex(text: str) -> bool:
    if text not in ("half", "full"):
        raise ProblemError(f"{short(text)} is no such value of a machine; write half or full", "machine")
    return text == "full"


def _thousandths(text: str, unit: str, example: str) -> int:
    """Return a number, or a percentage, in thousandths, rounded down."""
    scale = {"": 1000, "%": 10}
    match = _RELATIVE.fullmatch(text[:60])
    if match is None or match[2] != unit:
        raise ProblemError(f"{short(text)} is no such value of a machine; write {example}", "machine")
    return int(Fraction(match[1]) * scale[unit])


#: Fields of a machine by setting, from the text of its value.
SETTINGS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "rate": lambda text: dict.fromkeys(("write_rate", "read_rate"), _rate(text)),
    "write": lambda text: {"write_rate": _rate(text)},
    "read": lambda text: {"read_rate": _rate(text)},
    "host": lambda text: {"host": _host(text)},
    "latency": lambda text: {"latency": _scaled(_LATENCY, NANOSECONDS, text, "10us")},
    "duplex": lambda text: {"full_duplex": _duplex(text)},
    "compute": lambda text: {"compute_rate": _scaled(_WORK, _PREFIXES, text, "312Tflop/s")},
    "link-power": lambda text: {"link_power": _thousandths(text, "", "0.4")},
    "limit": lambda text: {"time_limit": _thousandths(text, "%", "120%")},
}

#: Name, in the place of a preset, of a machine whose rates :mod:`remat.torch.links` measures.
MEASURED = "measured"
#: Links by name, with rates that programs reach; the host's memory is unlimited.
PRESETS: Mapping[str, Machine] = MappingProxyType(
    {
        "pcie3": Machine(12 * 10**9, 12 * 10**9),
        "pcie4": Machine(24 * 10**9, 24 * 10**9),
        "pcie5": Machine(50 * 10**9, 50 * 10**9),
        "nvlink-c2c": Machine(170 * 10**9, 400 * 10**9),
    }
)
