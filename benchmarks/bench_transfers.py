"""Time with a host on training graphs: overhead of methods over computing each op once, the bound, and the gap in %.

    python benchmarks/bench_transfers.py [--seconds S for each search] [--graphs G,H] [--budgets 50,35,20]
        [--machines pcie4,nvlink-c2c] [--method transfers] [--rivals] [--rows FILE]

Graphs are training steps of the zoo with times in ns by the roofline of an A100 with TF32, as data sheets state it:
156 TFLOP/s, 2039 GB/s, at least 5 us for each op. The machines are separated by semicolons. "search" is the method,
"bound" the best bound that it has, or the transfer bound. With --rivals also: "again" recomputes only (the default
method), "all" moves every tensor that the backward pass reads, "layers" those of every k-th layer for the best k,
"levels" is a two-level programme as torchtitan's. A dash: nothing within the budget, which may be below the need of an
op. Limits count processor time of one thread. Rows are added to the CSV file --rows, and those in it are skipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import common
from two_level_offload import two_level

from remat import SolveOptions, solve
from remat.bounds import stage_bounds
from remat.graphs.roofline import with_times
from remat.graphs.zoo import TRAINING_STEPS
from remat.heuristics.transfers.references import best_of_layers, move_everything
from remat.problem import Problem
from remat.runtime.deadline import deadlines_by
from remat.schedule import Schedule
from remat.schedule.certificate import Verdict

GRAPHS = "gpt,llama,t5,unet-ops,resnet50-ops"
#: Slow, in between, fast.
MACHINES = "rate=3GB/s;pcie4;nvlink-c2c"
RIVALS = ["again", "all", "layers", "levels"]


def overhead(problem: Problem, schedule: Schedule | None) -> float | None:
    """Return the overhead of a schedule in %; None if there is none within the budget."""
    if schedule is None:
        return None
    found = problem.validate(schedule)
    return (
        None
        if found.verdict is not Verdict.VALID or found.time is None
        else 100 * (found.time / problem.graph.base_cost - 1)
    )


def text(value: float | None) -> str:
    """Return a number in %, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def rivals(problem: Problem, seconds: float) -> list[float | None]:
    """Return the overheads of recomputation only, everything moved, layers moved, and two levels."""
    again = solve(problem.one_memory, stop=seconds, options=SolveOptions(threads=1)).schedule
    schedules = [again, move_everything(problem), best_of_layers(problem), two_level(problem, seconds)]
    return [overhead(problem, schedule) for schedule in schedules]


def searched(problem: Problem, method: str, seconds: float) -> tuple[float | None, float | None]:
    """Return the overheads of a method's schedule and of the best bound."""
    found = solve(problem, method, stop=seconds, options=SolveOptions(threads=1))
    known = [each.value for each in stage_bounds(problem, integer=False, threads=1)] if method != "auto" else []
    bound = known[-1] if known else found.bound
    return overhead(problem, found.schedule), None if bound is None else 100 * (bound / problem.graph.base_cost - 1)


def rows(given: argparse.Namespace, kept: common.Rows) -> Iterator[list[str]]:
    """Yield the cells of each row that is not kept yet."""
    for name in given.graphs.split(","):
        graph = with_times(TRAINING_STEPS[name](), "A100")
        for budget in given.budgets.split(","):
            for machine in given.machines.split(";"):
                if kept.known(graph=name, budget=f"{budget} %", machine=machine):
                    continue
                head = [name, str(len(graph.ops)), f"{budget} %", machine]
                problem = Problem(graph, f"{budget}%", machine=machine)
                if problem.hopeless:
                    yield [*head, *["-"] * (len(RIVALS) * given.rivals + 4)]
                    continue
                others = rivals(problem, given.seconds) if given.rivals else []
                (search, bound), _, used = common.timed(partial(searched, problem, given.method, given.seconds))
                gap = None if search is None or bound is None else 100 * ((100 + search) / (100 + bound) - 1)
                yield [*head, *map(text, (*others, search, bound, gap)), f"{used:.1f}"]


def main() -> None:
    given = common.parse(
        str(__doc__), seconds=60.0, graphs=GRAPHS, budgets="50,35,20", machines=MACHINES, method="auto", rows="",
        rivals=False,
    )  # fmt: skip
    others = [f"{name}:7" for name in RIVALS] if given.rivals else []
    columns = ["graph:-12", "ops:5", "budget:6", "machine:-11", *others, "search:7", "bound:7", "gap:6", "seconds:7"]
    table, kept = common.Table(*columns), common.Rows(tuple(each.rsplit(":", 1)[0] for each in columns), given.rows)
    for row in kept.rows:
        table.row(*row.values())
    with deadlines_by("processor"):
        for cells in rows(given, kept):
            table.row(*cells)
            kept.add(dict(zip(kept.fields, cells, strict=True)))


if __name__ == "__main__":
    main()
