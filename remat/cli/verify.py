"""``remat verify``: recomputation of certificates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import print_json, print_rows
from remat.cli.options import Json
from remat.cli.terminal import ERROR, NO, OK

if TYPE_CHECKING:
    from remat.schedule.certificate_files import CheckRecord


def command(
    file: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="Certificate file.")],
    graph: Annotated[str | None, typer.Argument(metavar="GRAPH", help="Graph, if not at its recorded place.")] = None,
    schedule: Annotated[
        str | None, typer.Argument(metavar="SCHEDULE", help="Schedule, if not at its recorded place.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Check the schedules of CERTIFICATE again, and show what has changed.

    Files, rules and results are compared with those that `remat validate -o CERTIFICATE` recorded.

    Exit code 0: nothing has changed, and all schedules are valid; 1: something has, or a rule is broken; 2: a file
    cannot be read.

    Examples
    --------
    remat verify cert.json
    """
    from remat._version import __version__
    from remat.schedule.certificate_files import check_named_files, read_certificates

    document = read_certificates(file)
    records = document.certificates
    if graph is not None and len(records) != 1:
        raise typer.BadParameter(f"{file} has {len(records):,} certificates; GRAPH and SCHEDULE are for a single one")
    folder = file.resolve().parent
    files = [each.path(folder) for record in records for each in (record.graph, record.schedule) if each.sha256]
    check_named_files(file, len(records), files)
    found = [_verified(record, folder, graph, schedule) for record in records]
    if as_json:
        print_json({"certificate": str(file), "time": document.time, "remat": document.remat, "checks": found})
    else:
        versions = "" if document.remat == __version__ else f"; this is remat {__version__}"
        print_rows([("certified", f"{document.time} by remat {document.remat}{versions}")])
        print_rows(_rows(found[0])) if len(found) == 1 else _print_all(found)
    codes = [ERROR if each["error"] else NO if each["changes"] or each["verdict"] != "valid" else OK for each in found]
    raise typer.Exit(max(codes, default=ERROR))


def _verified(record: CheckRecord, folder: Path, graph: str | None, schedule: str | None) -> dict[str, Any]:
    """Return schedule, verdict, changes and error of one certificate, as JSON values."""
    from remat.errors import FormatError, RematError
    from remat.graphs.io import load_graph
    from remat.graphs.profiles import load_profiled
    from remat.runtime.text import json_text
    from remat.schedule.certificate_files import differences, file_record
    from remat.schedule.io import read_schedule
    from remat.schedule.validate import validate

    paths = {
        "graph": graph or (record.graph.file and record.graph.path(folder)),
        "schedule": schedule or (record.schedule.file and record.schedule.path(folder)),
        "costs": record.costs and record.costs.path(folder),
    }
    outcome: dict[str, Any] = {"schedule": paths["schedule"], "verdict": None, "changes": [], "error": ""}
    changes = []
    try:
        if record.certificate is None:
            raise FormatError(record.error or "there is no certificate", "certificate")
        for name in ("graph", "schedule"):
            if not paths[name]:
                raise FormatError(
                    f"the certificate names no {name} file; write remat verify CERTIFICATE GRAPH SCHEDULE",
                    "certificate",
                )
        for name, path in paths.items():
            kept = getattr(record, name)
            if path and kept.sha256 and (digest := file_record(path).sha256) and digest != kept.sha256:
                changes.append(f"bytes of the {name} file: sha256 {kept.sha256[:12]} -> {digest[:12]}")
        loaded = load_profiled(load_graph(str(paths["graph"])), Path(paths["costs"]) if paths["costs"] else None,
                               record.device)  # fmt: skip
        certificate = validate(loaded, read_schedule(str(paths["schedule"]), loaded), record.rules)
    except RematError as error:
        return outcome | {"error": str(error)}
    changes += differences(record.certificate, json.loads(json_text(certificate.as_dict())))
    return outcome | {"verdict": str(certificate.verdict), "changes": changes}


def _rows(each: dict[str, Any]) -> list[tuple[str, str]]:
    if each["error"]:
        return [("schedule", _from_here(each["schedule"])), ("error", str(each["error"]))]
    changes = each["changes"]
    assert isinstance(changes, list)
    rows = [("schedule", _from_here(each["schedule"])), ("verdict", str(each["verdict"]))]
    return rows + ([("changed", change) for change in changes] or [("", "as certified: nothing has changed")])


def _from_here(path: object) -> str:
    """Return a path relative to the current folder, if it is below."""
    if not path:
        return "unknown"
    place = Path(str(path))
    return str(place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place)


def _print_all(found: list[dict[str, Any]]) -> None:
    """Print a table of several certificates, then what has changed."""
    from remat.cli.console import TEXT, console, print_columns, print_notes, say

    def state(each: dict[str, Any]) -> str:
        return "not read" if each["error"] else "changed" if each["changes"] else "as certified"

    def name(each: dict[str, Any]) -> str:
        return _from_here(each["schedule"])

    out = console()
    rows = [[name(each), str(each["verdict"] or "-"), state(each)] for each in found]
    print_columns(out, "certificates", [("schedule", TEXT), ("verdict", TEXT), ("state", TEXT)], rows)
    print_notes(out, ((name(each), note) for each in found for note in (each["error"], *each["changes"]) if note))
    same = sum(state(each) == "as certified" for each in found)
    say(out, f"{same:,} of {len(found):,} certificates are as recorded.")
