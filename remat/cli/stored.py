"""Option ``--store`` of experiments, whose runs become cells of a study."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from remat.cli.saving import Outputs
    from remat.studies.stored_runs import StudyRuns

StoreUrl = Annotated[str | None, typer.Option(
    "--store", metavar="URL",
    help="Database (sqlite:///study.db) that receives the runs; runs that it has are not repeated."
)]  # fmt: skip
#: Longest name of a study that is made of a graph's name.
LONGEST = 100


@contextmanager
def stored_runs(url: str | None, experiment: str, graph: str) -> Iterator[StudyRuns | None]:
    """Open the study of an experiment on a graph, or None without a URL."""
    if url is None:
        yield None
        return
    from remat.studies.stored_runs import StudyRuns

    name = f"{experiment}-{re.sub(r'[^A-Za-z0-9._-]+', '-', graph)}"
    with StudyRuns(url, name[:LONGEST]) as runs:
        yield runs


def print_stored(runs: StudyRuns | None, outputs: Outputs, *, quiet: bool = False) -> None:
    """Print the name of the study with the number of runs that the store had, unless `quiet`; report faults."""
    if runs is None:
        return
    from remat.cli.console import console, say

    if not quiet:
        say(console(), f"study {runs.name}: {runs.reused} of {runs.asked} runs are from the store")
    for fault in runs.faults:
        outputs.fail(f"{fault}; the table has all results, and the same command solves again what is not stored")
