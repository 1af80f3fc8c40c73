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
    as_json: Json = False,
) -> None:
    """Validate SCHEDULE against GRAPH and print its certificate.

    Exit code 0: every rule is kept; 1: some rule is broken; 2: a file cannot be read.
    """
    from remat.problem import Problem
    from remat.schedule.io import read_schedule
    from remat.schedule.validate import validate

    loaded = load_graph(graph, costs, device)
    rules = Problem(loaded, budget, order, max_computes, keep or (), count_constant_memory or False).rules
    certificate = validate(loaded, read_schedule(schedule, loaded), rules)
    if as_json:
        print_json(certificate.as_dict())
    else:
        print(certificate)
    raise typer.Exit(OK if certificate.accepted else NO)
