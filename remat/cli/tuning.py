"""``remat study tune``: a better table of the default method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from remat.cli.cells import UNLIMITED, event_words, time_text
from remat.cli.screen import say_sentence
from remat.cli.terminal import INTERRUPTED

if TYPE_CHECKING:
    from remat.studies.running import Event
    from remat.studies.tuning import Trial, Tuner, Tuning


def tune_study(tuner: Tuner, url: str, folder: Path | None, executor: str, *, quiet: bool) -> Tuning:
    """Tune the table of a study and print the comparison."""
    from remat.cli.reporter import Reporter
    from remat.studies.executors import check_executor, make_executor
    from remat.studies.store import Store
    from remat.studies.tuning import tune

    check_executor(executor)
    trials: list[Trial] = []

    def on_trial(trial: Trial) -> None:
        trials.append(trial)
        part = "" if trial.cells == trial.total else f", ended after {trial.cells} of {trial.total} cells"
        report(f"table {trial.number}: ratio {trial.ratio:.4f}{part}")

    def on_event(event: Event) -> None:
        report(event_words(event)[1])

    def report(line: str) -> None:
        place = f"[{len(trials)}/{tuner.section.trials + 1}]"
        reporter.news(f"{place} {line}", place, line)

    try:
        with (
            Store(url, folder) as store,
            make_executor(executor, tuner.threads) as made,
            Reporter(quiet, label=tuner.name) as reporter,
        ):
            found = tune(tuner, store, made, on_event=on_event, on_trial=on_trial)
    except KeyboardInterrupt:
        say_sentence("interrupted: the same command continues")
        raise typer.Exit(INTERRUPTED) from None
    print_tuning(tuner, found)
    return found


def print_halves(tuner: Tuner) -> None:
    """Print the halves, the parameters, and the most seconds of all solves."""
    parameters = sum(1 for _ in tuner.space.parameters())
    say_sentence(f"{tuner.name}: {tuner.section.trials:,} tables, {parameters:,} parameters")
    for word, half in (("training", tuner.training), ("held out", tuner.held_out)):
        say_sentence(f"{word}: {', '.join(each.name for each in half)}")
    seconds = tuner.seconds
    say_sentence(UNLIMITED if seconds is None else f"at most {time_text(seconds)}")


def print_tuning(tuner: Tuner, found: Tuning) -> None:
    """Print the best table's ratio, and a line for each half."""
    from remat.cli.console import NUMBER, TEXT, console, print_columns, say

    out, best = console(), found.best
    if not found.halves:
        say(out, f"no table of {len(found.trials) - 1} is better than the default one on the training half")
        return
    columns = [(word, NUMBER if place else TEXT) for place, word in enumerate(
        ("half", "instances", "default %", "tuned %", "ratio", "wins", "losses", "ties", "p")
    )]  # fmt: skip
    lines = [
        [half.study.removeprefix(f"{tuner.name}-"), str(len(half.instances)), _number(half.default),
         _number(half.tuned), f"{half.ratio:.4f}", str(half.duel.wins), str(half.duel.losses), str(half.duel.ties),
         f"{half.duel.p:.2g}"]
        for half in found.halves
    ]  # fmt: skip
    print_columns(out, f"{tuner.name}: table {best.number} against the default one", columns, lines)
    say(out, "overheads are shifted geometric means; the ratio is the mean over cells, below 1 if the table is better")
    verdict = "wins" if found.wins else "does not win"
    say(out, f"the table {verdict} on the other half; `remat study report {found.halves[1].study}` shows it")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
