"""Time with a host on training graphs: overhead of methods over computing each op once, the bound, and the gap in %.

    python benchmarks/bench_transfers.py [--seconds S for each search] [--graphs G,H] [--budgets 50,35,20]
        [--machines pcie4,nvlink-c2c] [--rivals]

Graphs are training steps of the zoo with times in ns by the roofline of an A100 with TF32, as data sheets state it:
156 TFLOP/s, 2039 GB/s, at least 5 us for each op. "search" is the method `transfers`, "bound" the transfer bound. With
--rivals also: "again" recomputes only (the default method), "all" moves every tensor that the backward pass
reads, "layers" those of every k-th layer for the best k, "levels" is a two-level programme as torchtitan's. A dash:
nothing within the budget, which may be below the need of an op.
"""

from __future__ import annotations

from functools import partial

import common
from two_level_offload import two_level

from remat import solve
from remat.bounds import Bound, stage_bounds
from remat.graphs.roofline import with_times
from remat.graphs.zoo import TRAINING_STEPS
from remat.heuristics.transfers import Transfers
from remat.heuristics.transfers.references import best_of_layers, move_everything
from remat.problem import Problem
from remat.schedule import Schedule
from remat.schedule.certificate import Verdict

GRAPHS = "gpt,llama,t5,unet-ops,resnet50-ops"


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
    again = solve(problem.one_memory, stop=seconds).schedule
    schedules = [again, move_everything(problem), best_of_layers(problem), two_level(problem, seconds)]
    return [overhead(problem, schedule) for schedule in schedules]


def _bounds(problem: Problem) -> list[Bound]:
    return list(stage_bounds(problem, integer=False, threads=1))


def main() -> None:
    given = common.parse(
        str(__doc__), seconds=60.0, graphs=GRAPHS, budgets="50,35,20", machines="pcie4,nvlink-c2c", rivals=False
    )
    others = ["again:7", "all:7", "layers:7", "levels:7"] if given.rivals else []
    table = common.Table(
        "graph:-12", "ops:5", "budget:6", "machine:-10", *others, "search:7", "bound:7", "gap:6", "seconds:7"
    )
    for name in given.graphs.split(","):
        graph = with_times(TRAINING_STEPS[name](), "A100")
        for budget in given.budgets.split(","):
            for machine in given.machines.split(","):
                problem = Problem(graph, f"{budget}%", machine=machine)
                head = name, len(graph.ops), f"{budget} %", machine
                if problem.hopeless:
                    table.row(*head, *["-"] * (len(others) + 4))
                    continue
                shown = [text(value) for value in rivals(problem, given.seconds)] if given.rivals else []
                found = solve(problem, method=Transfers, stop=given.seconds).schedule
                search = overhead(problem, found)
                bounds, _, used = common.timed(partial(_bounds, problem))
                bound = bounds[-1].overhead
                gap = None if search is None or bound is None else 100 * ((100 + search) / (100 + bound) - 1)
                table.row(*head, *shown, text(search), text(bound), text(gap), f"{used:.1f}")


if __name__ == "__main__":
    main()
