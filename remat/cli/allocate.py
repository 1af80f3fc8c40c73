"""``remat allocate``: addresses for the buffers of a schedule, or of a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from remat.cli.common import load_graph, load_schedule, option_bytes, print_json, print_rows
from remat.cli.completion import complete_backend, complete_graph, complete_schedule, one_of
from remat.cli.options import Json, Quiet, Seed, Threads, shared, size_option, time_option
from remat.cli.saving import Outputs
from remat.cli.screen import say_sentence
from remat.cli.signals import rescued_by, writing
from remat.cli.terminal import INTERRUPTED, NO, OK
from remat.errors import FormatError
from remat.io.files import check_outputs, is_special, is_standard_stream
from remat.runtime.interruption import interrupted, interrupts

if TYPE_CHECKING:
    from remat.allocation import Allocation, AllocationProblem
    from remat.schedule import Addresses, Buffers, Memory
    from remat.schedule.address_files import TfliteTensors

#: Default time limit in seconds.
TIME_LIMIT = 60.0


@dataclass(frozen=True)
class Layout:
    """Options of the command."""

    capacity: Annotated[int | None, size_option("Capacity; default: minimize the arena", "--capacity")] = None
    memory: list[str] | None = typer.Option(
        None, metavar="NAME[=SIZE]", help="One of several memories, e.g. fast=256KiB and slow; repeatable."
    )
    alignment: Annotated[
        int, size_option("Offsets are multiples of this size; at least 16 for a TFLite plan", "--alignment")
    ] = 1
    method: str = typer.Option(
        "auto",
        "--method",
        "-m",
        metavar="METHOD",
        autocompletion=one_of("auto", "first-fit", "best-fit", "canonical", "model"),
        help="auto, first-fit, best-fit, canonical or model.",
    )
    backend: str | None = typer.Option(
        None, metavar="BACKEND", autocompletion=complete_backend, help="Solver of the method `model`."
    )
    time_limit: Annotated[float, time_option("Time for everything")] = TIME_LIMIT
    seed: Seed = None
    threads: Threads = None
    inputs: bool = typer.Option(True, help="Allocate graph inputs.")
    workspaces: bool = typer.Option(True, help="Allocate workspaces.")
    constant_memory: bool = typer.Option(False, help="Allocate the graph's constant memory.")
    check: Path | None = typer.Option(None, metavar="FILE", help="Only check the addresses in this file.")
    output: Path | None = typer.Option(
        None, "--output", "-o", metavar="FILE", help="Write the addresses here (.json, .csv, .bin: TFLite's plan)."
    )
    to: str | None = typer.Option(
        None,
        metavar="FORMAT",
        autocompletion=one_of("json", "csv", "tflite"),
        help="json, csv or tflite, regardless of the suffix.",
    )
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw addresses over time (.png, .svg, .pdf).")
    as_json: Json = False
    quiet: Quiet = False


@shared()
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH|TABLE",
            autocompletion=complete_graph,
            help="A graph, or a table id,lower,upper,size[,offset] (.csv).",
        ),
    ],
    schedule: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCHEDULE",
            autocompletion=complete_schedule,
            help="Schedule of the graph; default: its reference order.",
        ),
    ] = None,
    *,
    layout: Layout,
) -> None:
    """Find addresses for the buffers of a schedule such that buffers alive at the same step do not overlap.

    Exit code 0: found within the capacity (also after Ctrl-C); 1: none exist, none were found, or --check finds a
    fault; 2: an error.

    Examples
    --------
    remat allocate unet schedule.json -o addresses.csv
    remat allocate buffers.csv --capacity 256KiB
    """
    from remat.allocation import AllocationProblem, allocate
    from remat.allocation.by_model import ModelOptions
    from remat.cli.reporter import Reporter
    from remat.io.figures import SUFFIXES
    from remat.runtime.solve_options import SolveOptions
    from remat.schedule import check_addresses
    from remat.schedule.address_files import NO_FILE, TFLITE_ALIGNMENT, format_for, read_addresses

    output, to, check = layout.output, layout.to, layout.check
    names = (None if source == "-" else source, schedule, check)
    suffixes = () if output is None or to is not None or is_special(output) else (".json", ".csv", ".bin")
    check_outputs((output, suffixes), (layout.plot, SUFFIXES), inputs=names)
    if output is not None:
        format_for(output, to)
    buffers, given, tensors = _buffers(source, schedule, layout)
    memories = _memories(layout.capacity, layout.memory)
    if check is not None:
        checked = read_addresses(check, buffers, tensors)
        only_tensors = bool((checked.buffers.tensor >= 0).any())  # a TFLite plan
        within = _within(checked, memories, layout.alignment)
        certificate = check_addresses(within, None if only_tensors else buffers)
        print_json(certificate.as_dict()) if layout.as_json else print(certificate)
        raise typer.Exit(OK if certificate.accepted else NO)
    is_plan = output is not None and format_for(output, to) == "tflite"
    if is_plan and tensors is None:
        raise FormatError(f"{output}: {NO_FILE}", "no-tflite-file")
    alignment = max(layout.alignment, TFLITE_ALIGNMENT) if is_plan else layout.alignment
    problem = AllocationProblem(buffers, memories, alignment)
    if layout.backend is not None and layout.method != "model":
        raise typer.BadParameter("--backend is for --method model; add that or leave it out")
    target = _Output(output, to, tensors)
    options = SolveOptions(seed=layout.seed or 0, threads=layout.threads)
    best: list[Addresses] = []

    def report(addresses: Addresses) -> None:
        best[:] = [addresses]
        size, bound = f"arena {addresses.arena:,} bytes", f"bound {problem.bound:,} bytes"
        reporter.news(f"{size} ({addresses.source})", size, f"by {addresses.source}", bound)
        target.keep(addresses)

    reporter = Reporter(layout.quiet, limit=layout.time_limit)
    with interrupts(), rescued_by(lambda: bool(best)), reporter:
        found = allocate(
            problem, layout.method, time_limit=layout.time_limit, start=_start(problem, given), on_addresses=report,
            options=options, method_options=ModelOptions(layout.backend) if layout.backend else None,
        )  # fmt: skip
        stopped = interrupted()
    writing()
    _end(found, target, layout, stopped=stopped)


@dataclass(frozen=True)
class _Output:
    """Path, format and tensors of the addresses to write."""

    path: Path | None
    to: str | None
    tensors: TfliteTensors | None
    outputs: Outputs = field(default_factory=Outputs)

    def write(self, addresses: Addresses, path: Path) -> None:
        from remat.schedule.address_files import write_addresses

        write_addresses(addresses, path, self.to, self.tensors)

    def keep(self, addresses: Addresses) -> None:
        """Write an intermediate result; pipes and devices receive only the last one."""
        if self.path is not None and not is_special(self.path):
            self.outputs.attempt(self.path, lambda path: self.write(addresses, path))


def _buffers(
    source: str, schedule: Path | None, layout: Layout
) -> tuple[Buffers, Addresses | None, TfliteTensors | None]:
    """Return the buffers, the addresses that they come with, and the tensors of the graph's file."""
    from remat.schedule import schedule_buffers
    from remat.schedule.address_files import TfliteTensors
    from remat.schedule.buffer_tables import read_table

    if Path(source).suffix.lower() == ".csv":
        if schedule is not None:
            raise typer.BadParameter(f"{schedule}: {source} is a table, to which no schedule belongs; leave it out")
        buffers, given = read_table(source)
        return buffers, given, None
    graph = load_graph(source)
    order = load_schedule(schedule, graph)
    buffers = schedule_buffers(
        graph, order, inputs=layout.inputs, workspaces=layout.workspaces, constant_memory=layout.constant_memory
    )
    return buffers, None, TfliteTensors.of(graph)


def _memories(capacity: int | None, memory: list[str] | None) -> tuple[Memory, ...]:
    from remat.schedule import Memory

    if memory and capacity is not None:
        raise typer.BadParameter("--capacity is for one memory; with --memory write NAME=SIZE")
    if not memory:
        return (Memory(capacity=capacity),)
    found = []
    for word in memory:
        name, equals, size = word.partition("=")
        if not name:
            raise typer.BadParameter(f"--memory {word!r} has no name; write NAME=SIZE")
        found.append(Memory(name, option_bytes(size, f"--memory {name}") if equals else None))
    return tuple(found)


def _within(addresses: Addresses, memories: tuple[Memory, ...], alignment: int) -> Addresses:
    """Return the addresses with the capacities and alignment of the command line, if given."""
    from dataclasses import replace

    named = {memory.name: memory for memory in memories}
    if len(memories) == len(addresses.memories) == 1:
        limits: tuple[Memory, ...] = memories if memories[0].capacity is not None else addresses.memories
    else:
        limits = tuple(named.get(memory.name, memory) for memory in addresses.memories)
    return replace(addresses, memories=limits, alignment=max(alignment, addresses.alignment))


def _start(problem: AllocationProblem, given: Addresses | None) -> Addresses | None:
    """Return the addresses that a table comes with, if they are valid."""
    from remat.schedule import check_addresses

    if given is None or len(problem.memories) > 1:
        return None
    start = problem.addresses(given.offset.copy(), source="the table")
    return start if check_addresses(start).accepted else None


def _end(found: Allocation, target: _Output, layout: Layout, *, stopped: bool) -> NoReturn:
    """Write and print the result, and exit."""
    from remat.cli.closing import closing_allocation
    from remat.schedule import check_addresses
    from remat.schedule.address_files import json_text

    # a new object, so that files that could not be written earlier are reported again
    outputs, addresses = Outputs(), found.addresses
    if addresses is not None and target.path is not None:
        outputs.save(target.path, lambda path: target.write(addresses, path), lambda: json_text(addresses))
    stream = sys.stderr if is_standard_stream(target.path) else sys.stdout
    certificate = None if addresses is None else check_addresses(addresses, found.problem.buffers)
    if layout.as_json:
        bound = found.bound if found.problem.open_memories else None
        facts = {
            "method": found.method, "proved": found.proved, "bound": bound,
            "impossible": found.impossible or None, "notes": list(found.notes),
            "certificate": None if certificate is None else certificate.as_dict(),
        }  # fmt: skip
        print_json(facts, stream)
    else:
        print_rows([*(certificate.rows() if certificate else []), *_words(found)], stream, least=13)
        print(file=stream)
        say_sentence(closing_allocation(found), stream)
    if addresses is not None and layout.plot is not None:
        outputs.plot(layout.plot, found.plot)
    outputs.leave(OK if certificate is not None and certificate.accepted else INTERRUPTED if stopped else NO)


def _words(found: Allocation) -> list[tuple[str, str]]:
    rows = []
    if found.addresses is None:
        rows.append(("addresses", f"none: {found.impossible}" if found.impossible else "none found"))
    elif not found.problem.open_memories:
        rows.append(("proof", "all buffers fit"))
    elif found.proved:
        rows.append(("proof", "no arena is smaller"))
    else:
        rows.append(("bound", f"{found.bound:,} bytes"))
    if found.addresses is not None:
        rows.append(("method", f"{found.method} ({found.addresses.source})"))
    rows.extend(("note", note) for note in found.notes)
    return rows
