"""Checks of a file format: round trips, one-line errors for damaged files, and no claim to other files."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import SkipTest

from remat.errors import RematError
from remat.graphs import ComputeGraph
from remat.graphs.formats.base import GraphFormat, graph_formats
from remat.io.formats import Source
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.schedule import OrderRule, Schedule
from remat.schedule.formats.base import ScheduleFormat, schedule_formats
from remat.schedule.simulate import with_frees
from remat.testing.exhaustive import optimum
from remat.testing.graphs import random_graph
from remat.testing.kit import USUAL, Effort, fail, require

Format = GraphFormat | ScheduleFormat
FormatCheck = Callable[..., None]

#: Number of damaged copies of each sample.
DAMAGES = 150
#: Texts inserted to damage files.
WORDS = (b"-1", b"null", b"1.5", b"1e999", b"{}", b"[]", b"[", b'"', b"true", b"9" * 20, b'"id"', b"\n", b"\0", b"\xff")
#: Data that no format may claim or fail on.
JUNK = (b"", b"\0\1\2\3", b"\xff\xfe\xfa", b"{}", b"[]", b"{", b'{"format": "something else", "version": 1}')


@dataclass(frozen=True)
class Sample:
    """A file in the format, with its graph if it needs one."""

    data: bytes
    graph: ComputeGraph | None = None


def says_what_it_is(format_: Format, effort: Effort = USUAL, samples: Sequence[Sample] = ()) -> None:
    """Name and description have one line; the format reads or writes, and recognises what it reads."""
    require(format_.name and format_.description, f"format {format_.name!r} lacks a name or a description")
    require("\n" not in format_.name + format_.description, f"format {format_.name!r} is described in several lines")
    if isinstance(format_, GraphFormat):
        for suffix in format_.suffixes:
            right = suffix.startswith(".") and suffix == suffix.lower()
            require(right, f"format {format_.name!r}: suffix {suffix!r} lacks its dot, or is not in lower case")
        require(format_.read or format_.write, f"format {format_.name!r} neither reads nor writes")
        both = (format_.read is None) == (format_.recognizes is None)
        require(both, f"format {format_.name!r} reads what it does not recognise, or recognises what it does not read")


def _graphs(effort: Effort) -> Iterator[ComputeGraph]:
    """Yield tiny graphs of all kinds."""
    for seed in range(3 * effort.cases):
        yield random_graph(seed, effort.most_ops, plain=seed % 3 == 0, buffers=seed % 3 == 1)


def _schedules(effort: Effort) -> Iterator[tuple[Schedule, ComputeGraph]]:
    """Yield schedules that recompute, with and without explicit frees."""
    for graph in _graphs(effort):
        problem = Problem(graph, (graph.structural_bound.peak + graph.reference_peak) // 2)
        best = optimum(problem, Scope(OrderRule.FIXED, staged=False))
        schedule = Schedule.reference(graph) if best is None else best.schedule
        yield schedule, graph
        yield with_frees(graph, schedule), graph


def _written(format_: Format, effort: Effort) -> Iterator[tuple[Schedule | None, ComputeGraph, str]]:
    """Yield what the format can write: schedule (None for graph formats), graph and text."""
    if format_.write is None:
        raise SkipTest(f"format {format_.name!r} is only read")
    given, refusal = 0, ""
    graphs = isinstance(format_, GraphFormat)
    for schedule, graph in ((None, each) for each in _graphs(effort)) if graphs else _schedules(effort):
        try:
            text = _text(format_, schedule, graph)
        except RematError as error:
            refusal = str(error)
            require("\n" not in refusal, f"format {format_.name!r} refuses to write in several lines: {refusal}")
            continue
        given += 1
        yield schedule, graph, text
    require(given, f"format {format_.name!r} writes none of the samples: {refusal}")


def _text(format_: Format, schedule: Schedule | None, graph: ComputeGraph) -> str:
    write: Any = format_.write
    return write(graph) if schedule is None else write(schedule, graph)


def _read(format_: Format, source: Source, graph: ComputeGraph | None) -> ComputeGraph | Schedule:
    read: Any = format_.read
    return read(source, graph) if isinstance(format_, ScheduleFormat) else read(source)


def comes_back(format_: Format, effort: Effort = USUAL, samples: Sequence[Sample] = ()) -> None:
    """Written content is recognised and read back unchanged; writing it again gives the same bytes."""
    if format_.recognizes is None:
        raise SkipTest(f"format {format_.name!r} is only written")
    for schedule, graph, text in _written(format_, effort):
        who = f"format {format_.name!r}, graph {graph.name!r}"
        source = Source("sample", text.encode())
        require(format_.recognizes(source), f"{who}: it does not recognise what it wrote")
        back = _read(format_, source, graph)
        if isinstance(back, ComputeGraph):
            require(back.digest == graph.digest, f"{who}: another graph comes back")
            again = _text(format_, None, back)
        else:
            assert schedule is not None
            frees = with_frees(graph, schedule)  # explicit instead of implicit frees
            require(back in (schedule, frees), f"{who}: another schedule comes back")
            again = _text(format_, back, graph)
        require(again == text, f"{who}: writing it again gives another file")


def writes_the_same_bytes(format_: Format, effort: Effort = USUAL, samples: Sequence[Sample] = ()) -> None:
    """The same content gives the same bytes, and a final line end."""
    first, second = list(_written(format_, effort)), list(_written(format_, effort))
    for (_, graph, text), (_, _, again) in zip(first, second, strict=True):
        require(text == again, f"format {format_.name!r}, graph {graph.name!r}: the same content gives other bytes")
        require(text.endswith("\n"), f"format {format_.name!r}, graph {graph.name!r}: the last line has no end")


def refuses_damage(format_: Format, effort: Effort = USUAL, samples: Sequence[Sample] = ()) -> None:
    """Truncated or changed files are read as valid ones, or refused in one line that names fault and place.

    Parameters
    ----------
    samples : sequence of Sample
        Files to damage; formats that write create their own in addition.
    """
    if format_.recognizes is None:
        raise SkipTest(f"format {format_.name!r} is only written")
    given = list(samples)
    if format_.write is not None:
        given += [Sample(text.encode(), graph) for _, graph, text in _written(format_, effort)][: effort.cases]
    if not given:
        raise SkipTest(f"format {format_.name!r} is only read, and there is no sample")
    refused = 0
    for number, sample in enumerate(given):
        rng = random.Random(number)
        _read(format_, Source("sample", sample.data), sample.graph)
        for data in _damaged(sample.data, rng):
            source = Source("damaged", data)
            try:
                if format_.recognizes(source):
                    _read(format_, source, sample.graph)
            except RematError as error:
                refused += 1
                _says_where(format_, str(error))
            except Exception as error:
                fail(
                    f"format {format_.name!r} fails on a damaged file: {type(error).__name__}: {error}; {data[:200]!r}"
                )
    require(refused, f"format {format_.name!r} refuses none of {DAMAGES * len(given)} damaged files")


def _says_where(format_: Format, message: str) -> None:
    require("\n" not in message, f"format {format_.name!r} refuses a damaged file in several lines: {message}")
    require(len(message) < 1000, f"format {format_.name!r} refuses a damaged file at great length: {message[:200]}...")
    named = any(sign in message for sign in "'\"[0123456789") or len(message.split()) > 3
    require(named, f"format {format_.name!r} refuses a damaged file without saying what is wrong: {message}")


def _damaged(data: bytes, rng: random.Random) -> Iterator[bytes]:
    for number in range(DAMAGES):
        if number % 3 == 0:
            yield data[: rng.randrange(len(data))]
            continue
        changed = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 6])):
            place, other = rng.randrange(len(changed)), rng.randrange(len(changed))
            stop = place + rng.choice([1, 1, 2, 5, 20])
            match rng.randrange(6):
                case 0:
                    changed[place] = rng.randrange(256)
                case 1:
                    changed[place] ^= 1 << rng.randrange(8)
                case 2:
                    del changed[place:stop]
                case 3:
                    changed[place:place] = changed[place:stop]
                case 4:
                    changed[place:stop] = changed[other : other + stop - place]
                case 5:
                    changed[place:stop] = rng.choice(WORDS)
            changed = changed or bytearray(b"x")
        yield bytes(changed)


def recognises_only_its_own(format_: Format, effort: Effort = USUAL, samples: Sequence[Sample] = ()) -> None:
    """Junk, and files of other installed formats of its kind, are not recognised."""
    if format_.recognizes is None:
        raise SkipTest(f"format {format_.name!r} is only written")
    for data in JUNK:
        try:
            if format_.recognizes(Source("junk", data)):
                _read(format_, Source("junk", data), None)
        except RematError:  # not text or JSON, or empty
            continue
        except Exception as error:
            fail(f"format {format_.name!r} fails on {data!r}: {type(error).__name__}: {error}")
        require(not format_.recognizes(Source("junk", data)), f"format {format_.name!r} reads {data!r} as its own")
    others: list[Format] = [*(graph_formats() if isinstance(format_, GraphFormat) else schedule_formats())]
    if format_.name == others[-1].name:
        raise SkipTest(f"format {format_.name!r} is tried last, after all others")
    for other in others:
        if other.name == format_.name or other.write is None:
            continue
        for _, graph, text in _written(other, Effort(effort.most_ops, 1)):
            mine = format_.recognizes(Source("other", text.encode()))
            require(not mine, f"format {format_.name!r} claims {graph.name!r} in format {other.name!r}")


#: All checks of a graph format or a schedule format; each takes the format, and sample files if the format is only
#: read.
FORMAT_CHECKS: tuple[FormatCheck, ...] = (
    says_what_it_is,
    comes_back,
    writes_the_same_bytes,
    refuses_damage,
    recognises_only_its_own,
)
