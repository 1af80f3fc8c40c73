"""``remat trace``: schedules for PyTorch's memory_viz and Perfetto."""

from __future__ import annotations

from pathlib import Path

import typer

from remat.cli.common import load_graph, load_schedule
from remat.cli.options import Budget, ConstantMemory, Graph, Keep, Machine, OptionalSchedule
from remat.cli.saving import Outputs
from remat.cli.terminal import OK
from remat.io.files import check_outputs, write_atomic

CHROME, PERFETTO, SNAPSHOT = ".json", ".pftrace", ".pickle"
_VIEWERS = {CHROME: "for ui.perfetto.dev", PERFETTO: "for ui.perfetto.dev", SNAPSHOT: "for pytorch.org/memory_viz"}


def command(
    graph: Graph,
    schedule: OptionalSchedule = None,
    *,
    output: list[Path] = typer.Option(
        ..., "--output", "-o", metavar="FILE",
        help="File to write: .pftrace for Perfetto, .json for Chrome too, .pickle for memory_viz; repeatable.",
    ),
    budget: Budget = None,
    machine: Machine = None,
    addresses: Path | None = typer.Option(
        None, metavar="FILE", help="Addresses from `remat allocate` for memory_viz; default: a simple allocator."
    ),
    keep: Keep = None,
    count_constant_memory: ConstantMemory = None,
) -> None:  # fmt: skip
    """Write SCHEDULE as a trace for other tools: steps over time and the bytes that they hold.

    With --machine, also transfers over its links, at their times, and the memory of the host.

    Exit code 0: done; 2: an error.

    Examples
    --------
    remat trace unet schedule.json -o unet.pftrace
    remat trace gpt offloaded.json --machine pcie4 -o gpt.pftrace
    """
    from remat.problem import Problem
    from remat.schedule.address_files import read_addresses
    from remat.schedule.traces import chrome_trace_text, perfetto_trace, save_memory_snapshot

    suffixes = [path.suffix.lower() for path in output]
    check_outputs(*((path, _VIEWERS) for path in output), inputs=(graph, schedule, addresses))
    if addresses is not None and SNAPSHOT not in suffixes:
        raise typer.BadParameter(f"--addresses is for a memory snapshot ({SNAPSHOT})")
    counted, kept = bool(count_constant_memory), tuple(keep or ())
    loaded = load_graph(graph)
    steps = load_schedule(schedule, loaded)
    placed = None if addresses is None else read_addresses(addresses)
    problem = Problem(loaded, budget, count_constant_memory=counted, machine=machine)
    limit, host = problem.budget_bytes, problem.machine
    outputs = Outputs()
    for path, suffix in zip(output, suffixes, strict=True):
        if suffix == CHROME:
            text = chrome_trace_text(loaded, steps, limit, machine=host, keep=kept, count_constant_memory=counted)
            outputs.save_text(path, text)
        elif suffix == PERFETTO:
            outputs.draw(
                path,
                lambda where: write_atomic(
                    where,
                    perfetto_trace(loaded, steps, limit, machine=host, keep=kept, count_constant_memory=counted),
                ),
            )
        else:
            outputs.draw(
                path,
                lambda where: save_memory_snapshot(
                    loaded, steps, where, addresses=placed, keep=kept, count_constant_memory=counted
                ),
            )
        if not outputs.failed:
            print(f"{path}  {_VIEWERS[suffix]}")
    outputs.leave(OK)
