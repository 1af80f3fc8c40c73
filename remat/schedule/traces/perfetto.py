"""Trace of a schedule in Perfetto's own format, in which all tracks of memory share one scale.

The messages are those of ``protos/perfetto/trace`` in Perfetto's repository: a ``Trace`` of ``TracePacket``, each with
a ``TrackDescriptor`` or a ``TrackEvent``. Chrome's format has no field for a common scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

from remat.graphs import ComputeGraph
from remat.schedule.machine import Machine
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import Counting
from remat.schedule.traces.steps import (
    Counter,
    Slice,
    StepTimes,
    allocation_times,
    changes,
    counters,
    slices,
    trace_facts,
    trace_title,
    tracks,
)
from remat.schedule.traces.timeline import Timeline

#: Numbers of the track of the graph and the next one, of slices. Counters follow; 0 is Perfetto's global track.
_GRAPH, _FIRST_TRACK = 1, 2
_EXPLICIT_ORDER, _SIZE_BYTES = 3, 3
_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4


def perfetto_trace(
    graph: ComputeGraph,
    schedule: Schedule,
    budget: int | None = None,
    *,
    machine: Machine | None = None,
    **counting: Unpack[Counting],
) -> bytes:
    """Return the trace as a serialized ``Trace`` message; same schedule, same bytes.

    Slices, arguments and times are those of :func:`remat.schedule.traces.chrome.chrome_trace`, exact to the nanosecond.
    Below a track of the graph lie the counters *memory*, *budget* and one for each kind of tensor held, all on the
    same scale, and the slices *compute* and *recompute*. With a machine, *host memory* has that scale too, and the
    transfers are slices on the tracks *to host* and *from host*.

    Parameters
    ----------
    schedule : Schedule
        A valid schedule.
    budget : int, optional
        Bytes.
    machine : Machine, optional
        Machine whose links move tensors; a schedule with such steps needs it.
    **counting
        As for :func:`remat.schedule.simulate.simulate`.

    Raises
    ------
    ScheduleError, ProblemError
        As :func:`remat.schedule.traces.chrome.chrome_trace`.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> trace = perfetto_trace(unit_chain(2), Schedule.reference(unit_chain(2)))
    >>> b"memory" in trace, b"recompute" in trace
    (True, True)
    """
    timeline = Timeline.of(graph, schedule, **counting)
    times = StepTimes.of(timeline.run, machine)
    at, end = allocation_times(timeline, times), times.clock[-1]
    held = (Counter(kind, changes(at, values.tolist(), end)) for kind, values in timeline.held().items())
    shown = [*counters(timeline, times, budget), *held]
    facts = trace_facts(timeline, times, schedule.source, budget, machine)
    about = "\n".join(f"{key}: {value}" for key, value in facts.items() if value is not None)
    names = tracks(machine)
    packets = [
        _track(_GRAPH, trace_title(graph, times), _number(11, _EXPLICIT_ORDER), _text(14, about)),
        *_counters(shown, _FIRST_TRACK + len(names)),
        *_slices(slices(timeline, times), names, rank=len(shown)),
    ]
    return b"".join(_message(1, packet) for packet in packets)


def _counters(counters: Sequence[Counter], first: int) -> Iterator[bytes]:
    """Yield the tracks of bytes, numbered from `first`, and their values."""
    for rank, (name, values) in enumerate(counters):
        track = first + rank
        scale = _message(8, _number(3, _SIZE_BYTES), _text(7, "bytes"))  # y_axis_share_key
        yield _track(track, name, _number(5, _GRAPH), _number(12, rank), scale)
        for at, value in values:
            yield _event(at, _COUNTER, track, _number(30, value))


def _slices(found: Iterable[Slice], names: Sequence[str], rank: int) -> Iterator[bytes]:
    """Yield the tracks of slices, and the begin and end of each slice."""
    for number, name in enumerate(names):
        yield _track(_FIRST_TRACK + number, name, _number(5, _GRAPH), _number(12, rank + number))
    for where, begin, end, name, category, facts in found:
        track = _FIRST_TRACK + names.index(where)
        notes = (_message(4, *_annotation(key, value)) for key, value in facts.items())
        yield _event(begin, _SLICE_BEGIN, track, _text(23, name), _text(22, category), *notes)
        yield _event(end, _SLICE_END, track)


def _track(number: int, name: str, *fields: bytes) -> bytes:
    """Return a packet with a ``TrackDescriptor``."""
    return _message(60, _number(1, number), _text(2, name), *fields) + _SEQUENCE


def _event(at: int, kind: int, track: int, *fields: bytes) -> bytes:
    """Return a packet with a ``TrackEvent`` at a time in nanoseconds."""
    return _number(8, at) + _message(11, _number(9, kind), _number(11, track), *fields) + _SEQUENCE


def _annotation(name: str | None, value: Any) -> Iterable[bytes]:
    """Yield the fields of a ``DebugAnnotation``: a string, an integer or a list of those."""
    if name is not None:
        yield _text(10, name)
    if isinstance(value, list):
        for each in value:
            yield _message(12, *_annotation(None, each))
    else:
        yield _number(4, value) if isinstance(value, int) else _text(6, value)


def _number(field: int, value: int) -> bytes:
    """Return a field with a non-negative integer."""
    return _varint(field << 3) + _varint(value)


def _text(field: int, text: str) -> bytes:
    """Return a field with a string; lone surrogates, which UTF-8 lacks, become question marks."""
    return _message(field, text.encode(errors="replace"))


def _message(field: int, *parts: bytes) -> bytes:
    """Return a field with a string or an embedded message."""
    content = b"".join(parts)
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Return an integer in groups of seven bits, lowest first; all but the last have the high bit."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


#: Writer of all packets; Perfetto requires one.
_SEQUENCE = _number(10, 1)
