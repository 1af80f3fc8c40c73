"""Plans, stores and runners of studies."""

import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas
import pytest
from refusals import refused
from shell import ok, shell, start

from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.problem import Problem

pytest.importorskip("sqlalchemy")

from remat.studies.cell_process import CellProcess
from remat.studies.executors import StudyExecutor, make_executor
from remat.studies.export import export, rows, to_frame
from remat.studies.heartbeat import Heartbeat
from remat.studies.instances import random_order
from remat.studies.plan import Plan
from remat.studies.report import Report
from remat.studies.running import Runner
from remat.studies.solving import Outcome, Task, solve_here
from remat.studies.store import Store


def plan_of(**changes: Any) -> Plan:
    mapping = {
        "name": "chains",
        "instances": {"generate": [{"generator": "unit-chain", "n": [4, 5]}]},
        "problem": {"budget": ["90%", "80%"]},
        "methods": [{"method": "greedy"}, {"method": "drops", "label": "D"}],
        "solve": {"time_limit": 60},
    }
    return Plan.from_mapping({**mapping, **changes})


class Here(StudyExecutor):
    """Solves cells in this process; loses the first `losses` of them."""

    def __init__(self, slots: int = 2, losses: int = 0) -> None:
        self.slots, self.losses, self.solved = slots, losses, 0

    def submit(self, task: Task) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        self.solved += 1
        if self.losses:
            self.losses -= 1
            future.set_exception(ConnectionError("worker lost"))
        else:
            future.set_result(solve_here(task))
        return future

    def close(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(f"sqlite:///{tmp_path}/study.db") as opened:
        yield opened


# -- plan --------------------------------------------------------------------------------------------------------------


def test_plan_is_the_product_in_order(tmp_path: Path) -> None:
    for n in (3, 4):
        write_graph(unit_chain(n), tmp_path / f"chain-{n}.json")
    (tmp_path / "study.toml").write_text("""
        name = "all"
        [instances]
        zoo = ["vgg16"]
        files = ["chain-*.json"]
        generate = [{generator = "layered", n = 20, seed = [1, 2]}]
        orders = 1
        [problem]
        budget = ["90%", "80%"]
        order = ["fixed", "free"]
        [solve]
        seed = [0, 7]
        time_limit = "1m"
        [[methods]]
        method = "checkmate/highs"
        options = {frontier = true}
        solver = {mip_rel_gap = 0.5}
        solve = {start = "none"}
        [[methods]]
        method = "lns"
    """)
    plan = Plan.from_file(tmp_path / "study.toml")
    assert [each.name for each in plan.instances.values()][:4] == [
        "vgg16", "chain-3.json", "chain-4.json", "layered n=20 seed=1",
    ]  # fmt: skip
    assert len(plan.instances) == 7  # chains have one order
    assert len(plan.cells) == 7 * 4 * 2 * 2
    assert plan.seconds == 60 * len(plan.cells)
    first = plan.cells[0]
    assert first.title == "vgg16, 90% order=fixed, checkmate/highs, seed 0"
    assert first.run["options"] == {"frontier": True}
    assert first.run["config"]["backends"] == {"highs": {"mip_rel_gap": 0.5}}
    assert first.run["config"]["solve"]["start"] == "none"
    assert Plan.from_file(tmp_path / "study.toml").cells == plan.cells


def test_digest_covers_all_that_determines_a_solve() -> None:
    digests = {cell.digest for cell in plan_of().cells}
    for changes in (
        {"solve": {"time_limit": 6}},
        {"solve": {"time_limit": 5, "seed": 1}},
        {"solve": {"time_limit": 5, "threads": 2}},
        {"problem": {"budget": ["90.1%", "80.1%"]}},
        {"problem": {"budget": ["90%", "80%"], "order": "free"}},
        {"problem": {"budget": ["90%", "80%"], "machine": "pcie4,compute=1G"}},
        {"instances": {"generate": [{"generator": "unit-chain", "n": [6, 7]}]}},
        {"methods": [{"method": "greedy", "solve": {"start": "none"}}]},
    ):
        assert not digests & {cell.digest for cell in plan_of(**changes).cells}, changes
    assert digests > {cell.digest for cell in plan_of(methods=[{"method": "greedy", "label": "G"}]).cells}
    fast, slow, same = (
        [cell.digest for cell in plan_of(problem={"budget": "90%", "machine": machine}).cells]
        for machine in ("pcie4,compute=1G", "pcie3,compute=1G", {"preset": "pcie4", "compute": "1G"})
    )
    assert fast == same and not set(fast) & set(slow)


def test_random_orders_are_topological_and_repeat() -> None:
    graph = unit_chain(5)
    assert Problem(random_order(graph, 1)).reference_peak >= 1
    plans = [plan_of(instances={"generate": [{"generator": "layered", "n": 12}], "orders": 3}) for _ in range(2)]
    assert plans[0].cells == plans[1].cells
    assert len({cell.graph for cell in plans[0].cells}) == 4


@pytest.mark.parametrize(
    ("kind", "culprit", "changes"),
    [
        ("format.wrong-key", "solver", {"solver": {}}),
        ("format.wrong-key", "time", {"solve": {"time": 5}}),
        ("format.wrong-key", "graph", {"problem": {"graph": "vgg16"}}),
        ("format.wrong-key", "generator", {"instances": {"generate": [{"n": 5}]}}),
        ("format.no-instance", "", {"instances": {}}),
        ("format.no-file", "none*.json", {"instances": {"files": ["none*.json"]}}),
        ("format.method-twice", "greedy", {"methods": [{"method": "greedy"}, {"method": "greedy"}]}),
        ("format.same-cell", "B", {"methods": [{"method": "greedy"}, {"method": "greedy", "label": "B"}]}),
        ("format.wrong-key", "start", {"methods": [{"method": "greedy", "solve": {"start": "x.json"}}]}),
        ("format.wrong-key", "all", {"solve": {"threads": "all"}}),
        ("graph.generator", "unit-chain n=x", {"instances": {"generate": [{"generator": "unit-chain", "n": "x"}]}}),
    ],
)
def test_plans_are_refused(kind: str, culprit: str, changes: dict[str, Any]) -> None:
    with refused(kind, culprit=culprit):
        plan_of(**changes)


def test_plans_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat.studies.plan.MAX_CELLS", 7)
    with refused("format.many-cells"):
        plan_of()


def test_equal_random_orders_count_once() -> None:
    chain = {"generate": [{"generator": "path", "n": 5}], "orders": 4}
    assert len(plan_of(instances=chain).instances) == 1


# -- store -------------------------------------------------------------------------------------------------------------


def test_every_cell_is_solved_once_and_certified(store: Store, tmp_path: Path) -> None:
    plan = plan_of()
    assert (store.add(plan), store.add(plan)) == (8, 0)
    events: list[Any] = []
    executor = Here()
    assert Runner(store, "chains", executor, events.append).run()
    assert executor.solved == 8 == len(events)
    assert events[-1].done == events[-1].total == 8
    results = store.results("chains")
    assert [each.cell for each in results] == list(plan.cells)
    assert {each.state for each in results} == {"done"}
    assert all(bool(each.points) == bool(each.schedule) and each.environment["machine"]["cpus"] for each in results)
    assert Runner(store, "chains", executor).run()
    assert executor.solved == 8
    table = to_frame(results)
    assert list(table["overhead_percent"].round(1)) == [row["overhead_percent"].__round__(1) for row in rows(results)]
    for name in ("a.csv", "a.json"):
        export(results, tmp_path / name)
    assert len(json.loads((tmp_path / "a.json").read_text())) == 8
    with pytest.MonkeyPatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        with refused("remat.unavailable", culprit="a.parquet", hide={str(tmp_path): "<folder>"}):
            export(results, tmp_path / "a.parquet")
    if find_spec("pyarrow") is not None:
        export(results, tmp_path / "a.parquet")
        read = pandas.read_parquet(tmp_path / "a.parquet")
        assert list(read.columns) == list(table.columns)
        assert read["cost"].tolist() == table["cost"].tolist()
    more = plan_of(name="more", methods=[{"method": "greedy"}])
    assert store.add(more) == 0  # cells are shared
    assert store.remove("chains") == 4
    assert store.counts("more") == {"waiting": 0, "running": 0, "done": 4, "failed": 0}
    with refused("remat.no-study", culprit="chains"):
        store.counts("chains")


def test_claims_are_exclusive_and_expire(store: Store) -> None:
    store.add(plan_of())
    mine = store.claim("chains", "me", limit=5)
    theirs = store.claim("chains", "they", limit=5)
    assert len(mine) == 5
    assert len(theirs) == 3
    assert not {claim.cell.digest for claim in mine} & {claim.cell.digest for claim in theirs}
    assert store.claim("chains", "third") == []
    time.sleep(0.2)
    store.beat("me", [claim.cell.digest for claim in mine + theirs])
    taken = store.claim("chains", "third", stale=0.15, limit=8)
    assert {claim.cell for claim in taken} == {claim.cell for claim in theirs}
    assert {claim.attempt for claim in taken} == {2}
    outcome = Outcome({"status": "infeasible", "message": ""})
    assert not store.finish(theirs[0].cell, "they", outcome)  # another runner has it
    assert store.finish(theirs[0].cell, "third", outcome)
    assert not store.finish(theirs[0].cell, "third", outcome)


def test_heartbeats_keep_the_claims_that_their_runner_holds(store: Store) -> None:
    store.add(plan_of())
    held, lost = (claim.cell for claim in store.claim("chains", "me", limit=2))
    with Heartbeat(store, "me", stale=0.3) as heartbeat:
        heartbeat.hold(held.digest)
        time.sleep(0.6)
        taken = {claim.cell for claim in store.claim("chains", "they", stale=0.3, limit=8)}
        assert lost in taken
        assert held not in taken
        heartbeat.drop(held.digest)
        time.sleep(0.6)
        assert [claim.cell for claim in store.claim("chains", "third", stale=0.3, limit=1)] == [held]


def test_claim_whose_answer_was_lost_is_made_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that restarts after a commit, before its answer, leaves claims that their runner does not know."""
    store.add(plan_of(methods=[{"method": "greedy"}]))
    claim, lost = store.claim, []

    def loses(study: str, owner: str, **options: Any) -> Any:
        if not lost:
            lost.extend(claim(study, owner, **options))
        return claim(study, owner, **options)

    monkeypatch.setattr(store, "claim", loses)
    executor = Here()
    runner = Runner(store, "chains", executor, stale=0.5)
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert len(lost) == 2
    assert store.counts("chains")["done"] == executor.solved == 4


def test_lost_cells_run_again_and_then_fail(store: Store) -> None:
    store.add(plan_of(methods=[{"method": "greedy"}]))
    assert Runner(store, "chains", Here(losses=2)).run()
    assert store.counts("chains")["done"] == 4
    store.remove("chains")
    store.add(plan_of(methods=[{"method": "greedy"}]))
    assert Runner(store, "chains", Here(1, losses=12)).run()
    assert store.counts("chains")["failed"] == 4
    assert "worker lost" in store.results("chains")[0].row["message"]
    assert store.retry("chains") == 4
    assert Runner(store, "chains", Here()).run()
    assert store.counts("chains")["done"] == 4


def test_changed_schedules_are_refused(store: Store) -> None:
    store.add(plan_of(methods=[{"method": "greedy"}]))
    Runner(store, "chains", Here()).run()
    path = next((store.folder / "schedules").rglob("*.json"))
    path.write_text(path.read_text().replace("compute", "computes"))
    with refused("format.changed", culprit=path.name, hide={path.name: "<digest>.json", path.name[:2]: "<d>"}):
        store.results("chains")


def test_rows_and_schedules_that_contradict_each_other_are_refused(store: Store) -> None:
    from sqlalchemy import create_engine, text

    plan = plan_of(methods=[{"method": "greedy"}], problem={"budget": "90%"})
    store.add(plan)
    Runner(store, "chains", Here()).run()
    store.results("chains")
    engine = create_engine(store.url)
    change = "update remat_cells set {} where digest = :digest"
    with engine.begin() as connection:
        found = change.format("row = replace(row, '\"cost\": ', '\"cost\": 1')")
        connection.execute(text(found), {"digest": plan.cells[1].digest})
    with refused("remat.contradiction", culprit=plan.cells[1].title):
        store.results("chains")
    with engine.begin() as connection:
        other = "schedule = (select schedule from remat_cells where digest = :other)"
        digests = {"digest": plan.cells[0].digest, "other": plan.cells[1].digest}
        connection.execute(text(change.format(other)), digests)
    with refused("remat.schedule", culprit=plan.cells[0].title):
        store.results("chains")
    engine.dispose()


def test_stores_and_executors_are_refused(tmp_path: Path) -> None:
    with refused("remat.store", culprit="nonsense"):
        Store("nonsense")
    with refused("remat.store", culprit="none/study.db"):
        Store("sqlite:////none/study.db")
    for text in ("processes:0", "slurm:x", "dask://"):
        with refused("remat.executor", culprit=text):
            make_executor(text)


# -- results of other tools --------------------------------------------------------------------------------------------


def test_results_of_other_tools_are_validated_when_they_enter(store: Store, tmp_path: Path) -> None:
    graph = unit_chain(4)
    write_graph(graph, tmp_path / "chain.json")
    (tmp_path / "theirs").mkdir()
    names = [op.name for op in graph.ops]
    small = solve_here(task_of(plan_of())).schedule
    files = {
        "chain-90.json": small, "chain-60.json": json.dumps(names), "chain-50.txt": "no such op",
        "chain-40.json": json.dumps({"loss_index": 1, "ops": []}),
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / "theirs" / name).write_text(text or "")
    (tmp_path / "study.toml").write_text("""
        name = "others"
        instances = {files = ["chain.json"]}
        problem = {budget = ["90%", "60%", "50%", "40%", "30%"]}
        methods = [{method = "greedy"}, {files = "theirs/{instance}-{budget}.*", label = "Theirs"}]
    """)
    plan = Plan.from_file(tmp_path / "study.toml")
    assert store.add(plan) == 10
    assert store.counts("others") == {"waiting": 5, "running": 0, "done": 5, "failed": 0}
    assert Runner(store, "others", Here()).run()
    results = {each.cell.problem: each for each in store.results("others") if each.cell.method == "Theirs"}
    accepted = results["90%"]
    assert accepted.row["status"] == "feasible"
    assert (accepted.row["cost"], accepted.row["message"]) == (10, "read from chain-90.json")
    reasons = [results[budget].row["message"] for budget in ("60%", "50%", "40%", "30%")]
    assert {results[budget].row["status"] for budget in ("60%", "50%", "40%", "30%")} == {"refused"}
    for reason, word in zip(reasons, ["budget", "no such op", "chain-40.json", "is missing"], strict=True):
        assert word in reason
    shown = "".join(shell("study", "status", "others", "--store", str(store.url)).out.split())
    assert shown.index("refused:Theirs:chain-60.json:") < shown.index("chain-30.*ismissing")
    summary = Report("others", list(store.results("others"))).summary().rows[1]
    assert list(summary)[:6] == ["Theirs", 5, 0, 1, 0, 4]
    (tmp_path / "theirs" / "chain-60.json").write_text(small or "")  # another file is another cell
    assert store.add(Plan.from_file(tmp_path / "study.toml")) == 1


# -- processes ---------------------------------------------------------------------------------------------------------


def task_of(plan: Plan) -> Task:
    cell = plan.cells[0]
    return Task(cell.digest, plan.instances[cell.graph].text, cell.run)


UNET = {"instances": {"zoo": ["unet"]}, "methods": [{"method": "checkmate/highs"}]}


@pytest.mark.slow
def test_process_of_a_cell_is_pinned_and_limited() -> None:
    cpu = min(os.sched_getaffinity(0))
    quick = task_of(plan_of(solve={"time_limit": 60, "memory_limit": "4GiB"}))
    hungry = task_of(plan_of(**UNET, solve={"time_limit": 60, "memory_limit": "60MB"}))
    with CellProcess(frozenset({cpu})) as process:
        for task in (quick, hungry, quick):  # the limit of one cell does not bind the next
            outcome = process.solve(task)
            if task is hungry:
                assert "memory" in outcome.row["message"]
            else:
                assert outcome.row["status"] == "feasible"
                assert outcome.environment["machine"]["cpus"] == 1


@pytest.mark.slow
def test_process_is_reused_until_a_cell_ends_it() -> None:
    quick = task_of(plan_of())
    hard = {"instances": {"generate": [{"generator": "layered", "n": 150}]}, "methods": [{"method": "checkmate/highs"}]}
    solves = [{"time_limit": limit, "start": "none"} for limit in (600, 2)]
    long, short = (task_of(plan_of(**hard, problem={"budget": "60%"}, solve=solve)) for solve in solves)
    with CellProcess(grace=1.0) as process:

        def signalled(task: Task, number: int) -> str:
            """Solve a cell whose process receives a signal after a second; return the message."""
            timer = threading.Timer(1.0, lambda: os.kill(process.pid or 0, number))
            timer.start()
            outcome = process.solve(task)
            timer.join()
            assert outcome.row["status"] in ("failed", "feasible")
            return str(outcome.row["message"])

        assert process.solve(quick).row["status"] == "feasible"
        pids = [process.pid]
        assert process.solve(quick).row["status"] == "feasible"
        assert pids == [process.pid]
        assert "exit code -9" in signalled(long, signal.SIGKILL)
        assert process.solve(quick).row["status"] == "feasible"
        pids.append(process.pid)
        assert "deadline" in signalled(short, signal.SIGSTOP)
        assert process.solve(quick).row["status"] == "feasible"
        pids.append(process.pid)
        os.kill(process.pid or 0, signal.SIGKILL)  # while it is idle
        assert process.solve(quick).row["status"] == "feasible"
        assert len({*pids, process.pid}) == 4


@pytest.mark.slow
def test_shell_runs_exports_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("study.toml").write_text("""
        name = "chains"
        instances = {generate = [{generator = "unit-chain", n = [4, 5]}]}
        problem = {budget = "80%"}
        solve = {time_limit = 10}
        methods = [{method = "greedy"}, {method = "checkmate/highs"}]
    """)
    assert "4 cells" in ok("study run study.toml --dry-run").out
    assert "no store" in shell("study", "status").err
    ran = ok("study run study.toml --executor processes:2")
    assert "[4/4]" in ran.err
    assert "chains: 4 of 4 cells finished (4 done)" in ok("study status").out
    ok("study resume chains -q")
    ok("study export chains -o a.csv")
    assert Path("a.csv").read_text().count("\n") == 5
    ok("study report chains -o a.html --figures f --tables t")
    assert len(list(Path("f").iterdir())) == 8
    assert "\\toprule" in Path("t/methods.tex").read_text()
    assert "4 cells" in ok("study rm chains").out


@pytest.mark.slow
def test_killed_runner_loses_only_running_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text("""
        name = "chains"
        instances = {generate = [{generator = "unit-chain", n = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]}]}
        problem = {budget = ["80%", "90%"]}
        solve = {time_limit = 60, seed = [0, 1, 2]}
        methods = [{method = "greedy"}, {method = "drops"}]
    """)
    process = start("study run study.toml --executor processes:2")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[5/120]"):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Store("sqlite:///study.db") as opened:
        counts = opened.counts("chains")
        assert 5 <= counts["done"] < 120
        assert counts["running"] <= 2  # the slots
        executor = Here()
        assert Runner(opened, "chains", executor, stale=1.0).run()
        assert opened.counts("chains")["done"] == 120
        assert executor.solved == 120 - counts["done"]
        assert len(opened.results("chains")) == 120
