"""``remat validate``: certificate of a schedule."""

from __future__ import annotations

from pathlib import Path

import typer

from remat.cli.common import print_json
from remat.cli.options import RULES, Given, Graph, Order, ScheduleFile, shared
from remat.cli.terminal import NO, OK


@shared("budget", *RULES, "addresses", "json")
def command(
    graph: Graph,
    schedule: ScheduleFile,
    *,
    order: Order = "free",
    addresses: Path | None = typer.Option(None, help="Also check the addresses in this file (see `remat allocate`)."),
    given: Given,
) -> None:
    """Validate SCHEDULE against GRAPH and print its certificate.

    Exit code 0: valid; 1: a rule is violated; 2: a file cannot be read.
    """
    from remat.schedule.address_files import TfliteTensors, read_addresses
    from remat.schedule.addresses import check_addresses
    from remat.schedule.buffers import schedule_buffers
    from remat.schedule.certificate import Verdict
    from remat.schedule.io import read_schedule
    from remat.schedule.validate import validate

    problem = given.problem(graph, order=order)
    found = read_schedule(schedule, problem.graph)
    certificate = validate(problem.graph, found, problem.rules)
    placed = None
    if addresses is not None and certificate.verdict is not Verdict.INVALID:
        constants = problem.count_constant_memory
        buffers = schedule_buffers(problem.graph, found, keep=problem.keep, constant_memory=constants)
        read = read_addresses(addresses, buffers, TfliteTensors.of(problem.graph))
        only_tensors = bool((read.buffers.tensor >= 0).any())  # a TFLite plan
        placed = check_addresses(read, None if only_tensors else buffers)
    if given.json:
        print_json({**certificate.as_dict(), **({"addresses": placed.as_dict()} if placed else {})})
    else:
        print(certificate, *([placed] if placed else []), sep="\n")
    raise typer.Exit(OK if certificate.accepted and (placed is None or placed.accepted) else NO)
