"""``remat validate``: certificates of schedules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import print_json, print_rows
from remat.cli.options import RULES, Given, OptionalGraph, Order, shared
from remat.cli.saving import Outputs
from remat.cli.screen import memory, say_sentence
from remat.cli.terminal import ERROR, NO, OK
from remat.io.files import check_outputs

if TYPE_CHECKING:
    from remat.experiments.audit import Audit, Audited
    from remat.schedule.addresses import AddressCertificate


@shared("budget", *RULES, "machine", "manifest", "addresses", "reports", "json")
def command(
    graph: OptionalGraph = None,
    schedules: Annotated[
        list[Path] | None, typer.Argument(metavar="SCHEDULE...", help="Schedule files, in any format.")
    ] = None,
    *,
    order: Order = "free",
    manifest: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Check the lines of this file (.toml, .json, .csv): graph, schedule, budget, machine.",
    ),
    addresses: Path | None = typer.Option(
        None, metavar="FILE", help="Also check the addresses in this file (see `remat allocate`)."
    ),
    reports: list[Path] | None = typer.Option(
        None,
        "--output",
        "-o",
        metavar="FILE",
        help="Write a certificate (.json), table (.csv), JUnit (.xml) or SARIF (.sarif) report.",
    ),
    given: Given,
) -> None:
    """Validate each SCHEDULE against GRAPH: print the certificate of one, or a table of several.

    `remat verify` checks a certificate file (-o cert.json) again later.

    Exit code 0: all are valid; 1: a rule is violated; 2: a file cannot be read.

    Examples
    --------
    remat validate unet schedule.json -b 80% -o certificate.json
    remat validate unet a.json b.json -b 80% -o report.xml
    remat validate --manifest all.toml
    remat validate gpt offloaded.json -b 35% --machine pcie4,host=64GiB
    """
    from remat.experiments.audit import SUFFIXES, Costs, Line, audit, read_manifest

    if (manifest is None) == (graph is None):
        both = "Missing argument 'GRAPH' (or '--manifest')." if graph is None else "--manifest names the graphs itself"
        raise typer.BadParameter(both)
    if graph is not None and not schedules:
        raise typer.BadParameter("Missing argument 'SCHEDULE'.")
    files = [str(path) for path in schedules or ()]
    check_outputs(*((path, SUFFIXES) for path in reports or ()), inputs=(graph, manifest, *files))
    lines = [Line(graph=graph, schedule=file) for file in files] if graph is not None else None
    rules = {**given.sections["problem"], "order": order}
    profile, device = rules.pop("costs", None), rules.pop("device", None)
    checked = audit(
        lines or read_manifest(manifest or ""), rules, Costs(None if profile is None else Path(profile), device)
    )
    single = checked.checks[0] if lines and len(lines) == 1 else None
    if single is not None and single.error is not None:
        raise single.error
    if addresses is not None and single is None:
        raise typer.BadParameter("--addresses is for a single schedule")
    placed = None if addresses is None or single is None else _check_addresses(addresses, single, rules)
    outputs = Outputs()
    for path in reports or ():
        outputs.save_text(path, checked.text(path))
    if single is None:
        _print_all(checked, as_json=given.json)
    else:
        _print_single(single, placed, as_json=given.json)
    accepted = checked.accepted and (placed is None or placed.accepted)
    outputs.leave(ERROR if not checked.complete else OK if accepted else NO)


def _check_addresses(path: Path, single: Audited, rules: dict[str, Any]) -> AddressCertificate | None:
    """Return the certificate of addresses; None if the schedule is invalid."""
    from remat.graphs.io import load_graph
    from remat.schedule.address_files import TfliteTensors, read_addresses
    from remat.schedule.addresses import check_addresses
    from remat.schedule.buffers import schedule_buffers
    from remat.schedule.certificate import Verdict

    found, schedule = single.certificate, single.schedule
    if found is None or schedule is None or found.verdict is Verdict.INVALID:
        return None
    graph = load_graph(single.record.graph.file)
    constants = bool(rules.get("count_constant_memory"))
    buffers = schedule_buffers(graph, schedule, keep=found.rules.keep, constant_memory=constants)
    read = read_addresses(path, buffers, TfliteTensors.of(graph))
    only_tensors = bool((read.buffers.tensor >= 0).any())  # a TFLite plan
    return check_addresses(read, None if only_tensors else buffers)


def _print_single(single: Audited, placed: AddressCertificate | None, *, as_json: bool) -> None:
    from remat.cli.closing import closing_certificate

    found = single.certificate
    assert found is not None
    if as_json:
        print_json({**single.certificate_dict(), **({"addresses": placed.as_dict()} if placed else {})})
        return
    verdict, graph, *others = found.rows()
    rows = [verdict, graph, ("read as", single.record.schedule.format), *others, *single.context]
    print_rows([*rows, *(placed.rows() if placed else [])], least=13)
    print()
    say_sentence(closing_certificate(found))


def _print_all(checked: Audit, *, as_json: bool) -> None:
    from remat.cli.console import NUMBER, TEXT, console, print_columns, print_notes, say
    from remat.schedule.certificate import overhead_percent
    from remat.schedule.certificate_files import certificates_text

    if as_json:
        print(certificates_text(each.record for each in checked.checks), end="")
        return

    def cells(each: Audited) -> list[str]:
        found = each.certificate
        numbers = ["-", "-", "-"]
        if found is not None:
            budget = "-" if found.budget is None else memory(found.budget)
            share = found.overhead if found.time is None else overhead_percent(found.time, found.base_cost)
            overhead = "-" if share is None else f"{share:.4g} %"
            numbers = [memory(found.peak), budget, overhead]
        return [each.record.schedule.file, each.verdict, *numbers, each.record.schedule.format or "-"]

    numbers = ("peak", "budget", "overhead")
    columns = [("schedule", TEXT), ("verdict", TEXT), *((word, NUMBER) for word in numbers), ("read as", TEXT)]
    graphs = dict.fromkeys(each.record.graph.file for each in checked.checks)
    out = console()
    title = next(iter(graphs), "no schedules") if len(graphs) < 2 else f"schedules of {len(graphs):,} graphs"
    print_columns(out, title, columns, map(cells, checked.checks))
    print_notes(out, ((each.record.schedule.file, each.fault) for each in checked.checks if each.fault))
    accepted = sum(each.certificate is not None and each.certificate.accepted for each in checked.checks)
    say(out, f"{accepted:,} of {len(checked.checks):,} schedules are accepted.")
