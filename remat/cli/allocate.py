"""``remat allocate``: addresses for the buffers of a schedule, or of a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from remat.cli.common import INTERRUPTED, NO, OK, load_graph, load_schedule, option_bytes, print_json
from remat.cli.options import Json, Quiet, Seed, Threads, time_option
from remat.cli.saving import Outputs
from remat.cli.signals import rescued_by, writing
from remat.errors import FormatError
from remat.interruption import interrupted, interrupts
from remat.io.files import check_outputs, is_special, is_standard_stream

if TYPE_CHECKING:
    from remat.allocation import Allocation, AllocationProblem
    from remat.schedule import Addresses, Buffers, Memory

#: Seconds, where nothing is said.
TIME_LIMIT = 60.0


def command(
    source: Annotated[
        str, typer.Argument(metavar="GRAPH|TABLE", help="A graph, or a table id,lower,upper,size[,offset] (.csv).")
    ],
    schedule: Annotated[
        Path | None, typer.Argument(metavar="SCHEDULE", help="Schedule of the graph; default: its reference order.")
    ] = None,
    *,
    capacity: Annotated[
        str | None, typer.Option("--capacity", help="Bytes (256KiB) that must do; default: the least arena.")
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            "--memory", metavar="NAME[=SIZE]", help="One of several memories, e.g. fast=256KiB and slow; repeatable."
        ),
    ] = None,
    alignment: Annotated[int, typer.Option("--alignment", min=1, help="Bytes of which offsets are multiples.")] = 1,
    method: Annotated[
        str,
        typer.Option("--method", help="auto, first-fit, best-fit, canonical or model."),
    ] = "auto",
    backend: Annotated[str | None, typer.Option("--backend", help="Solver of the method `model`.")] = None,
    time_limit: Annotated[float, time_option("Seconds")] = TIME_LIMIT,
    seed: Seed = None,
    threads: Threads = None,
    inputs: Annotated[bool, typer.Option("--inputs/--no-inputs", help="Graph inputs have addresses, too.")] = True,
    workspaces: Annotated[
        bool, typer.Option("--workspaces/--no-workspaces", help="Workspaces have addresses, too.")
    ] = True,
    constant_memory: Annotated[
        bool, typer.Option("--constant-memory/--no-constant-memory", help="So has the graph's constant memory.")
    ] = False,
    check: Annotated[
        Path | None, typer.Option("--check", help="Find none: check the addresses in this file and leave.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the addresses here (.json, .csv, .bin: TFLite's plan).")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FORMAT", help="json, csv or tflite, whatever the suffix."),
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw addresses over time (.png, .svg).")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find addresses for the buffers of a schedule, so that no two that live at one step overlap.

    Exit code 0: found, and within the capacity (after Ctrl-C, too); 1: none exist or none were found, or --check finds
    a fault; 2: an error.
    """
    from remat.allocation import AllocationProblem, allocate
    from remat.allocation.by_model import ModelOptions
    from remat.backends.base import SolveOptions
    from remat.schedule import check_addresses
    from remat.schedule.address_files import format_for, read_addresses
    from remat.schedule.plots import SUFFIXES

    names = (None if source == "-" else source, schedule, check)
    check_outputs((output, ()), (plot, SUFFIXES), inputs=names)
    if output is not None:
        format_for(output, to)
    buffers, given, tensors = _buffers(source, schedule, inputs, workspaces, constant_memory)
    memories = _memories(capacity, memory)
    if check is not None:
        checked = read_addresses(check, buffers, tensors)
        certificate = check_addresses(_within(checked, memories, alignment), _expected(checked, buffers))
        print_json(certificate.as_dict()) if as_json else print(certificate)
        raise typer.Exit(OK if certificate.accepted else NO)
    problem = AllocationProblem(buffers, memories, alignment)
    if output is not None and tensors is None and format_for(output, to).startswith("tflite"):
        raise FormatError(f"{output}: a TFLite plan is for the tensors of a graph, and there is none")
    if backend is not None and method != "model":
        raise typer.BadParameter("--backend is for the method model")
    target = _Target(output, to, tensors)
    options = SolveOptions(seed=seed or 0, threads=threads)
    best: list[Addresses] = []

    def tell(addresses: Addresses) -> None:
        best[:] = [addresses]
        if not quiet:
            print(f"arena {addresses.arena:,} bytes ({addresses.source})", file=sys.stderr, flush=True)
        target.keep(addresses)

    with interrupts(), rescued_by(lambda: bool(best)):
        found = allocate(
            problem, method, time_limit=time_limit, start=_start(problem, given), on_addresses=tell, options=options,
            method_options=ModelOptions(backend) if backend else None,
        )  # fmt: skip
        stopped = interrupted()
    writing()
    _end(found, target, plot, as_json=as_json, stopped=stopped)


@dataclass(frozen=True)
class _Target:
    """Where addresses are written, in which format, and of how many tensors."""

    path: Path | None
    to: str | None
    tensors: int | None
    outputs: Outputs = field(default_factory=Outputs)

    def write(self, addresses: Addresses, path: Path) -> None:
        from remat.schedule.address_files import write_addresses

        write_addresses(addresses, path, self.to, self.tensors)

    def keep(self, addresses: Addresses) -> None:
        """Write what is not the last; pipes and devices receive the last alone."""
        if self.path is not None and not is_special(self.path):
            self.outputs.attempt(self.path, lambda path: self.write(addresses, path))


def _buffers(
    source: str, schedule: Path | None, inputs: bool, workspaces: bool, constant_memory: bool
) -> tuple[Buffers, Addresses | None, int | None]:
    """The buffers, addresses that they come with, and how many tensors the graph has."""
    from remat.schedule import schedule_buffers
    from remat.schedule.buffer_tables import read_table

    if Path(source).suffix.lower() == ".csv":
        if schedule is not None:
            raise typer.BadParameter("a table has no schedule")
        buffers, given = read_table(source)
        return buffers, given, None
    graph = load_graph(source)
    order = load_schedule(schedule, graph)
    buffers = schedule_buffers(graph, order, inputs=inputs, workspaces=workspaces, constant_memory=constant_memory)
    return buffers, None, len(graph.tensors)


def _memories(capacity: str | None, memory: list[str] | None) -> tuple[Memory, ...]:
    from remat.schedule import Memory

    if memory and capacity is not None:
        raise typer.BadParameter("--capacity is for one memory; with --memory say NAME=SIZE")
    if not memory:
        return (Memory(capacity=None if capacity is None else option_bytes(capacity, "--capacity")),)
    found = []
    for word in memory:
        name, equals, size = word.partition("=")
        if not name:
            raise typer.BadParameter(f"--memory {word!r} has no name")
        found.append(Memory(name, option_bytes(size, f"--memory {name}") if equals else None))
    return tuple(found)


def _within(addresses: Addresses, memories: tuple[Memory, ...], alignment: int) -> Addresses:
    """The same held against the capacities and the alignment of the command line, where it names any."""
    from dataclasses import replace

    named = {memory.name: memory for memory in memories}
    if len(memories) == len(addresses.memories) == 1:
        limits: tuple[Memory, ...] = memories if memories[0].capacity is not None else addresses.memories
    else:
        limits = tuple(named.get(memory.name, memory) for memory in addresses.memories)
    return replace(addresses, memories=limits, alignment=max(alignment, addresses.alignment))


def _expected(checked: Addresses, buffers: Buffers) -> Buffers | None:
    """What the addresses must be for; a TFLite plan speaks of tensors alone."""
    return None if (checked.buffers.tensor >= 0).any() else buffers


def _start(problem: AllocationProblem, given: Addresses | None) -> Addresses | None:
    """The addresses that a table comes with, where they are right."""
    from remat.schedule import check_addresses

    if given is None or len(problem.memories) > 1:
        return None
    start = problem.addresses(given.offset.copy(), source="the table")
    return start if check_addresses(start).accepted else None


def _end(found: Allocation, target: _Target, plot: Path | None, *, as_json: bool, stopped: bool) -> NoReturn:
    """Write and print what was found, and leave with the exit code."""
    from remat.schedule import check_addresses
    from remat.schedule.address_files import json_text
    from remat.schedule.address_plots import save_address_plot

    # a new one: what could not be written on the way is said again
    outputs, addresses = Outputs(), found.addresses
    if addresses is not None and target.path is not None:
        outputs.save(target.path, lambda path: target.write(addresses, path), lambda: json_text(addresses))
    stream = sys.stderr if is_standard_stream(target.path) else sys.stdout
    certificate = None if addresses is None else check_addresses(addresses, found.problem.buffers)
    if as_json:
        bound = found.bound if found.problem.open_memories else None
        facts = {
            "method": found.method, "proved": found.proved, "bound": bound,
            "impossible": found.impossible or None, "notes": list(found.notes),
            "certificate": None if certificate is None else certificate.as_dict(),
        }  # fmt: skip
        print_json(facts, stream)
    else:
        print("\n".join([*([str(certificate)] if certificate else []), *_words(found)]), file=stream)
    if addresses is not None and plot is not None:
        outputs.draw(plot, lambda path: save_address_plot(addresses, path))
    outputs.leave(OK if certificate is not None and certificate.accepted else INTERRUPTED if stopped else NO)


def _words(found: Allocation) -> list[str]:
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
    return [f"{word:<13} {text}" for word, text in rows]
