"""How the default method shares its time: drops first, what is not loaded later, and never far behind its best step."""

import statistics
import time
from collections.abc import Callable

import pytest
from helpers import ONE

import remat.solving.auto
import remat.solving.chain_starts
from remat import Problem, layered, solve
from remat.backends.base import SolveOptions, Status, StopReason
from remat.backends.cp_sat import CpSat
from remat.deadline import Deadline
from remat.graphs import ComputeGraph
from remat.graphs.zoo.convolutional import resnet_ops
from remat.graphs.zoo.gpt import gpt
from remat.graphs.zoo.segmenters import unet
from remat.heuristics.annealing import Annealing
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.drops import Drops
from remat.heuristics.drops.interpreted import InterpretedDrops
from remat.hierarchy.blocks import BlockCheckpointing
from remat.registry import load
from remat.schedule import Schedule
from remat.solving.auto import Auto
from remat.solving.progress import Progress
from remat.solving.session import Session
from remat.solving.stop import AnyOf, MaxSeconds, StoppingCriterion, TargetCost


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Only the tests that say so begin without compiled code."""
    assert Drops().prepared()
    assert Annealing().prepared()


def compiled_later(monkeypatch: pytest.MonkeyPatch, *kinds: type[Heuristic]) -> None:
    """As on a fresh machine."""
    for kind in kinds:
        monkeypatch.setattr(kind, "compiled", classmethod(lambda _: False))
        monkeypatch.setattr(kind, "prepared", lambda *_: False)


def test_large_graphs_have_a_schedule_by_drops_at_once() -> None:
    """Greedy and eviction, which would take seconds for nothing here, do not come first."""
    result = solve(Problem(layered(1000, seed=1), "80%"), stop=1.5, options=ONE)
    names = [step.name for step in result.steps]
    assert names[0] == "drops"
    assert result.steps[0].objective is not None
    assert "greedy" not in names
    assert result.objective is not None
    assert result.objective <= result.steps[0].objective


def test_graphs_of_five_thousand_ops_have_a_bound() -> None:
    """They had none beyond the cost of computing each op once."""
    problem = Problem(gpt(layers=180, width=64, heads=4, sequence=64), "50%")
    result = solve(problem, stop=60, options=SolveOptions(threads=1, relative_gap=0.02))
    assert result.stop is StopReason.GAP
    assert result.bound > 1.1 * problem.graph.base_cost


def test_what_is_not_loaded_yet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a fresh machine, where compiling takes longer than anybody waits."""
    ready, run = Drops.prepared, Drops.run
    waits: list[float] = []
    runs: list[Problem] = []

    def prepared(self: Drops, deadline: Deadline, on_wait: Callable[[], None] | None = None) -> bool:
        waits.append(deadline.remaining)
        return len(waits) > 2 and ready(self, deadline, on_wait)

    def counted(self: Drops, problem: Problem, call: HeuristicRun) -> Schedule | None:
        runs.append(problem)
        return run(self, problem, call)

    class Ran(StoppingCriterion):
        def reached(self, moment: Progress) -> bool:
            return len(runs) > 0 and moment.objective is not None

        def __str__(self) -> str:
            return "when drops have run"

    monkeypatch.setattr(Drops, "prepared", prepared)
    monkeypatch.setattr(Drops, "run", counted)
    result = solve(Problem(layered(300, seed=1), "70%"), stop=AnyOf(15, Ran()), options=ONE)
    assert len(waits) > 1
    assert "drops was not compiled in time" not in result.message
    ran = [step for step in result.steps if step.name == "drops"]
    assert len(ran) > 1
    assert result.objective is not None


def test_what_is_never_loaded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drops, "prepared", lambda *_: False)
    monkeypatch.setattr(remat.solving.auto, "WAIT", 0.1)
    result = solve(Problem(layered(100, seed=1), "80%"), stop=1, options=ONE)
    assert result.message.count("drops was not compiled in time") == 1
    assert result.objective is not None


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_until_drops_are_compiled_python_finds_a_first_schedule(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """There was none on random graphs until drops were compiled, after ten seconds."""
    compiled_later(monkeypatch, Drops, Annealing)
    monkeypatch.setattr(remat.solving.auto, "ORDER_SHARE", 0.0)
    result = solve(Problem(layered(400, seed=1), "80%", order), stop=AnyOf(120, TargetCost(10**9)), options=ONE)
    assert result.objective is not None
    assert result.source == "interpreted drops"


def test_drops_are_not_run_by_python_where_they_are_compiled() -> None:
    result = solve(Problem(layered(200, seed=1), "80%"), stop=AnyOf(20, TargetCost(10**9)), options=ONE)
    assert [step.name for step in result.steps] == ["drops"]


def test_tiny_problems_are_searched_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_later(monkeypatch, Drops)
    result = solve(Problem(layered(16, seed=2), "80%"), stop=20, options=ONE)
    assert "interpreted drops" not in [step.name for step in result.steps]


def test_drops_by_python_do_not_begin_what_takes_longer_than_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20,000 ops they were a second and a half late, before they had found anything."""
    compiled_later(monkeypatch, Drops, Annealing)
    monkeypatch.setattr(remat.solving.auto, "INTERPRETED_PER_OP", 1.0)
    result = solve(Problem(layered(100, seed=1), "80%"), stop=2, options=ONE)
    assert "interpreted drops" not in [step.name for step in result.steps]


def test_python_ends_as_soon_as_drops_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    compiled = Drops.compiled

    def run(self: InterpretedDrops, problem: Problem, call: HeuristicRun) -> None:
        events.append("python")
        while not call.deadline.expired:
            time.sleep(0.01)
            if len(events) == 1 and call.deadline.elapsed > 0.3:
                events.append("compiled")
        events.append("early" if call.deadline.elapsed < call.deadline.seconds else "late")

    monkeypatch.setattr(Drops, "compiled", classmethod(lambda _: len(events) > 1 and compiled()))
    monkeypatch.setattr(InterpretedDrops, "run", run)
    result = solve(Problem(layered(200, seed=1), "80%"), stop=AnyOf(60, TargetCost(10**9)), options=ONE)
    assert events == ["python", "compiled", "early"]
    assert [step.name for step in result.steps] == ["interpreted drops", "drops"]


def test_what_bounds_had_before_counts_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were asked again at once, in less time than before, and said the same."""
    asked: list[float] = []

    def raise_bounds(session: Session, deadline: Deadline) -> None:
        asked.append(deadline.remaining)
        time.sleep(max(0.0, deadline.remaining))

    def improve(self: Session, heuristic: Heuristic, deadline: Deadline, *rest: object) -> None:
        time.sleep(min(0.1, max(0.0, deadline.remaining)))

    monkeypatch.setattr(remat.solving.auto, "raise_bounds", raise_bounds)
    monkeypatch.setattr(Session, "improve", improve)
    session = Session(
        Problem(layered(700, seed=1), "70%"), SolveOptions(deadline=Deadline.after(2.5), threads=1), "auto"
    )
    Auto(session, CpSat(), None).run()
    assert session.call.deadline.expired
    assert len(asked) == 1, asked


@pytest.mark.parametrize(("name", "graph"), [("annealing", layered(40, seed=1)), ("rotor", unet())])
def test_a_model_ends_as_soon_as_something_that_waits_is_compiled_and_restarts_after_it(
    monkeypatch: pytest.MonkeyPatch, name: str, graph: ComputeGraph
) -> None:
    """As on a fresh machine: on training graphs Rotor is ready before annealing, and mostly all that is needed."""
    events: list[str] = []

    def model(self: Auto, name: str, given: object, other: str, deadline: Deadline) -> None:
        events.append(name)
        while not deadline.expired and len(events) == 1:
            time.sleep(0.01)

    def improve(self: Session, heuristic: Heuristic, *rest: object) -> None:
        events.append(heuristic.name)

    monkeypatch.setattr(load("heuristics", name), "prepared", lambda *_: len(events) > 0)
    monkeypatch.setattr(Auto, "_model", model)
    monkeypatch.setattr(Session, "improve", improve)
    session = Session(Problem(graph, "50%"), SolveOptions(deadline=Deadline.after(60), threads=1), "auto")
    auto = Auto(session, CpSat(), None)
    assert not auto._heuristic(name, Deadline.after(1), wait=0.0)
    auto._models()
    assert events == ["stages", name, "stages", "retention-intervals"]
    assert session.call.deadline.elapsed < 20


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("ops", "budget", "order", "seeds"), [(100, "70%", "fixed", 1), (1000, "80%", "free", 5), (3000, "90%", "fixed", 1)]
)
def test_auto_is_never_far_behind_its_best_step(ops: int, budget: str, order: str, seeds: int) -> None:
    """Given the whole time: within 10 % of the overhead, and as much again for the noise of a search.

    With the free order one seed says little: ten seconds of annealing end near 0.78 % or anywhere up to 1.4 %, and four
    times as long changes that little. So the means of several seeds are compared.
    """
    problem = Problem(layered(ops, seed=1), budget, order)
    found = {}
    for name in ("auto", "drops", "annealing"):
        overheads = []
        for seed in range(seeds):
            certificate = solve(problem, name, stop=10, options=SolveOptions(threads=1, seed=seed)).certificate
            overheads.append(float("inf") if certificate is None else certificate.overhead)
        found[name] = statistics.mean(overheads)
    assert found["auto"] <= 1.2 * min(found.values()) + 1e-3, found
    assert found["auto"] < float("inf")


def test_large_training_graphs_wait_for_block_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a fresh machine, where drops take half a minute to compile: there was no schedule before they had been."""
    began, ready = time.monotonic(), BlockCheckpointing.prepared

    def prepared(self: BlockCheckpointing, deadline: Deadline, on_wait: Callable[[], None] | None = None) -> bool:
        while time.monotonic() < began + 1.0 and not deadline.expired:
            time.sleep(0.01)
        return time.monotonic() >= began + 1.0 and ready(self, deadline, on_wait)

    monkeypatch.setattr(BlockCheckpointing, "prepared", prepared)
    monkeypatch.setattr(BlockCheckpointing, "compiled", lambda: False)
    monkeypatch.setattr(Drops, "prepared", lambda *_: False)
    monkeypatch.setattr(Drops, "compiled", lambda: False)
    monkeypatch.setattr(remat.solving.auto, "WITHOUT_DROPS", {"eviction": (100, 1.0)})
    monkeypatch.setattr(remat.solving.chain_starts, "LOWER_OPS", 0)
    result = solve(
        Problem(resnet_ops(8, (64, 64, 3), depth=50), "50%"),
        stop=AnyOf(TargetCost(10**18), MaxSeconds(20)),
        options=ONE,
    )
    assert result.steps[0].name == "block-checkpointing"
    assert result.steps[0].objective is not None


def test_lower_sets_are_a_start_of_training_graphs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need no compiled code, and are good where drops are not: on networks with long skips."""
    for name in ("block-checkpointing", "drops", "rotor", "annealing"):
        monkeypatch.setattr(load("heuristics", name), "prepared", lambda *_: False)
        monkeypatch.setattr(load("heuristics", name), "compiled", lambda: False)
    monkeypatch.setattr(remat.solving.auto, "WAIT", 0.1)
    problem = Problem(unet(), "50%")
    result = solve(problem, stop=AnyOf(TargetCost(problem.graph.base_cost * 6 // 5), MaxSeconds(20)), options=ONE)
    assert result.steps[-1].name == "lower-sets"
    assert result.objective is not None
    assert result.objective <= problem.graph.base_cost * 6 // 5
    assert "lower-sets" not in {step.name for step in solve(Problem(layered(200, seed=1), "80%"), stop=1).steps}


def test_a_schedule_known_to_fit_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all steps come to nothing in time, the look for a budget that suffices may find one within the budget."""
    monkeypatch.setattr(Auto, "run", lambda _: None)
    result = solve(Problem(layered(40, seed=1), "90%"), stop=5, options=ONE)
    assert result.status is Status.FEASIBLE
    assert result.certificate is not None
    assert result.certificate.accepted
    assert solve(Problem(layered(40, seed=1), "90%"), "annealing", stop=Deadline(0.0), options=ONE).schedule is None
