"""``remat validate``: is a schedule right, and if not, why not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.common import (
    NO,
    OK,
    Budget,
    ConstantMemory,
    Costs,
    Device,
    Graph,
    Json,
    Keep,
    MaxComputes,
    Order,
    load_graph,
    print_json,
)


def command(
    graph: Graph,
    schedule: Annotated[Path, typer.Argument(metavar="SCHEDULE", help="Schedule file.")],
    *,
    budget: Budget = None,
    order: Order = "free",
    max_computes: MaxComputes = None,
    keep: Keep = None,
    count_constant_memory: ConstantMemory = None,
    costs: Costs = None,
    device: Device = None,
    addresses: Annotated[
        Path | None, typer.Option("--addresses", help="Check the addresses in this file, too (see `remat allocate`).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Validate SCHEDULE against GRAPH and print its certificate.

    Exit code 0: every rule is kept; 1: some rule is broken; 2: a file cannot be read.
    """
    from remat.problem import Problem
    from remat.schedule.address_files import read_addresses
    from remat.schedule.addresses import check_addresses
    from remat.schedule.buffers import schedule_buffers
    from remat.schedule.certificate import Verdict
    from remat.schedule.io import read_schedule
    from remat.schedule.validate import validate

    loaded = load_graph(graph, costs, device)
    rules = Problem(loaded, budget, order, max_computes, keep or (), count_constant_memory or False).rules
    found = read_schedule(schedule, loaded)
    certificate = validate(loaded, found, rules)
    placed = None
    if addresses is not None and certificate.verdict is not Verdict.INVALID:
        buffers = schedule_buffers(loaded, found, keep=keep or (), constant_memory=count_constant_memory or False)
        given = read_addresses(addresses, buffers, len(loaded.tensors))
        only_tensors = bool((given.buffers.tensor >= 0).any())  # a plan of TFLite
        placed = check_addresses(given, None if only_tensors else buffers)
    if as_json:
        print_json({**certificate.as_dict(), **({"addresses": placed.as_dict()} if placed else {})})
    else:
        print(certificate, *([placed] if placed else []), sep="\n")
    raise typer.Exit(OK if certificate.accepted and (placed is None or placed.accepted) else NO)
