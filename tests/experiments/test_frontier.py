"""Frontiers: optima of each budget, starts from smaller budgets, resuming, faults of executors."""

import json
import os
import threading
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
from helpers import ONE
from refusals import refused

from remat import Problem, frontier, registry
from remat.cli.frontier import schedules_by
from remat.experiments.contestant import Contestant
from remat.formulations.retention_intervals import RetentionIntervalsOptions
from remat.graphs.families import unit_chain
from remat.heuristics.base import Heuristic
from remat.io.figures import write_figure
from remat.runtime.processes import children
from remat.runtime.processes.workers import WorkerPool
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Schedule
from remat.solving.session import Session

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
    genuine = module.solve_cell

    def solve_cell(method, problem, *rest, **more):
        calls.append((method.label, problem.budget_bytes))
        return genuine(method, problem, *rest, **more)

    monkeypatch.setattr(module, "solve_cell", solve_cell)
    return calls


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


def test_resume_solves_only_missing_cells(tmp_path, solved_cells):
    state = tmp_path / "state"
    first = frontier(CHAIN, [2, 5, 8], [EXACT], state=state, options=ONE)
    assert len(solved_cells) == 3
    files = {path.name: path.read_bytes() for path in state.iterdir()}
    assert len(files) == 4
    solved_cells.clear()
    again = frontier(CHAIN, [2, 5, 8], [EXACT], state=state, options=ONE)
    assert (solved_cells, again.resumed) == ([], 3)
    assert again.to_csv() == first.to_csv()
    assert again.to_json() == first.to_json()
    assert {path.name: path.read_bytes() for path in state.iterdir()} == files
    more = frontier(CHAIN, [5, "75%", 8], [EXACT, "greedy"], state=state, options=ONE)
    assert solved_cells == [(EXACT, 6), ("greedy", 5), ("greedy", 6), ("greedy", 8)]
    assert more.resumed == 2


def test_cheaper_schedule_at_a_smaller_budget_repeats_larger_cells(tmp_path, only_tight, solved_cells):
    state = tmp_path / "state"
    assert [cell.cost for cell in frontier(CHAIN, [5], ["greedy"], state=state, options=ONE).of("greedy")] == [None]
    solved_cells.clear()
    found = frontier(CHAIN, [4, 5], ["greedy"], state=state, options=ONE)
    assert solved_cells == [("greedy", 4), ("greedy", 5)]
    assert [cell.cost for cell in found.of("greedy")] == [23, 23]
    solved_cells.clear()
    assert frontier(CHAIN, [4, 5], ["greedy"], state=state, options=ONE).resumed == 2
    assert solved_cells == []


@pytest.mark.parametrize(
    ("problem", "more", "part"),
    [
        (Problem(unit_chain(5)), {}, "graph name"),
        (replace(CHAIN, max_computes=2), {}, "rules max computes"),
        (CHAIN, {"options": SolveOptions(threads=1, seed=1)}, "limits seed"),
        (CHAIN, {"stop": 5}, "limits time limit"),
    ],
)
def test_state_of_another_problem_is_refused(tmp_path, problem, more, part, solved_cells):
    limits = {"options": ONE, "stop": 60}
    frontier(CHAIN, [4], ["greedy"], state=tmp_path / "state", **limits)
    solved_cells.clear()
    with refused("format.other-question", culprit=part):
        frontier(problem, [4], ["greedy"], state=tmp_path / "state", **{**limits, **more})
    assert solved_cells == []


def test_state_of_other_method_options_is_refused(tmp_path):
    def run(copies):
        method = Contestant(
            "retention-intervals", "cp-sat", RetentionIntervalsOptions(copies=copies), label="intervals"
        )
        return frontier(CHAIN, [2], [method], state=tmp_path / "state", options=ONE)

    run(2)
    assert run(2).resumed == 1
    with refused("format.unusable-cell"):
        run(3)


def test_foreign_folder_stays_unchanged(tmp_path):
    (tmp_path / "precious.txt").write_text("mine", encoding="utf-8")
    with refused("format.no-state-folder"):
        frontier(CHAIN, [4], ["greedy"], state=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
    with refused("format.not-written", culprit="precious.txt"):
        frontier(CHAIN, [4], ["greedy"], state=tmp_path / "precious.txt")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "question.json").write_text('{"format": "x"}', encoding="utf-8")
    with refused("format.other-question"):
        frontier(CHAIN, [4], ["greedy"], state=tmp_path / "other")


def change_cell(folder, change):
    """Replace the content of the only cell by that of `change`."""
    (path,) = (path for path in folder.iterdir() if path.name != "question.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(change(content) or content), encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["row"].update(cost=13),
        lambda c: c["row"].update(bound=c["row"]["cost"]),  # proves optimality, unlike the status
        lambda c: c["row"].update(status="optimal"),
        lambda c: c["row"].pop("peak"),
        lambda c: c.update(schedule=None),
        lambda c: c["schedule"]["steps"].pop() and None,
        lambda c: c["schedule"].update(steps=[["compute"]]),
        lambda c: c.update(version=2),
        lambda c: c.update(more=2),
        lambda c: c.update(own=1, found_at="5"),
        lambda c: c["row"].update(bound=2.0),
        lambda _: [1],
    ],
)
def test_invalid_cells_are_refused(tmp_path, change):
    frontier(CHAIN, [5], ["greedy"], state=tmp_path, options=ONE)
    change_cell(tmp_path, change)
    with refused("format.unusable-cell", culprit="; remove the file"):
        frontier(CHAIN, [5], ["greedy"], state=tmp_path, options=ONE)


def test_contradictory_proofs_are_refused(tmp_path):
    """The cell at 5 claims an optimum above the cost at 4."""
    frontier(CHAIN, [5], [EXACT], state=tmp_path, options=ONE)
    costly = frontier(CHAIN, [3], [EXACT], options=ONE).of(EXACT)[0]

    def contradict(content):
        content["schedule"]["steps"] = [["compute", op] for op in costly.schedule.computes()]
        content["row"].update(cost=28, bound=28, peak=3)
        content.update(complete=True)

    change_cell(tmp_path, contradict)
    with refused("backend.contradiction"):
        frontier(CHAIN, [4, 5], [EXACT], state=tmp_path, options=ONE)


def test_executor_solves_cells_concurrently(exact, tmp_path):
    threads = set()

    class Pool(ThreadPoolExecutor):
        def submit(self, task, /, *arguments, **options):
            threads.add(threading.current_thread())
            return super().submit(task, *arguments, **options)

    with Pool(2) as pool:
        found = frontier(CHAIN, list(OPTIMA), ["chen-sqrt", "greedy"], executor=pool, state=tmp_path, options=ONE)
        assert pool.submit(int).result() == 0, "the executor was shut down"
    assert [(c.budget, c.cost) for c in found.of("greedy")] == [(c.budget, c.cost) for c in exact.of("greedy")]
    assert found.of("chen-sqrt")[-1].cost == 13
    assert len(list(tmp_path.iterdir())) == 11


def test_broken_executor_is_an_error():
    job, pool = Future(), ThreadPoolExecutor()
    job.set_exception(BrokenExecutor("a process ended abruptly"))
    pool.shutdown()
    for executor in (SimpleNamespace(submit=lambda *_: job), pool):
        with refused("backend.run-lost"):
            frontier(CHAIN, [4], ["greedy"], executor=executor)


@pytest.mark.parametrize("change", [None, {}, {"method": "x"}, {"budget": 5}, {"row": {}}, {"schedule": None}])
def test_missing_or_wrong_answer_of_an_executor_is_an_error(exact, monkeypatch, change):
    monkeypatch.setattr("remat.experiments.frontier.PATIENCE", 0.2)
    job = Future()
    if change is not None:
        job.set_result(change and replace(exact.of("greedy")[2], **change))
    with refused("backend.run-lost"):
        frontier(CHAIN, [4], ["greedy"], stop=0.3, executor=SimpleNamespace(submit=lambda *_: job))


@pytest.mark.skipif(not children.possible(), reason="no fork server")
def test_killed_fork_server_is_replaced():
    with WorkerPool(1) as pool:
        kill = lambda *_: os.kill(children._servers[()]._forkserver_pid, 9)  # noqa: E731
        assert len(frontier(CHAIN, [4, 5], ["greedy"], executor=pool, on_cell=kill, options=ONE).cells) == 2


def test_failed_method_does_not_stop_the_others(tmp_path):
    problem = replace(CHAIN, order="free")
    found = frontier(problem, [5, 6], [EXACT, "greedy"], state=tmp_path, options=ONE)
    assert [cell.status for cell in found.of(EXACT)] == ["failed", "failed"]
    assert "reference order" in found.of(EXACT)[0].row["message"]
    assert [cell.schedule is None for cell in found.of("greedy")] == [False, False]
    assert len(list(tmp_path.iterdir())) == 3, "failed cells were stored"


def test_ctrl_c_keeps_finished_cells(tmp_path, solved_cells):
    def on_cell(so_far, cell):
        if len(so_far.cells) == 2:
            raise KeyboardInterrupt

    found = frontier(CHAIN, [3, 4, 5], ["greedy"], state=tmp_path, on_cell=on_cell, options=ONE)
    assert found.interrupted
    assert [cell.budget for cell in found.of("greedy")] == [3, 4]
    solved_cells.clear()
    whole = frontier(CHAIN, [3, 4, 5], ["greedy"], state=tmp_path, options=ONE)
    assert (solved_cells, whole.resumed, whole.interrupted) == ([("greedy", 5)], 2, False)


def test_ctrl_c_during_a_cell_stores_nothing(tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "improve", stopped)
    found = frontier(CHAIN, [7, 8], ["greedy"], state=tmp_path, options=ONE)
    assert found.interrupted
    assert found.cells == {}
    assert [path.name for path in tmp_path.iterdir()] == ["question.json"]


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
