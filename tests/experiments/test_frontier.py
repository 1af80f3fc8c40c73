"""Frontiers: optima of each budget, starts from smaller budgets, resuming, faults of executors."""

import json
import os
import threading
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
from helpers import ONE, some_slow
from refusals import refused

from remat import Problem, frontier, registry
from remat.cli.frontier import schedules_by
from remat.experiments.runs import Limits, NoStore, as_contestant, run_method
from remat.experiments.staircase import memory_unit
from remat.graphs.families import unit_chain
from remat.heuristics.base import Heuristic
from remat.io.figures import write_figure
from remat.problem.scope import EVERY_SCHEDULE, Scope
from remat.runtime.processes import children
from remat.runtime.processes.workers import WorkerPool
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import Schedule
from remat.schedule.rules import OrderRule
from remat.solving.session import Session
from remat.solving.stop import AnyOf, TargetCost
from remat.studies.stored_runs import StudyRuns
from remat.testing.exhaustive import optimum
from remat.testing.graphs import random_graph

CHAIN = Problem(unit_chain(6))
#: Least costs by budget (Griewank and Walther 2000); None: infeasible.
OPTIMA = {2: None, 3: 28, 4: 18, 5: 16, 8: 13}
EXACT = "checkmate/highs"


class OnlyTight(Heuristic):
    """Heuristic that finds a schedule only for a budget of 4."""

    name = "greedy"
    budgets: list[int] = []

    def run(self, problem, run):
        self.budgets.append(problem.budget_bytes)
        if problem.budget_bytes != 4:
            return None
        again = [op for last in reversed(range(6)) for op in (*(f"f{k}" for k in range(last)), f"g{last}")]
        ops = [*(f"f{k}" for k in range(6)), "loss", "g5", *again[6:]]
        return Schedule.from_steps([("compute", op) for op in ops])


class Altered(NoStore):
    """Store whose runs at 5 bytes have other results than their methods find."""

    def __init__(self, **changes):
        self.changes = changes

    def find(self, method, problem, limits, start):
        if problem.budget_bytes != 5:
            return None
        run = run_method(method, problem, limits)
        return replace(run, result=replace(run.result, **self.changes))


@pytest.fixture
def only_tight(monkeypatch):
    genuine = registry.load
    OnlyTight.budgets = []
    for module in (registry, import_module("remat.solving.method")):
        monkeypatch.setattr(module, "load", lambda group, name: OnlyTight if name == "greedy" else genuine(group, name))


@pytest.fixture
def solved_cells(monkeypatch):
    """Solved cells as (method, budget)."""
    module, calls = import_module("remat.experiments.frontier"), []
    genuine = module.run_method

    def run_method(method, problem, *rest):
        calls.append((method.label, problem.budget_bytes))
        return genuine(method, problem, *rest)

    monkeypatch.setattr(module, "run_method", run_method)
    return calls


@pytest.fixture
def opened(tmp_path):
    """Open the store of the test, like a process of its own."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(StudyRuns(f"sqlite:///{tmp_path}/study.db", "curve"))


@pytest.fixture(scope="module")
def exact():
    return frontier(CHAIN, [8, 3, 5, 2, 4], [EXACT, "greedy"], stop=60, options=ONE)


def test_costs_are_optimal_at_every_budget(exact):
    assert exact.budgets == (2, 3, 4, 5, 8)
    cells = exact.of(EXACT)
    assert {cell.budget: cell.cost for cell in cells} == OPTIMA
    assert [cell.status for cell in cells] == ["infeasible", *["optimal"] * 4]
    assert [exact.bound(cell) for cell in cells] == list(OPTIMA.values())
    assert all(
        mine.cost is None or mine.cost >= best.cost for mine, best in zip(exact.of("greedy"), cells, strict=True)
    )
    costs = [cell.cost for cell in exact.of("greedy") if cell.cost is not None]
    assert costs == sorted(costs, reverse=True)
    assert not exact.interrupted
    content = json.loads(exact.to_json())
    assert (content["structural_peak"], content["graph"]["digest"]) == (3, CHAIN.graph.digest)
    assert [row["cost"] for row in content["cells"][:5]] == list(OPTIMA.values())
    assert [row["frontier_bound"] for row in content["cells"][:5]] == list(OPTIMA.values())


def test_each_budget_starts_from_the_next_smaller_one(only_tight):
    found = frontier(CHAIN, [3, 4, 5, 6], ["greedy"], options=ONE)
    assert OnlyTight.budgets == [3, 4, 5, 6]
    assert [(cell.cost, cell.found_at, cell.source) for cell in found.of("greedy")] == [
        (None, None, ""), (23, 4, "greedy"), (23, 4, "greedy"), (23, 4, "greedy"),
    ]  # fmt: skip


def test_bounds_hold_for_smaller_budgets(exact):
    """A cell whose own bound is weaker takes that of a larger budget."""
    cells = {
        key: replace(cell, row={**cell.row, "bound": 13, "status": "feasible"}) if cell.budget == 4 else cell
        for key, cell in exact.cells.items()
    }
    weaker = replace(exact, cells=cells)
    assert [weaker.bound(cell) for cell in weaker.of(EXACT)] == [None, 28, 16, 16, 13]


def test_chosen_budgets_determine_the_whole_curve(opened, solved_cells):
    """The least cost is proved at every budget from the least peak on, in fewer solves than there are budgets."""
    found = frontier(CHAIN, 20, ["auto"], stop=60, store=opened(), options=ONE)
    costs = {cell.budget: cell.cost for cell in found.of("auto")}
    assert (min(costs), max(costs), found.least_peak) == (3, CHAIN.reference_peak, 3)
    assert costs.items() <= {3: 28, 4: 18, 5: 16, 6: 15, 7: 14, 8: 13}.items()
    assert all(map(found.proved, found.of("auto")))
    assert found.mean_gap("auto") == 0
    content = json.loads(found.to_json())
    assert (content["least_peak"]["peak"], content["least_peak"]["status"]) == (3, "optimal")
    solved_cells.clear()
    again = frontier(CHAIN, 20, ["auto"], stop=60, store=opened(), options=ONE)
    assert (solved_cells, again.to_csv()) == ([], found.to_csv())


@pytest.mark.parametrize("seed", some_slow(range(120), 5))
def test_whole_curve_is_that_of_exhaustive_search(seed):
    """At every budget the step below it is the optimum; no schedule exists below the first step."""
    graph, order = random_graph(seed, most_ops=6, buffers=seed % 2 == 0), ("free", "fixed", "fixed")[seed % 3]
    found, unit = frontier(Problem(graph, order=order), 60, ["auto"], stop=60, options=ONE), memory_unit(graph)
    assert not found.mean_gap("auto")
    for budget in range(max(0, found.least_peak - unit), graph.reference_peak + 1, unit):
        best = optimum(Problem(graph, budget, order), Scope(OrderRule(order), staged=False))
        costs = [step.value for step in found.steps("auto") if step.peak <= budget]
        assert min(costs, default=None) == (None if best is None else best.cost)


def test_chosen_budgets_take_schedules_of_smaller_ones(exact):
    """The run at 5 returns an expensive schedule; a run that follows, at 4, finds a cheaper one."""
    costly = exact.cells[EXACT, 3].schedule
    weak = Altered(schedule=costly, certificate=replace(CHAIN, budget=5).validate(costly), status=Status.FEASIBLE)
    found = frontier(CHAIN, 5, ["auto"], stop=60, store=weak, options=ONE)
    cell = found.cells["auto", 5]
    assert (cell.value, cell.found_at, cell.status, found.proved(cell)) == (18, 4, "feasible", False)


def test_resume_solves_only_missing_cells(opened, solved_cells):
    first = frontier(CHAIN, [2, 5, 8], [EXACT], store=opened(), options=ONE)
    assert len(solved_cells) == 3
    solved_cells.clear()
    again = opened()
    found = frontier(CHAIN, [2, 5, 8], [EXACT], store=again, options=ONE)
    assert (solved_cells, again.reused) == ([], 3)
    assert found.to_csv() == first.to_csv()
    assert found.to_json() == first.to_json()
    assert [cell.own for cell in found.of(EXACT)] == [cell.own for cell in first.of(EXACT)]
    assert [cell.complete for cell in found.of(EXACT)] == [cell.complete for cell in first.of(EXACT)]
    more = opened()
    frontier(CHAIN, [5, "75%", 8], [EXACT, "greedy"], store=more, options=ONE)
    assert (EXACT, 6) in solved_cells and (EXACT, 5) not in solved_cells
    assert more.reused >= 1


def test_cells_whose_start_has_changed_are_solved_again(opened, only_tight, solved_cells):
    assert [cell.cost for cell in frontier(CHAIN, [5], ["greedy"], store=opened(), options=ONE).of("greedy")] == [None]
    solved_cells.clear()
    found = frontier(CHAIN, [4, 5], ["greedy"], store=opened(), options=ONE)
    assert solved_cells == [("greedy", 4), ("greedy", 5)]
    assert [cell.cost for cell in found.of("greedy")] == [23, 23]
    solved_cells.clear()
    again = opened()
    frontier(CHAIN, [4, 5, 6], ["greedy"], store=again, options=ONE)
    assert (solved_cells, again.reused) == ([("greedy", 6)], 2)


@pytest.mark.parametrize(
    ("problem", "more"),
    [
        (Problem(unit_chain(5)), {}),
        (replace(CHAIN, max_computes=2), {}),
        (CHAIN, {"options": SolveOptions(threads=1, seed=1)}),
        (CHAIN, {"stop": 5}),
        (CHAIN, {"stop": AnyOf(60, TargetCost(20))}),
    ],
)
def test_runs_of_another_problem_are_other_cells(opened, problem, more, solved_cells):
    limits = {"options": ONE, "stop": 60}
    frontier(CHAIN, [4], ["greedy"], store=opened(), **limits)
    frontier(problem, [4], ["greedy"], store=opened(), **{**limits, **more})
    assert len(solved_cells) == 2


def test_contradictory_proofs_are_refused(exact):
    """The cell at 5 claims an optimum above the cost at 4."""
    wrong = Altered(schedule=exact.cells[EXACT, 3].schedule, bound=28, scope=EVERY_SCHEDULE)
    with refused("backend.contradiction"):
        frontier(CHAIN, [4, 5], [EXACT], store=wrong, options=ONE)


def test_executor_solves_cells_concurrently(exact, opened):
    threads = set()

    class Pool(ThreadPoolExecutor):
        def submit(self, task, /, *arguments, **options):
            threads.add(threading.current_thread())
            return super().submit(task, *arguments, **options)

    with Pool(2) as pool:
        runs = opened()
        found = frontier(CHAIN, list(OPTIMA), ["chen-sqrt", "greedy"], executor=pool, store=runs, options=ONE)
        assert pool.submit(int).result() == 0, "the executor was shut down"
    assert [(c.budget, c.cost) for c in found.of("greedy")] == [(c.budget, c.cost) for c in exact.of("greedy")]
    assert found.of("chen-sqrt")[-1].cost == 13
    assert runs.store.counts("curve")["done"] == 10


def test_broken_executor_is_an_error():
    job, pool = Future(), ThreadPoolExecutor()
    job.set_exception(BrokenExecutor("a process ended abruptly"))
    pool.shutdown()
    for executor in (SimpleNamespace(submit=lambda *_: job), pool):
        with refused("backend.run-lost"):
            frontier(CHAIN, [4], ["greedy"], executor=executor)


@pytest.mark.parametrize("change", [
    None, {"method": "drops"}, {"budget": 5}, {"schedule": Schedule.from_steps([("compute", "f0")])},
    {"status": Status.OPTIMAL},
])  # fmt: skip
def test_missing_or_wrong_answer_of_an_executor_is_an_error(monkeypatch, change):
    monkeypatch.setattr("remat.experiments.frontier.PATIENCE", 0.2)
    job = Future()
    if change is not None:
        method, problem = as_contestant(change.get("method", "greedy")), replace(CHAIN, budget=change.get("budget", 4))
        run = run_method(method, problem, Limits(30, ONE))
        wrong = {key: value for key, value in change.items() if key in ("schedule", "status")}
        job.set_result(replace(run, result=replace(run.result, **wrong)))
    with refused("backend.run-lost"):
        frontier(CHAIN, [4], ["greedy"], stop=0.3, executor=SimpleNamespace(submit=lambda *_: job))


@pytest.mark.slow
@pytest.mark.skipif(not children.possible(), reason="no fork server")
def test_killed_fork_server_is_replaced():
    with WorkerPool(1) as pool:
        kill = lambda *_: os.kill(children._servers[()]._forkserver_pid, 9)  # noqa: E731
        assert len(frontier(CHAIN, [4, 5], ["greedy"], executor=pool, on_cell=kill, options=ONE).cells) == 2


def test_failed_method_does_not_stop_the_others(opened):
    problem, runs = replace(CHAIN, order="free"), opened()
    found = frontier(problem, [5, 6], [EXACT, "greedy"], store=runs, options=ONE)
    assert [cell.status for cell in found.of(EXACT)] == ["failed", "failed"]
    assert "reference order" in found.of(EXACT)[0].row["message"]
    assert [cell.schedule is None for cell in found.of("greedy")] == [False, False]
    assert runs.store.counts("curve") == {"waiting": 0, "running": 0, "done": 2, "failed": 2}
    again = opened()
    frontier(problem, [5, 6], [EXACT, "greedy"], store=again, options=ONE)
    assert again.reused == 2, "failed cells were not solved again"


def test_ctrl_c_keeps_finished_cells(opened, solved_cells):
    def on_cell(so_far, cell):
        if len(so_far.cells) == 2:
            raise KeyboardInterrupt

    found = frontier(CHAIN, [3, 4, 5], ["greedy"], store=opened(), on_cell=on_cell, options=ONE)
    assert found.interrupted
    assert [cell.budget for cell in found.of("greedy")] == [3, 4]
    solved_cells.clear()
    again = opened()
    whole = frontier(CHAIN, [3, 4, 5], ["greedy"], store=again, options=ONE)
    assert (solved_cells, again.reused, whole.interrupted) == ([("greedy", 5)], 2, False)


def test_ctrl_c_during_a_cell_stores_nothing(opened, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "improve", stopped)
    runs = opened()
    found = frontier(CHAIN, [7, 8], ["greedy"], store=runs, options=ONE)
    assert found.interrupted
    assert found.cells == {}
    assert runs.store.counts("curve")["done"] == 0


# -- plot and sources ------------------------------------------------------------------------------------------------


def test_plot_of_a_frontier(exact, tmp_path):
    figure = exact.plot()
    axes = figure.axes[0]
    assert axes.get_xlabel() == "budget (bytes)"
    steps = [line for line in axes.lines if line.get_drawstyle() == "steps-post"]
    assert list(steps[0].get_xdata()) == [3, 4, 5, 8, 8]
    assert list(steps[0].get_ydata()) == pytest.approx([100 * (c - 13) / 13 for c in (28, 18, 16, 13, 13)])
    (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(dashed.get_xdata()) == [3, 4, 5, 8]
    crosses = [line for line in axes.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in crosses] == [[2], [2], [3]]
    bottom, top = axes.get_ylim()
    assert all(0 < line.get_ydata()[0] < -bottom / (top - bottom) for line in crosses), "below the axis"
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == [
        f"{EXACT} (schedules also by greedy)", "greedy", "proved least in its scope", "not proved least",
        "bound of the method", "no schedule found", "no schedule exists in its scope",
        "below the best bound: no schedule exists",
    ]  # fmt: skip
    write_figure(tmp_path / "one.svg", frontier(CHAIN, [8], ["greedy"], options=ONE).plot)
    assert "unit-chain-6" in (tmp_path / "one.svg").read_text(encoding="utf-8")


def test_no_schedule_lies_in_the_grey_part_of_a_frontier():
    """It ends at the bounds that cover every schedule, and covers everything where none exists."""
    axes = frontier(CHAIN, [2, 4, 5, 8], ["auto"], stop=60, options=ONE).plot().axes[0]
    grey = {box.x1: box.y1 for box in (each.get_datalim(axes.transData) for each in axes.collections[:-1])}
    assert grey == {
        2: axes.get_ylim()[1],
        **{x: pytest.approx(100 * more / 13) for x, more in ((4, 5), (5, 3), (8, 0))},
    }
    structural = axes.collections[-1].get_datalim(axes.transData)
    assert (structural.x1, structural.y1) == (CHAIN.structural_peak, axes.get_ylim()[1])


def test_sources_of_schedules_with_and_without_a_start():
    assisted = frontier(CHAIN, [4, 5], [EXACT], stop=60, options=ONE)
    alone = frontier(CHAIN, [4, 5], [EXACT], stop=60, options=SolveOptions(threads=1, start="none"))
    assert {cell.source for cell in alone.of(EXACT)} == {EXACT.replace("/", " by ")}
    assert schedules_by(alone) == []
    assert [cell.cost for cell in assisted.of(EXACT)] == [cell.cost for cell in alone.of(EXACT)]
    others = {cell.source for cell in assisted.of(EXACT)} - {EXACT.replace("/", " by "), "the reference order"}
    assert others
    assert all(source in schedules_by(assisted)[0] for source in others)


def test_failed_search_for_the_least_peak_is_refused(monkeypatch) -> None:
    """The search for the least peak may fail: in a process of its own, for lack of memory."""
    failed = SimpleNamespace(result=None, error="MemoryError")
    monkeypatch.setattr(import_module("remat.experiments.frontier"), "stored_or_run", lambda *_, **_options: failed)
    with refused("backend.no-least-peak"):
        frontier(unit_chain(4), 3, ["greedy"])
