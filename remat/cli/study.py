"""``remat study``: instances × problems × methods × seeds, solved into a database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.cells import UNLIMITED, event_words, time_text
from remat.cli.command import Command, Group
from remat.cli.options import Quiet
from remat.cli.screen import say_sentence
from remat.cli.terminal import INTERRUPTED, NO, OK
from remat.io.files import check_outputs, write_atomic

if TYPE_CHECKING:
    from remat.studies.plan import Plan
    from remat.studies.running import Event
    from remat.studies.study import Study

app = typer.Typer(
    cls=Group, help="Run instances × problems × methods × seeds into a database; export and report them.",
    no_args_is_help=True, rich_markup_mode=None, add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

StudyFile = Annotated[Path, typer.Argument(metavar="FILE", help="Study in TOML.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a study in the store.")]
Url = Annotated[str, typer.Option(
    "--store", envvar="REMAT_STORE", metavar="URL",
    help="Database (sqlite:///study.db, postgresql+psycopg://user@host/base)."
)]  # fmt: skip
Folder = Annotated[Path | None, typer.Option(
    "--folder", metavar="FOLDER",
    help="Folder of graphs and schedules; default: next to the SQLite file, or study.files."
)]  # fmt: skip
Executor = Annotated[
    str,
    typer.Option("--executor", metavar="EXECUTOR", help="processes:N, dask://host:port, or slurm:JOBS,OPTION=VALUE."),
]
Retry = Annotated[bool, typer.Option("--retry-failed", help="Solve failed cells again.")]
DEFAULT_URL = "sqlite:///study.db"
#: Reasons of refused and of failed cells that are shown.
MOST_REASONS = 5


@app.command(cls=Command)
def run(
    file: StudyFile,
    *,
    store: Url = DEFAULT_URL,
    folder: Folder = None,
    executor: Executor = "processes",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and for how long at most.")] = False,
    retry_failed: Retry = False,
    quiet: Quiet = False,
) -> None:
    """Add the cells of FILE to the store and solve those that have no result.

    Several runners may share a store, also on several machines: each cell is solved once. Cells of a runner that has
    ended go to others after a minute.

    Ctrl-C keeps finished cells; the same command continues.

    Exit code 0: all cells have a result; 1: some failed; 2: an error; 130: Ctrl-C.

    Examples
    --------
    remat study run study.toml --executor processes:4
    """
    from remat.studies.executors import check_executor
    from remat.studies.plan import Plan
    from remat.studies.store import Store
    from remat.studies.study import Study

    plan = Plan.from_file(file)
    if dry_run:
        _print_plan(plan)
        return
    check_executor(executor)
    with Study(plan, Store(store, folder)) as study:
        _run(study, executor, retry=retry_failed, quiet=quiet)


@app.command(cls=Command)
def resume(
    name: Name,
    *,
    store: Url = DEFAULT_URL,
    folder: Folder = None,
    executor: Executor = "processes",
    retry_failed: Retry = False,
    quiet: Quiet = False,
) -> None:
    """Solve the cells of study NAME that have no result, as `remat study run`, without its file.

    Examples
    --------
    remat study resume first
    """
    with _study(name, store, folder) as study:
        _run(study, executor, retry=retry_failed, quiet=quiet)


@app.command(cls=Command)
def tune(
    file: StudyFile,
    *,
    store: Url = DEFAULT_URL,
    folder: Folder = None,
    executor: Executor = "processes",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Configuration of the best table (.toml).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show halves, parameters and longest time.")] = False,
    quiet: Quiet = False,
) -> None:
    """Tune the table of stages of the default method on half of the instances of FILE, and compare on the other half.

    FILE has a table `tune` instead of `methods`. All solves are cells in the store: after Ctrl-C or a crash the same
    command continues.

    Exit code 0: the best table wins on the other half; 1: it does not; 2: an error; 130: Ctrl-C.

    Examples
    --------
    remat study tune portfolio.toml -o tuned.toml
    """
    from remat.cli.tuning import print_halves, tune_study
    from remat.studies.stage_space import table_toml
    from remat.studies.tuning import Tuner

    check_outputs((output, (".toml",)))
    tuner = Tuner.from_file(file)
    if dry_run:
        print_halves(tuner)
        return
    found = tune_study(tuner, store, folder, executor, quiet=quiet)
    if output is not None:
        write_atomic(output, table_toml(found.best.table))
    raise typer.Exit(OK if found.wins else NO)


@app.command(cls=Command)
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A study; default: all.")] = None,
    *,
    store: Url = DEFAULT_URL,
    folder: Folder = None,
) -> None:
    """Show the cells of a study by state, and its methods by result.

    Examples
    --------
    remat study status first
    """
    from remat.studies.store import Store
    from remat.studies.study import Study

    with Store.existing(store, folder) as opened:
        for word in [name] if name is not None else opened.studies():
            if name is not None:
                _print_methods(Study.resume(name, opened))
            _print_counts(word, opened.counts(word))


@app.command(cls=Command)
def export(
    name: Name,
    *,
    output: Annotated[
        list[Path], typer.Option("--output", "-o", metavar="FILE", help="File (.csv, .json, .parquet); repeatable.")
    ],
    store: Url = DEFAULT_URL,
    folder: Folder = None,
) -> None:
    """Write the results of study NAME to files. Every schedule is certified again.

    Examples
    --------
    remat study export first -o results.csv
    """
    from remat.studies.export import SUFFIXES

    check_outputs(*((path, SUFFIXES) for path in output))
    with _study(name, store, folder) as study:
        study.export(*output)


@app.command(cls=Command)
def report(
    name: Name,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Page to write (.html).")],
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the figures, as .pdf and .svg.")
    ] = None,
    tables: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the tables in LaTeX (booktabs).")
    ] = None,
    pages: Annotated[bool, typer.Option("--pages/--no-pages", help="Include an interactive page per schedule.")] = True,
    store: Url = DEFAULT_URL,
    folder: Folder = None,
) -> None:
    """Write a report of study NAME as one page that needs no network. Every schedule is certified again.

    Examples
    --------
    remat study report first -o report.html
    """
    from remat.io.page import SUFFIXES

    check_outputs((output, SUFFIXES))
    with _study(name, store, folder) as study:
        found = study.report(pages=pages)
        found.save(output)
        if figures is not None:
            found.save_figures(figures)
        if tables is not None:
            found.save_tables(tables)


@app.command(cls=Command)
def rm(
    name: Name,
    *,
    store: Url = DEFAULT_URL,
    folder: Folder = None,
) -> None:
    """Remove study NAME from the store, with the results that no other study shares. Files of schedules stay.

    Examples
    --------
    remat study rm first
    """
    with _study(name, store, folder) as study:
        say_sentence(f"removed {name} with the results of {study.remove():,} cells")


def _study(name: str, url: str, folder: Path | None) -> Study:
    from remat.studies.store import Store
    from remat.studies.study import Study

    return Study.resume(name, Store.existing(url, folder))


def _run(study: Study, executor: str, *, retry: bool, quiet: bool) -> None:
    """Run a study with progress, and leave with its exit code."""
    from remat.cli.reporter import Reporter

    def on_event(event: Event) -> None:
        place, cell, left = event_words(event)
        reporter.news(f"{place} {cell}{left and f'; {left}'}", place, left, cell)

    with Reporter(quiet, label=study.name) as reporter:
        finished = study.run(executor, retry_failed=retry, on_event=on_event)
    _print_methods(study)
    _print_counts(study.name, study.counts())
    if not finished:
        say_sentence(f"interrupted: `remat study resume {study.name}` continues")
    raise typer.Exit(INTERRUPTED if not finished else NO if study.counts()["failed"] else OK)


def _print_plan(plan: Plan) -> None:
    from remat.runtime.resources import available_cpus

    methods = Counter(cell.method for cell in plan.cells)
    say_sentence(f"{plan.name}: {len(plan.instances):,} instances, {len(plan.cells):,} cells")
    for method, number in methods.items():
        print(f"  {method}: {number:,}")
    if plan.seconds is None:
        say_sentence(UNLIMITED)
    else:
        slots = max(1, available_cpus() // max(cell.threads for cell in plan.cells))
        alone, together = time_text(plan.seconds), time_text(plan.seconds / slots)
        say_sentence(f"at most {alone} one after another, {together} with processes:{slots}")


def _print_counts(name: str, counts: Mapping[str, int]) -> None:
    """Print the number of cells by state in a sentence."""
    done = counts["done"] + counts["failed"]
    words = ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)
    say_sentence(f"{name}: {done:,} of {sum(counts.values()):,} cells finished ({words})")


def _print_methods(study: Study) -> None:
    """Print a table of methods with the number of cells by result."""
    from remat.cli.console import NUMBER, TEXT, console, print_columns

    words = ("optimal", "feasible", "infeasible", "unknown", "refused", "failed", "waiting", "running")
    found: dict[str, Counter[str]] = {}
    reasons: dict[str, list[str]] = {"refused": [], "failed": []}
    for result in study.results(certify=False):
        word = str(result.row.get("status", result.state))
        found.setdefault(result.cell.method, Counter())[word] += 1
        if word in reasons:
            reasons[word].append(f"{result.cell.method}: {result.row['message']}")
    shown = [word for word in words if any(counts[word] for counts in found.values())]
    columns = [("method", TEXT), ("cells", NUMBER), *((word, NUMBER) for word in shown)]
    lines = (
        [method, f"{counts.total():,}", *(f"{counts[word]:,}" for word in shown)] for method, counts in found.items()
    )
    print_columns(console(), study.name, columns, lines)
    for word, texts in reasons.items():
        telling = _most_telling(texts)
        for text in telling:
            say_sentence(f"{word}: {text}")
        if len(texts) > len(telling):
            say_sentence(f"{word}: {len(texts) - len(telling):,} more; `remat study export` writes all reasons")


def _most_telling(reasons: list[str]) -> list[str]:
    """Return some of the reasons; faults of files come before files that are missing."""
    return sorted(dict.fromkeys(reasons), key=lambda text: text.endswith(" is missing"))[:MOST_REASONS]
