"""Command line of the scoreboard."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from remat.errors import ProblemError, RematError
from remat.experiments.contestant import Contestant
from remat.io.files import write_atomic
from remat.schedule import validate
from remat.schedule.io import read_schedule
from scoreboard.board import BEST, Board, InstanceRecords
from scoreboard.records import Record, certify
from scoreboard.runs import OWN, Log, Task, deliver, outcomes
from scoreboard.suite import BUDGETS, INSTANCES, ORDERS, SUITES, Cell, suite
from scoreboard.table import to_json, to_markdown

LOG = Path(__file__).resolve().parents[2] / "out" / "scoreboard.jsonl"
ERROR, INTERRUPTED = 2, 130


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 done, 1 nothing better, 2 error, 130 Ctrl-C; finished runs are kept."""
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
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(prog="scoreboard.py", description="The scoreboard of best known schedules.")
    top.add_argument("--folder", type=Path, default=BEST, help="folder of the records; default: that of the repository")
    commands = top.add_subparsers(required=True)
    run = commands.add_parser("run", help="run methods on a suite; strictly better results replace records")
    for name, default, text in (
        ("suite", "quick", f"{', '.join(SUITES)}, or names of instances; separated by commas"),
        ("methods", "bounds,greedy,annealing", f"methods of solve(), FORMULATION/BACKEND, or {', '.join(OWN)}"),
        ("budgets", ",".join(map(str, BUDGETS)), "in %% of the reference peak"),
        ("orders", ",".join(ORDERS), "rules of order"),
        ("seconds", 10.0, "time limit of each run"),
        ("seeds", "0", "seeds, one run for each"),
        ("jobs", 1, "parallel runs, each with one thread"),
        ("log", LOG, "log of finished runs, which are not repeated"),
    ):
        run.add_argument(f"--{name}", type=type(default), default=default, help=text)
    run.add_argument("--warm", action="store_true", help="start from the best known schedule")
    run.add_argument("--again", action="store_true", help="repeat runs in the log")
    run.set_defaults(action=_run)
    update = commands.add_parser("update", help="offer a schedule from elsewhere")
    update.add_argument("instance", help=", ".join(INSTANCES))
    update.add_argument("schedule", type=Path, help="file in any format")
    update.add_argument("--method", default="submitted", help="who found it")
    update.set_defaults(action=_update)
    commands.add_parser("check", help="certify every record again").set_defaults(action=_check)
    commands.add_parser("table", help="write the table").set_defaults(action=_table)
    return top


def _run(options: argparse.Namespace, board: Board) -> int:
    if options.seconds <= 0 or options.jobs < 1:
        raise ProblemError("--seconds and --jobs must be positive")
    log = Log(options.log)
    records_of = {one.name: InstanceRecords(board, one) for one in suite(options.suite)}
    budgets = [int(word) for word in _words(options.budgets, map(str, BUDGETS), "budget")]
    if not all(map(str.isdecimal, seeds := _words(options.seeds, None, "seed"))):
        raise ProblemError(f"--seeds must be numbers, not {options.seeds!r}")
    methods = _words(options.methods, None, "method")
    for method in set(methods) - set(OWN):
        Contestant.parse(method)  # unknown names raise before the first run
    tasks = [
        Task(Cell(name, order, percent), method, options.seconds, int(seed), options.warm)
        for name in records_of
        for order in _words(options.orders, ORDERS, "order")
        for percent in budgets
        for method in methods
        for seed in (seeds[:1] if method in OWN else seeds)
        if method != "least-peak" or percent == min(budgets)  # independent of the budget
    ]
    done = set() if options.again else log.done
    left = [task for task in tasks if task.key not in done and not _closed(task, board)]
    print(f"{len(left)} of {len(tasks)} runs to do, at most {options.seconds:g} s each, {options.jobs} at a time")
    try:
        for number, (task, outcome) in enumerate(outcomes(left, options.jobs, board.folder), 1):
            instance_records = records_of[task.cell.instance]
            improved, raised = deliver(task, outcome, instance_records)
            news = f"; better at {len(improved)}" * bool(improved) + f"; bound raised at {len(raised)}" * bool(raised)
            print(f"[{number}/{len(left)}] {task.cell.name} {task.method} seed {task.seed}: {outcome}{news} "
                  f"({outcome.total:.1f} s)", flush=True)  # fmt: skip
            if outcome.interrupted:
                raise KeyboardInterrupt
            log.add(task, outcome, instance_records.graph.digest)
    finally:
        _table(options, board)
    return 0


def _closed(task: Task, board: Board) -> bool:
    """Return True if the best schedule of a cell is proved optimal, or the cell infeasible."""
    record = board.read(task.cell)
    return task.method != "least-peak" and record is not None and record.closed


def _words(text: str, known: Iterable[str] | None, what: str) -> list[str]:
    """Split a list at commas, and refuse unknown words."""
    words = [word.strip() for word in text.split(",")]
    known = words if known is None else list(known)
    for word in words:
        if word not in known:
            raise ProblemError(f"{what} {word!r} is not one of {', '.join(known)}")
    return words


def _update(options: argparse.Namespace, board: Board) -> int:
    if options.instance not in INSTANCES:
        raise ProblemError(f"there is no instance {options.instance!r}; there are {', '.join(INSTANCES)}")
    (instance,) = suite(options.instance)
    instance_records = InstanceRecords(board, instance)
    schedule = read_schedule(options.schedule, instance_records.graph)
    certificate = validate(instance_records.graph, schedule)
    if not certificate.accepted:
        raise ProblemError(f"{options.schedule}: not a valid schedule of {instance.name!r}: {certificate.first}")
    improved = instance_records.offer(schedule, options.method)
    for cell in improved:
        print(f"better: {cell.name}")
    if not improved:
        print(f"{options.schedule}: valid, but nowhere better than what is known")
        return 1
    return _table(options, board)


def _check(_options: argparse.Namespace, board: Board) -> int:
    records = board.records()
    instances = [INSTANCES[name] for name in {record.instance for record in records}]
    graphs = {one.name: one.make() for one in instances if one.present}
    available = [record for record in records if record.instance in graphs]
    for record in available:
        certify(record, graphs[record.instance], str(board.path(record.cell)))
    for path, text in _tables(board, records).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            raise ProblemError(f"{path}: differs from the records; write it with `scoreboard.py table`")
    skipped = len(records) - len(available)
    print(f"{len(available)} records certified" + (f", {skipped} left out: graph not here" if skipped else ""))
    return 0


def _table(_options: argparse.Namespace, board: Board) -> int:
    for path, text in _tables(board, board.records()).items():
        write_atomic(path, text)
    return 0


def _tables(board: Board, records: list[Record]) -> dict[Path, str]:
    """Return the texts of the tables by their files."""
    folder = board.folder.parent
    return {folder / "table.json": to_json(records), folder / "table.md": to_markdown(records)}
