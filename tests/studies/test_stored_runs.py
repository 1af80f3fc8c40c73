"""Runs of comparisons, frontiers and largest batches as cells of studies."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import ONE
from refusals import refused
from shell import ok, start

pytest.importorskip("sqlalchemy")

from remat import Problem, frontier, max_batch
from remat.backends.highs import Highs
from remat.experiments.compare import compare
from remat.experiments.contestant import Contestant
from remat.experiments.runs import Limits
from remat.formulations.checkmate import Checkmate
from remat.formulations.retention_intervals import RetentionIntervalsOptions
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.heuristics.greedy import Greedy
from remat.solving.progress import Progress
from remat.studies import stored_runs
from remat.studies.plan import Plan
from remat.studies.solving import solve_here
from remat.studies.store import Store
from remat.studies.stored_runs import StudyRuns
from remat.studies.study import Study

CHAIN = Problem(unit_chain(6))


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(f"sqlite:///{tmp_path}/study.db") as opened:
        yield opened


def test_comparison_and_study_share_cells(store: Store) -> None:
    plan = Plan.from_mapping(
        {
            "name": "mine",
            "problem": {"budget": ["90%", "80%"], "order": "free", "max_computes": 2},
            "methods": [
                {"method": "greedy"},
                {"method": "retention-intervals", "options": {"copies": 3}, "solver": {"num_workers": 1}},
            ],
            "solve": {"time_limit": 60, "seed": 3},
        },
        graphs={"chain": CHAIN.graph},
    )
    intervals = Contestant(
        "retention-intervals", "cp-sat", RetentionIntervalsOptions(copies=3), solver_options={"num_workers": 1}
    )
    problem = Problem(CHAIN.graph, order="free", max_computes=2)
    runs = StudyRuns(store, "theirs")
    options = type(ONE)(threads=1, seed=3)
    first = compare(problem, ["90%", "80%"], ["greedy", intervals], store=runs, stop=60, options=options)
    assert (runs.asked, runs.reused) == (4, 0)
    assert {each.cell.digest for each in store.results("theirs")} == {cell.digest for cell in plan.cells}
    assert store.add(plan) == 0
    with Study.resume("mine", store) as study:
        assert study.counts()["done"] == 4
        assert list(study.to_frame()["cost"]) == [run.row()["cost"] for run in first.runs]
    repeated = StudyRuns(store, "theirs")
    again = compare(problem, ["90%", "80%"], ["greedy", intervals], store=repeated, stop=60, options=options)
    assert repeated.reused == 4
    assert again.to_json() == first.to_json()


def test_stored_starts_and_targets_determine_a_cell_and_are_honoured(store: Store) -> None:
    """A cell of a frontier or a batch search, solved again from the store alone, gives the same."""
    frontier(CHAIN, [4, 5], ["drops"], store=StudyRuns(store, "curve"), stop=60, options=ONE)
    chain = AffineGraph.scaled(unit_chain(6), 1)
    first = max_batch(chain, 24, "checkmate/highs", store=StudyRuns(store, "batch"), stop=60, options=ONE)
    repeated = StudyRuns(store, "batch")
    again = max_batch(chain, 24, "checkmate/highs", store=repeated, stop=60, options=ONE)
    assert repeated.reused == repeated.asked == len(first.probes)
    assert again.row() == first.row()
    assert again.schedule is not None and first.schedule is not None
    assert again.schedule.computes() == first.schedule.computes()
    results = [*store.results("curve"), *store.results("batch")]
    assert {("start" in each.cell.run, "target" in each.cell.run) for each in results} >= {(True, False), (True, True)}
    for each in results:
        outcome = solve_here(store.task(each.cell))
        assert (outcome.row["cost"], outcome.row["status"]) == (each.row["cost"], each.row["status"]), each.cell.title


def test_python_objects_are_cells_that_only_their_program_solves(store: Store) -> None:
    methods: list[Any] = [Greedy(), Contestant(Checkmate, Highs)]
    frontier(CHAIN, [4], methods, store=StudyRuns(store, "curve"), options=ONE)
    again = StudyRuns(store, "curve")
    frontier(CHAIN, [4], methods, store=again, options=ONE)
    assert again.reused == 2
    named = StudyRuns(store, "named")
    frontier(CHAIN, [4], ["checkmate/highs"], store=named, options=ONE)
    assert named.reused == 0  # the registered formulation of that name is another contestant
    with refused("remat.objects"):
        solve_here(store.task(store.results("curve")[0].cell))


def test_run_in_progress_keeps_its_claim(store: Store) -> None:
    seen = []

    @contextmanager
    def watch(_title: str) -> Iterator[Callable[[Progress], object]]:
        time.sleep(0.6)
        seen.append(store.claim("mine", "they", stale=0.3))
        yield lambda _progress: None

    with StudyRuns(store, "mine", stale=0.3) as runs:
        compare(CHAIN, ["80%"], ["greedy"], store=runs, watch=watch)
        assert seen == [[]]
        assert store.counts("mine")["done"] == 1


def test_run_in_progress_elsewhere_is_awaited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other runner finishes while this one waits, so that no run is solved twice."""
    monkeypatch.setattr(stored_runs, "PAUSE", 0.05)
    other, solved, done = StudyRuns(store, "theirs"), threading.Event(), list[int]()

    @contextmanager
    def watch(_title: str) -> Iterator[Callable[[Progress], object]]:
        solved.set()
        time.sleep(0.3)
        yield lambda _progress: None

    with Store(store.url.render_as_string()) as second:
        runs = StudyRuns(second, "mine")

        def compare_again() -> None:
            solved.wait()
            done.extend(run.result.cost or 0 for run in compare(CHAIN, ["80%"], ["greedy"], store=runs).runs)

        thread = threading.Thread(target=compare_again)
        thread.start()
        first = compare(CHAIN, ["80%"], ["greedy"], store=other, watch=watch)
        thread.join()
        assert (runs.asked, runs.reused) == (1, 1)
        assert done == [run.result.cost for run in first.runs]


def test_run_that_never_finishes_elsewhere_is_solved_here(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_runs, "PAUSE", 0.05)
    monkeypatch.setattr(stored_runs, "GRACE", 0.2)
    with StudyRuns(store, "theirs") as other:
        limits = Limits(0.1, ONE)
        assert other.find(Contestant.parse("greedy"), replace(CHAIN, budget="80%"), limits, None) is None
        runs = StudyRuns(store, "mine")
        compare(CHAIN, ["80%"], ["greedy"], store=runs, stop=0.1, options=ONE)
        assert (runs.asked, runs.reused) == (1, 0)
        assert store.counts("mine")["done"] == 1


@pytest.mark.slow
def test_killed_frontier_loses_only_the_run_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(unit_chain(40), "chain.json")
    line = "frontier chain.json -b 50%:95%:5% -m greedy,lns --threads 1 -t 0.5 --store sqlite:///study.db"
    process = start(line)
    assert process.stderr is not None
    for text in process.stderr:
        if text.startswith("[8/"):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Store("sqlite:///study.db") as opened:
        counts = opened.counts("frontier-unit-chain-40")
    assert counts["done"] >= 7
    assert counts["running"] <= 1
    assert f": {counts['done']} of 20 runs are from the store" in ok(f"{line} -q").out


def test_commands_continue_and_study_reads_their_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("remat.studies.report.Report.figures", lambda _: {})  # drawing them takes a second
    write_graph(CHAIN.graph, "chain.json")
    line = "compare chain.json -b {} -m greedy,eviction -t 60 --threads 1 -q --store sqlite:///study.db"
    assert "study compare-unit-chain-6: 0 of 2 runs are from the store" in ok(line.format("80%")).out
    assert "study compare-unit-chain-6: 2 of 4 runs are from the store" in ok(line.format("80%,90%")).out
    batch = "batch chain.json --batch-size 1 --memory 40 -m greedy -q --store sqlite:///study.db"
    ok(batch)
    assert "batch-unit-chain-6" in (ran := ok(batch).out)
    assert "0 of" not in ran
    ok("study export compare-unit-chain-6 -o a.csv")
    ok("study report batch-unit-chain-6 -o a.html --no-pages")
    assert "batch-unit-chain-6: " in ok("study status").out
