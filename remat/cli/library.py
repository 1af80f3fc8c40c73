"""``remat library``: instances with their best known schedules and bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.command import Command, Group
from remat.cli.completion import complete_method
from remat.cli.options import Json, Quiet, SearchSeed, time_option
from remat.cli.screen import digest_text, say_sentence
from remat.cli.terminal import NO
from remat.errors import ProblemError, RematError
from remat.runtime.text import counted, one_line

if TYPE_CHECKING:
    from remat.experiments.library.instances import LibraryProblem
    from remat.experiments.library.ledger import Ledger, Standing

app = typer.Typer(
    cls=Group, help="Instances with stable names, their best known schedules, and bounds.",
    no_args_is_help=True, rich_markup_mode=None, add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Patterns = Annotated[list[str] | None, typer.Argument(
    metavar="[NAME]...", help="Instances (layered-100), problems (unet/fixed-70), patterns of them with *, or families."
)]  # fmt: skip
Name = Annotated[str, typer.Argument(metavar="NAME", help="Instance (unet) or problem (unet/fixed-70).")]
Folder = Annotated[Path | None, typer.Option(
    "--folder", envvar="REMAT_LIBRARY", metavar="FOLDER", help="Folder of the records; default: that of the package."
)]  # fmt: skip


@app.command("list", cls=Command)
def show_list(
    names: Patterns = None,
    *,
    problems: Annotated[bool, typer.Option("--problems", help="One line for each problem.")] = False,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """List instances, or their problems, with what is known of them.

    The class of a problem is the time in which its optimum was found and proved: toy (at most 1 s), easy (1 min),
    medium (10 min), hard (1 h), closed (longer or unknown), open (not proved).

    Examples
    --------
    remat library list unet --problems
    """
    from remat.cli.common import print_json, print_table

    standings = _standings(names, folder)
    if as_json:
        print_json([_facts(each) for each in standings])
    elif problems:
        rows = [(each.problem.name, str(each.problem.instance.ops), *_known(each)) for each in standings]
        print_table([("problem", "ops", "class", "best", "bound", "gap"), *rows], right=(1, 3, 4, 5))
    else:
        by_name: dict[str, list[Standing]] = {}
        for each in standings:
            by_name.setdefault(each.problem.instance.name, []).append(each)
        lines = [
            (name, first.problem.instance.family, f"{first.problem.instance.ops:,}", str(len(known)),
             str(sum(each.closed for each in known)))
            for name, known in by_name.items() for first in known[:1]
        ]  # fmt: skip
        print_table([("instance", "family", "ops", "problems", "closed"), *lines], right=(2, 3, 4))


@app.command(cls=Command)
def show(name: Name, *, folder: Folder = None, as_json: Json = False) -> None:
    """Show an instance with its problems, or a problem with the records that improved it.

    Examples
    --------
    remat library show unet/fixed-70
    """
    from remat.cli.common import print_json, print_rows
    from remat.experiments.library.instances import instance

    chosen = instance(name.partition("/")[0])
    opened = _open([name], folder)
    standings = [ledger.standing(problem) for problem, ledger in opened]
    if as_json:
        print_json({**chosen.model_dump(), "problems": [_facts(each) for each in standings]})
        return
    texts = {
        "instance": f"{chosen.name} version {chosen.version}: {chosen.ops:,} ops, peak {chosen.peak:,} bytes",
        "made by": chosen.command or chosen.file or "", "origin": chosen.origin, "digest": digest_text(chosen.digest),
    }  # fmt: skip
    print_rows([(word, text) for word, text in texts.items() if text])
    print()
    if len(standings) > 1 or "/" not in name:
        _print_problems(chosen.name, standings)
    else:
        _print_history(*opened[0])


@app.command(cls=Command)
def check(
    names: Patterns = None,
    *,
    rerun: Annotated[bool, typer.Option("--rerun", help="Also compute the best recorded bounds again.")] = False,
    folder: Folder = None,
) -> None:
    """Certify records again: graphs by their digests, schedules by simulation, bounds against schedules.

    With --rerun, each best bound is computed again within the time limit of its record, and must be reached.
    Instances whose graphs are not available are left out; REMAT_LIBRARY_GRAPHS names their folder.

    Exit code 0: all are right; 1: a bound was not reached again; 2: a record is wrong.

    Examples
    --------
    remat library check unet
    """
    from remat.experiments.library.ledger import check_strays

    opened = _open(names, folder)
    check_strays(_folder(folder))
    ledgers = list(dict.fromkeys(ledger for _, ledger in opened))
    absent = [each.instance.name for each in ledgers if not each.instance.available]
    number = sum(each.check() for each in ledgers if each.instance.available)
    say_sentence(f"{number:,} records of {counted(len(ledgers) - len(absent), 'instance')} are right")
    _say_left_out(absent)
    missed = 0
    for problem, ledger in opened if rerun else ():
        standing = ledger.standing(problem)
        if problem.instance.available and standing.bound.record is not None:
            missed += not _reaches(standing, ledger)
    if missed:
        raise typer.Exit(NO)


@app.command(cls=Command)
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Schedule in any format.")],
    *,
    method: Annotated[str, typer.Option("--method", "-m", metavar="METHOD", help="Who or what found it.")],
    instance: Annotated[
        str | None, typer.Option("--instance", metavar="NAME", help="Default: by the digest in FILE.")
    ] = None,
    machine: Annotated[str, typer.Option("--machine", metavar="TEXT", help="Where it was found.")] = "",
    seconds: Annotated[float | None, typer.Option("--seconds", min=0, metavar="N", help="How long it took.")] = None,
    folder: Folder = None,
) -> None:
    """Certify a schedule and add it to the records if it is better than the best known one of a problem.

    The answer is `better and added`, `not better` or `infeasible`, with the reason. The changed file is what a pull
    request carries.

    Exit code 0: added; 1: not better or infeasible; 2: an error.

    Examples
    --------
    remat library submit schedule.json -m rotor
    """
    from remat.experiments.library.submission import Verdict, submit, submitted

    decision = submit(file, submitted(method, machine, seconds), instance, _folder(folder))
    say_sentence(str(decision))
    if decision.verdict is not Verdict.BETTER:
        raise typer.Exit(NO)
    say_sentence(f"changed: {_ledger(decision.instance.name, folder).path}")


@app.command(cls=Command)
def export(
    name: Name,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write; its suffix selects the format.")
    ],
    folder: Folder = None,
) -> None:
    """Write the graph (or the buffers) of an instance, or the best known schedule (addresses) of a problem.

    Examples
    --------
    remat library export unet/fixed-70 -o schedule.json
    """
    from remat.experiments.library.instances import instance
    from remat.experiments.library.ledger import addresses_of
    from remat.experiments.library.records import AddressRecord, to_schedule
    from remat.graphs.io import write_graph
    from remat.io.files import write_atomic
    from remat.schedule.address_files import write_addresses
    from remat.schedule.buffer_tables import table_text
    from remat.schedule.io import write_schedule

    chosen = instance(name.partition("/")[0])
    if "/" not in name:
        if chosen.floor:
            write_atomic(output, table_text(chosen.buffers(chosen.graph())))
        else:
            write_graph(chosen.graph(), output)
        return
    ((problem, ledger),) = _open([name], folder)
    best = ledger.standing(problem).best
    if best is None:
        raise ProblemError(f"no schedule of {name} is known")
    if isinstance(best, AddressRecord):
        write_addresses(addresses_of(ledger.arena, best, str(ledger.path)), output)
        return
    write_schedule(to_schedule(ledger.graph, best, str(ledger.path)), output)


@app.command(cls=Command)
def run(
    names: Patterns = None,
    *,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-m",
            metavar="METHOD",
            autocompletion=complete_method,
            help="Method of `remat solve` (of `remat allocate` for arenas), or bounds, exhaustive, least-peak.",
        ),
    ] = "auto",
    time_limit: Annotated[float, time_option("Time for each problem")] = 10.0,
    seed: SearchSeed = 0,
    warm: Annotated[bool, typer.Option("--warm", help="Start from the best known schedules.")] = False,
    folder: Folder = None,
    quiet: Quiet = False,
) -> None:
    """Run a method on the open problems among NAME, and add what is better to the records.

    Every finished problem is written at once; Ctrl-C loses only the one that runs.

    Examples
    --------
    remat library run unet -m auto -t 1m
    """
    from remat.cli.reporter import Reporter
    from remat.experiments.library.runs import Call, attempt

    call = Call(method, time_limit, seed, warm=warm)
    opened = [each.problem for each in _standings(names, folder) if not each.closed]
    _say_left_out(dict.fromkeys(each.instance.name for each in opened if not each.instance.available))
    problems = [each for each in opened if each.instance.available]
    if not opened:
        say_sentence("no problem is open")
    for number, problem in enumerate(problems, 1):
        ledger = _ledger(problem.instance.name, folder)
        if ledger.standing(problem).closed:  # by a run on another problem
            continue
        title = f"[{number}/{len(problems)}] {problem.name}"
        try:
            with Reporter(quiet, label=title, limit=time_limit) as reporter:
                news = attempt(problem, ledger, replace(call, on_progress=reporter))
        except RematError as error:  # the method cannot answer this problem
            say_sentence(f"{title}: {one_line(str(error))}")
            continue
        words = [f"{what} {', '.join(each.label for each in found)}"
                 for what, found in (("better", news.better), ("bound raised", news.raised)) if found]  # fmt: skip
        say_sentence(f"{title}: {'; '.join(words) or 'nothing new'} ({news.seconds:.1f} s)")


def _say_left_out(names: Iterable[str]) -> None:
    """Name the instances whose graphs are not available, if any."""
    if absent := ", ".join(names):
        say_sentence(f"left out, without their graphs: {absent}; REMAT_LIBRARY_GRAPHS names their folder")


def _folder(folder: Path | None) -> Path:
    from remat.experiments.library.ledger import RECORDS

    return RECORDS if folder is None else folder


def _ledger(name: str, folder: Path | None) -> Ledger:
    from remat.experiments.library.instances import instance
    from remat.experiments.library.ledger import Ledger

    return Ledger(instance(name), _folder(folder))


def _open(names: list[str] | None, folder: Path | None) -> list[tuple[LibraryProblem, Ledger]]:
    """Return the problems of the given names with the ledgers of their instances, each read once."""
    from remat.experiments.library.instances import problems

    chosen = problems(names or ["*"])
    ledgers = {name: _ledger(name, folder) for name in dict.fromkeys(each.instance.name for each in chosen)}
    return [(each, ledgers[each.instance.name]) for each in chosen]


def _standings(names: list[str] | None, folder: Path | None) -> list[Standing]:
    return [ledger.standing(problem) for problem, ledger in _open(names, folder)]


def _percent(standing: Standing, value: int | None) -> str:
    share = standing.relative(value)
    return "" if share is None else f"{share:.4g} %"


def _known(standing: Standing) -> tuple[str, str, str, str]:
    """Return class, best, bound and gap for a table."""
    if standing.infeasible:
        return str(standing.group), "infeasible", "", ""
    gap = "" if standing.gap is None else f"{100 * standing.gap:.3g} %"
    best = _percent(standing, standing.value) or "?"
    return str(standing.group), best, _percent(standing, standing.bound.value), gap


def _finder(standing: Standing) -> str:
    return "" if standing.best is None or standing.infeasible else standing.best.origin.method


def _facts(standing: Standing) -> dict[str, object]:
    from remat.experiments.library.records import ScheduleRecord

    problem, best = standing.problem, standing.best
    schedule = best if isinstance(best, ScheduleRecord) else None
    return {
        "problem": problem.name, "ops": problem.instance.ops, "budget": problem.budget, "class": str(standing.group),
        "value": standing.value, "cost": None if schedule is None else schedule.cost,
        "peak": None if schedule is None else schedule.peak, "bound": standing.bound.value,
        "infeasible": standing.infeasible,
        "bound_by": standing.bound.source, "found_by": None if best is None else best.origin.method,
        "gap_percent": None if standing.gap is None else 100 * standing.gap,
    }  # fmt: skip


def _print_problems(name: str, standings: list[Standing]) -> None:
    from remat.cli.console import NUMBER, TEXT, console, print_columns

    columns = [("problem", TEXT), ("class", TEXT), ("best", NUMBER), ("gap", NUMBER), ("found by", TEXT),
               ("bound", NUMBER), ("bound by", TEXT)]  # fmt: skip
    rows = []
    for each in standings:
        group, best, bound, gap = _known(each)
        rows.append([each.problem.name, group, best, gap, _finder(each), bound, each.bound.source])
    print_columns(console(), f"{name}, problems", columns, rows)


def _print_history(problem: LibraryProblem, ledger: Ledger) -> None:
    from remat.cli.console import NUMBER, TEXT, console, print_columns
    from remat.experiments.library.ledger import objective
    from remat.experiments.library.records import BoundRecord

    standing = ledger.standing(problem)
    rows = []
    for record in ledger.history(problem):
        value = record.value if isinstance(record, BoundRecord) else objective(problem, record)[0]
        by = record.origin.method + (f": {record.source}" if isinstance(record, BoundRecord) else "")
        seconds = "" if record.origin.seconds is None else f"{record.origin.seconds:g}"
        shown = "infeasible" if value is None else f"{value:,}"
        rows.append([record.origin.date, record.kind, _percent(standing, value) or shown, by, seconds, shown])
    bound = f"{_percent(standing, standing.bound.value) or 'infeasible'} by {standing.bound.source}"
    say_sentence(f"{problem.name}: {standing.group}; bound {bound}")
    columns = [("date", TEXT), ("record", TEXT), ("value", NUMBER), ("by", TEXT), ("s", NUMBER), ("exact", NUMBER)]
    print_columns(console(), "records", columns, rows)


def _reaches(standing: Standing, ledger: Ledger) -> bool:
    """Compute a bound again, print whether it is reached, and return that."""
    from remat.experiments.library.runs import rerun

    again = rerun(standing, ledger)
    say_sentence(f"{standing.problem.name}: {again}")
    return again.reached
