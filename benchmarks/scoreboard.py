"""The scoreboard of best known schedules: run methods on it, update it, check it, write its table.

    python benchmarks/scoreboard.py run --suite quick --methods bounds,greedy,annealing --seconds 10
    python benchmarks/scoreboard.py update layered-100 my.schedule.json --method "my solver"
    python benchmarks/scoreboard.py check
    python benchmarks/scoreboard.py table

See benchmarks/scoreboard/README.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scoreboard.board import BEST, Board, Origin, Shelf
from scoreboard.records import certify
from scoreboard.runs import LEAST_PEAK, OWN, Log, Outcome, Task, deliver, outcomes
from scoreboard.suite import BUDGETS, INSTANCES, ORDERS, SUITES, Cell, suite
from scoreboard.table import to_json, to_markdown

from remat.errors import ProblemError, RematError
from remat.io.files import write_atomic
from remat.schedule.io import read_schedule

LOG = Path(__file__).resolve().parents[1] / "out" / "scoreboard.jsonl"
ERROR, INTERRUPTED = 2, 130


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 done, 1 nothing better, 2 an error in one line, 130 Ctrl-C (what is done is kept)."""
    options = parser().parse_args(arguments)
    try:
        return options.action(options, Board(options.folder))
    except RematError as error:
        print(f"scoreboard: error: {' '.join(str(error).split())}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        print("scoreboard: interrupted; what is done is kept", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The options of all commands."""
    top = argparse.ArgumentParser(prog="scoreboard.py", description="The scoreboard of best known schedules.")
    top.add_argument("--folder", type=Path, default=BEST, help="of the records; default: those of the repository")
    commands = top.add_subparsers(required=True)
    run = commands.add_parser("run", help="run methods on a suite; what is strictly better replaces what is known")
    run.add_argument(
        "--suite", default="quick", help=f"{', '.join(SUITES)}, or names of instances; separated by commas"
    )
    run.add_argument(
        "--methods", default="bounds,greedy,annealing", help=f"of solve(), FORMULATION/BACKEND, or {', '.join(OWN)}"
    )
    run.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="in %% of the reference peak")
    run.add_argument("--orders", default=",".join(ORDERS))
    run.add_argument("--seconds", type=float, default=10.0, help="of each run")
    run.add_argument("--seeds", default="0", help="one run for each")
    run.add_argument("--jobs", type=int, default=1, help="runs at a time, each of one thread")
    run.add_argument("--warm", action="store_true", help="start from the best known schedule")
    run.add_argument("--log", type=Path, default=LOG, help="runs that are done; those in it are not done again")
    run.add_argument("--again", action="store_true", help="do also those that are in the log")
    run.set_defaults(action=_run)
    update = commands.add_parser("update", help="offer a schedule from elsewhere")
    update.add_argument("instance", help=", ".join(INSTANCES))
    update.add_argument("schedule", type=Path, help="file in any format")
    update.add_argument("--method", default="submitted", help="who found it")
    update.set_defaults(action=_update)
    commands.add_parser("check", help="certify every record anew").set_defaults(action=_check)
    commands.add_parser("table", help="write the table").set_defaults(action=_table)
    return top


def _run(options: argparse.Namespace, board: Board) -> int:
    if options.seconds <= 0 or options.jobs < 1:
        raise ProblemError("--seconds and --jobs must be positive")
    log = Log(options.log)
    shelves = {one.name: Shelf(board, one) for one in suite(options.suite)}
    budgets, seeds = _numbers(options.budgets, BUDGETS, "budget"), _numbers(options.seeds, None, "seed")
    tasks = [
        Task(Cell(name, order, percent), method, 0.0 + options.seconds, seed, options.warm)
        for name in shelves
        for order in _words(options.orders, ORDERS, "order")
        for percent in budgets
        for method in _methods(options.methods)
        for seed in (seeds[:1] if method in OWN else seeds)
        if method != LEAST_PEAK or percent == min(budgets)  # it does not look at the budget
    ]
    done = set() if options.again else set(log.lines)
    left = [task for task in tasks if task.key not in done and not _closed(task, shelves[task.cell.instance])]
    print(f"{len(left)} of {len(tasks)} runs to do, at most {options.seconds:g} s each, {options.jobs} at a time")
    try:
        for number, (task, outcome) in enumerate(outcomes(left, options.jobs, board.folder), 1):
            shelf = shelves[task.cell.instance]
            improved, raised = deliver(task, outcome, shelf)
            print(f"[{number}/{len(left)}] {_told(task, outcome, shelf, improved, raised)}", flush=True)
            if outcome.interrupted:
                raise KeyboardInterrupt
            log.add(task, outcome, shelf.graph.digest)
    finally:
        _table(options, board)
    return 0


def _closed(task: Task, shelf: Shelf) -> bool:
    """Whether there is nothing left to be found at a cell."""
    record = shelf.board.read(task.cell)
    return task.method != LEAST_PEAK and record is not None and record.closed


def _told(task: Task, outcome: Outcome, shelf: Shelf, improved: list[Cell], raised: list[Cell]) -> str:
    base = shelf.graph.base_cost
    if outcome.error:
        what = outcome.error
    elif outcome.infeasible:
        what = "no schedule exists"
    elif outcome.cost is not None:
        what = f"overhead {100 * (outcome.cost / base - 1):.4f} %"
    else:
        what = "no schedule found" if outcome.bound is None else f"bound {100 * (outcome.bound / base - 1):.4f} %"
    news = [f"better at {len(improved)}" if improved else "", f"bound raised at {len(raised)}" if raised else ""]
    told = "; ".join([what, *(word for word in news if word)])
    return f"{task.cell.name} {task.method} seed {task.seed}: {told} ({outcome.total:.1f} s)"


def _methods(text: str) -> list[str]:
    from remat.experiments.contestant import Contestant

    methods = [word.strip() for word in text.split(",") if word.strip()]
    for method in methods:
        if method not in OWN:
            Contestant.parse(method)  # an unknown name is an error before the first run
    return methods


def _words(text: str, known: tuple[str, ...], what: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in known:
            raise ProblemError(f"{what} {word!r} is not one of {', '.join(known)}")
    return words


def _numbers(text: str, known: tuple[int, ...] | None, what: str) -> list[int]:
    numbers = []
    for word in text.split(","):
        if not word.strip().isdecimal() or (known and int(word) not in known):
            raise ProblemError(
                f"{what} {word.strip()!r} is not " + ("a number" if known is None else f"one of {known}")
            )
        numbers.append(int(word))
    return numbers


def _update(options: argparse.Namespace, board: Board) -> int:
    if options.instance not in INSTANCES:
        raise ProblemError(f"there is no instance {options.instance!r}; there are {', '.join(INSTANCES)}")
    (instance,) = suite(options.instance)
    shelf = Shelf(board, instance)
    improved = shelf.offer(
        valid(read_schedule(options.schedule, shelf.graph), shelf, options.schedule), Origin(options.method)
    )
    for cell in improved:
        print(f"better: {cell.name}")
    if not improved:
        print(f"{options.schedule}: valid, but nowhere better than what is known")
        return 1
    _table(options, board)
    return 0


def valid(schedule, shelf: Shelf, path: Path):
    """The schedule, if it is a valid one of that graph; else an error that names the file."""
    from remat.schedule import validate

    certificate = validate(shelf.graph, schedule)
    if not certificate.accepted:
        raise ProblemError(f"{path}: not a valid schedule of {shelf.instance.name!r}: {certificate.first}")
    return schedule


def _check(options: argparse.Namespace, board: Board) -> int:
    records = board.records()
    skipped = 0
    shelves: dict[str, Shelf] = {}
    for record in records:
        instance = INSTANCES[record.cell.instance]
        if not instance.present:
            skipped += 1
            continue
        shelf = shelves.setdefault(instance.name, Shelf(board, instance))
        certify(record, shelf.graph, str(board.path(record.cell)))
    for suffix, text in (("json", to_json(records)), ("md", to_markdown(records))):
        path = options.folder.parent / f"table.{suffix}"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            raise ProblemError(f"{path}: does not say what the records say; write it anew with `scoreboard.py table`")
    print(f"{len(records) - skipped} records certified" + (f", {skipped} left out: graph not here" if skipped else ""))
    return 0


def _table(options: argparse.Namespace, board: Board) -> int:
    records = board.records()
    write_atomic(options.folder.parent / "table.json", to_json(records))
    write_atomic(options.folder.parent / "table.md", to_markdown(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
