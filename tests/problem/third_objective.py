"""Program that adds an objective, least time with waits, and uses it from solve() to the shell; a test runs it."""
# ruff: noqa: E402

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from remat.problem.objective import Objective


class LeastWait(Objective, name="least-wait"):
    """Cost, and a wait of three units before each recomputation."""

    about = "of computes and waits"
    key = word = "time"
    verb = "takes"
    unit = "ns"
    includes_cost = True

    def value(self, certificate: Any) -> int:
        return int(certificate.cost + 3 * certificate.recomputations)

    def base(self, graph: Any) -> int:
        return int(graph.base_cost)


# Users of objectives are imported after the definition, as if it were in remat/problem/objective.py.
from remat import Problem, SolveOptions, solve
from remat.cli import main
from remat.config import Config, schema
from remat.errors import ProblemError
from remat.experiments.compare import compare
from remat.experiments.frontier import frontier
from remat.graphs.io import write_graph
from remat.graphs.layered import layered
from remat.io.figures import write_figure
from remat.solving.progress import describe
from remat.solving.result import Result
from remat.solving.stop import TargetCost
from remat.studies.stored_runs import StudyRuns

GRAPH = layered(12, seed=5)
PROBLEM = Problem(GRAPH, "80%", objective="least-wait")
ONE = SolveOptions(threads=1)


class MostWait(LeastWait, name="most-wait"):
    """Its opposite."""

    lower_is_better = False


def check(result: Result) -> int:
    """Return the time of a result whose page states it."""
    found = result.certificate
    assert found is not None
    time = found.cost + 3 * found.recomputations
    assert result.objective == time == result.incumbents[-1].objective
    assert GRAPH.base_cost <= result.bound <= time
    overhead = 100 * (time - GRAPH.base_cost) / GRAPH.base_cost
    assert f"{overhead:.4g} %, time {time:,} ns (each op once {GRAPH.base_cost:,})" in str(result), str(result)
    assert f"time {result.bound:,} ns, gap" in str(result)
    return time


def check_solve() -> None:
    """Solve by heuristics, by the default method and by none that cannot state it."""
    moments: list[str] = []

    def time_of(method: str) -> int:
        return check(solve(PROBLEM, method, stop=2, options=ONE, on_progress=lambda at: moments.append(describe(at))))

    times = {method: time_of(method) for method in ("greedy", "eviction", "auto")}
    cheapest = solve(Problem(GRAPH, "80%"), stop=2, options=ONE)
    assert cheapest.certificate is not None
    assert times["auto"] <= min(times["greedy"], times["eviction"], PROBLEM.value(cheapest.certificate))
    most, known = Objective("most-wait"), cheapest.certificate
    assert most.rank(known) == (-most.value(known), known.peak) and most.reaches(5, 4) and not most.reaches(3, 4)
    assert any("overhead" in moment for moment in moments)
    assert solve(PROBLEM, "greedy", stop=TargetCost(times["greedy"])).objective == times["greedy"]
    try:
        solve(PROBLEM, "checkmate")
    except ProblemError as error:
        assert "'checkmate' does not search for the least wait" in str(error)
    else:
        raise AssertionError("checkmate states the cost only")


def check_experiments(folder: Path) -> None:
    """Compare, draw, and resume a frontier."""
    matrix = compare(PROBLEM, ["80%", "90%"], ["greedy"], options=ONE)
    facts = json.loads(matrix.to_json())
    assert facts["rules"]["objective"] == "least-wait"
    times = [check(run.result) for run in matrix.runs if run.result is not None]
    assert [run["time"] for run in facts["runs"]] == times
    assert [run["incumbents"][-1]["time"] for run in facts["runs"]] == times
    for reused in (0, 2):
        with StudyRuns(f"sqlite:///{folder}/study.db", "curve") as runs:
            found = frontier(PROBLEM, ["80%", "90%"], ["greedy"], options=ONE, store=runs)
        assert [cell.value for cell in found.of("greedy")] == times
        assert runs.reused == reused
    write_figure(folder / "matrix.svg", matrix.plot)
    write_figure(folder / "frontier.svg", found.plot)


def check_configuration(folder: Path) -> None:
    """Solve by a configuration and by the shell."""
    write_graph(GRAPH, folder / "graph.json")
    assert "least-wait" in schema()["$defs"]["ProblemSection"]["properties"]["objective"]["enum"]
    problem = {"graph": str(folder / "graph.json"), "budget": "80%", "objective": "least-wait"}
    time = check(Config.from_mapping({"problem": problem, "solve": {"method": "greedy"}}).run())
    with redirect_stdout(io.StringIO()) as out:
        words = ["solve", problem["graph"], "-b", "80%", "--objective", "least-wait", "--method", "greedy", "--json"]
        assert main([*words, "-q"]) == 0
    assert json.loads(out.getvalue())["objective"] == time


if __name__ == "__main__":
    check_solve()
    check_experiments(Path(sys.argv[1]))
    check_configuration(Path(sys.argv[1]))
