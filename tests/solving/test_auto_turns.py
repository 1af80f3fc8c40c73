"""Sequence and shares of the default method, on a simulated clock with made-up heuristics."""

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from helpers import ONE

import remat.solving.auto
import remat.solving.portfolio
from remat import Problem, layered, solve
from remat.backends.cp_sat import CpSat
from remat.bounds.stage_programmes import StageProgrammes
from remat.graphs.families import unit_chain
from remat.graphs.zoo.transformers import gpt
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.drops import Drops
from remat.heuristics.eviction import Eviction
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.schedule import OrderRule, Schedule
from remat.solving.auto import STAGES, LeastCostSearch
from remat.solving.conclusion import concluded
from remat.solving.portfolio import Policy, Stage
from remat.solving.session import Session

NEVER = float("inf")


@dataclass(frozen=True)
class Clock(Deadline):
    """Deadline on a simulated clock; expires early when `done` is true."""

    now: ClassVar[list[float]] = [0.0]
    started: float = 0.0
    done: Callable[[], bool] = field(default=bool)

    @property
    def elapsed(self) -> float:
        return self.now[0] - self.started

    @property
    def remaining(self) -> float:
        return 0.0 if self.done() else super().remaining

    def earlier(self, seconds: float) -> Deadline:
        return Clock(min(self.seconds, self.elapsed + seconds), self.started)

    def until(self, done: Callable[[], bool]) -> Deadline:
        return Clock(self.seconds, self.started, done)


def work(deadline: Deadline, seconds: float) -> None:
    """Advance the clock by `seconds` in small steps, at most to the deadline."""
    end = Clock.now[0] + seconds
    while Clock.now[0] < end and not deadline.expired:
        Clock.now[0] = min(end, Clock.now[0] + 0.05)


class Stages:
    """`Auto` whose steps only take time.

    Parameters
    ----------
    problem : Problem
    seconds : float
    takes : dict of str to float
        Seconds of each heuristic, of the bounds and of each model; 0.1 by default.
    ready : dict of str to float
        Time at which each heuristic is compiled; 0 by default.
    finds : tuple of str
        Heuristics that find a feasible, suboptimal schedule.
    cpus : int
        If it is 1, the start of compilation is a step.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, problem: Problem, *, seconds: float = 10.0,
        takes: dict[str, float] | None = None, ready: dict[str, float] | None = None, finds: tuple[str, ...] = (),
        cpus: int = 2,
    ) -> None:  # fmt: skip
        self.trace: list[str] = []
        Clock.now[0] = 0.0
        taken, compiled = takes or {}, ready or {}
        good = solve(problem, Eviction, options=ONE).schedule if finds else None

        def step(name: str, deadline: Deadline) -> None:
            self.trace.append(name)
            work(deadline, taken.get(name, 0.1))

        def kind(name: str) -> type[Heuristic]:
            since = compiled.get(name, 0.0)

            class Made(Heuristic):
                @classmethod
                def compiled(cls) -> bool:
                    return Clock.now[0] >= since

                def prepared(self, deadline: Deadline | None = None, on_wait: Callable[[], None] | None = None) -> bool:
                    work(deadline or Clock(), max(0.0, since - Clock.now[0]))
                    return self.compiled()

                def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
                    step(name, run.deadline)
                    return good if name in finds else None

            Made.name = name
            return Made

        auto, portfolio = remat.solving.auto, remat.solving.portfolio
        patch.setattr(portfolio, "load", lambda _, name: kind(name))
        for module in auto, portfolio:
            patch.setattr(module, "available_cpus", lambda: cpus)
        if cpus == 1:
            patch.setattr(LeastCostSearch, "compile", lambda *_: self.trace.append("compile"))
        patch.setattr(portfolio, "chain_start", lambda name: kind(name)())
        patch.setattr(portfolio, "raise_bounds", lambda _, deadline, *__: step("bounds", deadline))
        patch.setattr(auto, "explore", lambda *_, deadline, **__: step("exhaustive", deadline))
        patch.setattr(portfolio, "CHECK_INTERVAL", 0.0)
        patch.setitem(LeastCostSearch.steps, "order", lambda _, deadline: step("order", deadline))
        patch.setitem(LeastCostSearch.steps, "descent", lambda _, deadline: step("descent", deadline))
        patch.setitem(LeastCostSearch.steps, "live-sets", lambda _, deadline: step("live-sets", deadline))
        patch.setattr(LeastCostSearch, "made", Policy.made)
        patch.setattr(LeastCostSearch, "answer", lambda _, method, solver, deadline: step(method.name, deadline))
        self.session = Session(problem, SolveOptions(Clock(seconds), threads=1), "auto", solver=CpSat())
        self.auto = LeastCostSearch(self.session)

    def run(self) -> str:
        """Return the steps in order."""
        self.auto.run((Stage("order"), *STAGES[1:]))
        return " ".join(self.trace)


RANDOM = Problem(layered(100, 0.3, 2), "90%")
LARGE = Problem(layered(700, seed=1), "95%")
TRAINING = Problem(unit_chain(40), "50%")
TINY = Problem(layered(16, seed=2), "80%")
BLOCKS, DROPS = "block-checkpointing", "drops"
MODELS = "stages retention-intervals"
COLD = {BLOCKS: NEVER, DROPS: NEVER, "rotor": NEVER, "annealing": NEVER}
#: By statement: problem, durations and results of steps, and expected sequence.
TRACES: dict[str, tuple[Problem, dict[str, Any], str]] = {
    "drops come first, then quick heuristics, bounds, annealing, models and turns": (
        RANDOM, {"finds": (DROPS,)},
        f"order live-search drops eviction greedy live-search bounds annealing {MODELS} lns annealing",
    ),
    "greedy and models would take too long on large graphs": (
        LARGE, {"finds": (DROPS,)}, "order drops eviction bounds annealing lns annealing annealing annealing lns"
    ),
    "greedy and whole models of training graphs need a fixed order, and annealing has most of a free one": (
        replace(RANDOM, order="free"), {"finds": (DROPS,)},
        "order live-search drops eviction live-search bounds annealing annealing lns annealing",
    ),
    "without a schedule drops have more time, annealing comes before bounds, and peaks descend": (
        LARGE, {}, "order drops eviction drops annealing bounds descent annealing descent lns"
    ),
    "heuristics that are compiled later are tried again": (
        RANDOM, {"ready": {DROPS: 0.9}, "finds": ("eviction",)},
        "order live-search greedy eviction eviction greedy live-search bounds annealing stages drops",
    ),
    "Python ends as soon as drops are compiled": (
        RANDOM, {"ready": {DROPS: 0.6}, "takes": {"greedy": 9}, "finds": (DROPS,)},
        "order live-search greedy drops eviction greedy live-search bounds",
    ),
    "a missing kernel is one note": (
        RANDOM, {"ready": {DROPS: NEVER}, "finds": ("eviction",)},
        "order live-search greedy eviction eviction greedy live-search bounds",
    ),
    "a single CPU compiles after the interpreter has run, and then waits for annealing": (
        RANDOM, {"ready": {DROPS: NEVER, "annealing": 8.0}, "finds": ("greedy",), "seconds": 20.0, "cpus": 1},
        "order live-search greedy compile annealing eviction greedy live-search bounds",
    ),
    "or for block checkpointing, unless few stages are close to the bound": (
        TRAINING, {"ready": COLD | {BLOCKS: 2.0}, "finds": (BLOCKS,), "cpus": 1},
        f"order few-stages greedy eviction compile {BLOCKS} few-stages",
    ),
    "tiny problems are searched before waiting for kernels": (
        TINY, {"ready": {"annealing": 30.0}, "seconds": 1.0},
        "order exhaustive live-search exhaustive eviction greedy live-search bounds",
    ),
    "training graphs have starts of their own": (
        TRAINING, {"finds": (BLOCKS,)},
        f"order few-stages {BLOCKS} drops few-stages lower-sets live-search rotor eviction greedy annealing bounds "
        f"few-stages annealing "
        f"{MODELS}",
    ),
    "lower sets need no compiled code": (
        TRAINING, {"ready": COLD, "finds": ("lower-sets",)},
        f"order few-stages greedy eviction lower-sets few-stages lower-sets live-search eviction greedy bounds "
        f"few-stages {MODELS} lns",
    ),
    "auto waits for block checkpointing if nothing else finds a schedule": (
        TRAINING, {"ready": COLD | {BLOCKS: 1.5}, "finds": (BLOCKS,)},
        f"order few-stages greedy eviction lower-sets live-sets few-stages lower-sets live-search eviction greedy "
        f"eviction {BLOCKS} bounds",
    ),
    "a model ends as soon as annealing is compiled, and restarts": (
        RANDOM, {"ready": {"annealing": 2.0}, "takes": {"stages": 9, "annealing": 1}, "finds": (DROPS,)},
        f"order live-search drops eviction greedy live-search bounds stages annealing {MODELS} lns",
    ),
    "or Rotor, which is ready before annealing on training graphs": (
        TRAINING, {"ready": {"rotor": 2.0, "annealing": NEVER}, "takes": {"stages": 9}, "finds": (DROPS,)},
        f"order few-stages {BLOCKS} drops few-stages lower-sets live-search eviction greedy bounds few-stages stages "
        f"rotor {MODELS} lns",
    ),
    "without a deadline it ends after the models": (
        RANDOM, {"seconds": NEVER, "finds": (DROPS,)},
        f"order live-search drops eviction greedy live-search bounds annealing {MODELS}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("statement", TRACES)
def test_sequence_of_steps(monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    problem, facts, expected = TRACES[statement]
    stages = Stages(monkeypatch, problem, **facts)
    assert stages.run().startswith(expected)
    late = [name for name, since in facts.get("ready", {}).items() if since > Clock.now[0]]
    assert stages.session.notes == [f"{name} was not compiled in time" for name in late]


def test_few_stages_continue_with_small_programmes(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(monkeypatch, TRAINING, finds=(BLOCKS,))
    programmes = StageProgrammes(TRAINING)
    monkeypatch.setattr(StageProgrammes, "small", True)
    monkeypatch.setattr(Heuristic, "programmes_of", lambda *_: programmes)
    assert stages.run().startswith(f"order few-stages {BLOCKS} drops few-stages few-stages lower-sets")


def test_few_stages_continue_before_other_searches_if_the_gap_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule of theirs has a gap of 22 %."""
    for most, sequence in ((0.2, f"few-stages {BLOCKS}"), (0.25, f"few-stages few-stages {BLOCKS}")):
        stages = Stages(monkeypatch, TRAINING, finds=("few-stages",))
        monkeypatch.setattr(remat.solving.portfolio, "CLOSE", most)
        assert stages.run().startswith(f"order {sequence}")


def test_large_training_graphs_wait_for_block_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drops take half a minute to compile on a new machine."""
    stages = Stages(monkeypatch, TRAINING, ready=COLD | {BLOCKS: 1.5}, finds=(BLOCKS,))
    stages.auto.num_ops = 30_000
    assert stages.run().startswith(f"order few-stages {BLOCKS} bounds")


def test_skipped_stage_with_the_largest_share_runs_when_its_code_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(monkeypatch, RANDOM, ready={DROPS: 1.0}, takes={DROPS: 99, "eviction": 2.0})
    stages.auto.follow([Stage(DROPS, 0.2), Stage(DROPS, 0.5), Stage(DROPS, 0.1), Stage("eviction"), Stage("greedy")])
    assert stages.trace == ["eviction", DROPS, "greedy"]
    assert Clock.now[0] == pytest.approx(2.0 + 0.5 * 8.0 + 0.1, abs=0.1)  # greedy takes 0.1 s


def test_annealing_precedes_bounds_on_large_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(monkeypatch, LARGE, finds=(DROPS,))
    stages.auto.num_ops = 100_000
    assert stages.run().startswith("order drops annealing bounds")


@pytest.mark.parametrize(
    ("budget", "ops", "order", "first"),
    [
        ("80%", 100_000, "free", "annealing drops"), ("70%", 100_000, "free", DROPS), ("80%", 40_000, "free", DROPS),
        ("80%", 100_000, "fixed", DROPS),
    ],
)  # fmt: skip
def test_annealing_precedes_drops_on_huge_graphs_of_a_free_order_at_mild_budgets(
    monkeypatch: pytest.MonkeyPatch, budget: str, ops: int, order: OrderRule, first: str
) -> None:
    stages = Stages(monkeypatch, Problem(LARGE.graph, budget, order))
    stages.auto.num_ops = ops
    assert stages.run().startswith(f"order {first}")


def test_bounds_are_not_repeated_with_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor if they ended early, since more time would not change them."""
    for seconds, takes, most in ((2.5, 99, 2), (20, 0.1, 1)):
        stages = Stages(monkeypatch, LARGE, seconds=seconds, takes={"bounds": takes})
        step, spans = remat.solving.portfolio.raise_bounds, []

        def timed(session: Session, deadline: Clock, _: object, step: Any = step, spans: list[float] = spans) -> None:
            began = Clock.now[0]
            step(session, deadline)
            spans.append(Clock.now[0] - began)

        monkeypatch.setattr(remat.solving.portfolio, "raise_bounds", timed)
        stages.run()
        assert 1 <= len(spans) <= most
        assert all(later >= 1.5 * earlier for earlier, later in itertools.pairwise(spans))


@pytest.mark.parametrize(("order", "then"), [("free", "annealing lns"), ("fixed", "bounds")])
def test_only_bounds_of_a_fixed_order_gain_from_a_schedule(
    monkeypatch: pytest.MonkeyPatch, order: OrderRule, then: str
) -> None:
    """The first bounds raised the bound and used all their time; the second would have less."""
    takes = {"bounds": 99, "annealing": 99}
    stages = Stages(monkeypatch, replace(LARGE, order=order), takes=takes, finds=(DROPS,))
    slow = remat.solving.portfolio.raise_bounds

    def raise_bounds(session: Session, deadline: Deadline, _: object) -> None:
        slow(session, deadline)
        session.raise_bound(session.bound + 1)

    monkeypatch.setattr(remat.solving.portfolio, "raise_bounds", raise_bounds)
    assert stages.run().startswith(f"order drops eviction bounds annealing {then}")


def test_turns_follow_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annealing gets three times the time of each other method while nothing improves."""
    stages = Stages(monkeypatch, LARGE, seconds=40, takes=dict.fromkeys(("annealing", "lns", "bounds"), 0.5))
    steps = stages.run().split()
    assert steps.count("annealing") == pytest.approx(3 * steps.count("lns"), abs=4)
    assert stages.session.call.deadline.expired


# -- on a real clock ---------------------------------------------------------------------------------------------------


def test_drops_give_large_graphs_a_schedule_within_a_second() -> None:
    assert Drops().prepared()
    result = solve(Problem(layered(1000, seed=1), "80%"), stop=1, options=ONE)
    assert result.steps[0].name == "drops"
    assert result.steps[0].objective is not None
    assert result.objective is not None
    assert result.objective <= result.steps[0].objective


@pytest.mark.slow
def test_bound_for_five_thousand_ops() -> None:
    problem = Problem(gpt(layers=180, width=64, heads=4, sequence=64), "50%")
    result = solve(problem, stop=60, options=SolveOptions(threads=1, relative_gap=0.02))
    assert result.stop is StopReason.GAP
    assert result.bound > 1.1 * problem.graph.base_cost


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("ops", "budget", "order", "seeds"), [(100, "70%", "fixed", 1), (1000, "80%", "free", 5), (3000, "90%", "fixed", 1)]
)
def test_auto_is_close_to_its_best_step(ops: int, budget: str, order: str, seeds: int) -> None:
    """Within 10 % of the overhead of each step with the whole time, plus 10 % for noise.

    With the free order, ten seconds of annealing end anywhere from 0.78 to 1.4 % depending on the seed, and longer runs
    hardly less. So means over several seeds are compared.
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


def test_search_for_a_sufficient_budget_may_give_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no step finds a schedule, this search may find one within the budget."""
    monkeypatch.setattr(LeastCostSearch, "run", lambda *_: None)
    result = solve(Problem(layered(40, seed=1), "90%"), stop=5, options=ONE)
    assert result.status is Status.FEASIBLE
    assert result.certificate is not None
    assert result.certificate.accepted
    assert [point.objective for point in result.incumbents] == [result.objective]
    assert solve(Problem(layered(40, seed=1), "90%"), "annealing", stop=Deadline(0.0), options=ONE).schedule is None


def test_proved_result_does_not_mention_skipped_methods() -> None:
    """At 100 % the reference order is optimal; at 60 % nothing was found."""
    for budget, mentioned in (("100%", False), ("60%", True)):
        session = Session(Problem(unit_chain(8), budget), SolveOptions(), "auto")
        session.not_compiled("annealing")
        assert ("annealing was not compiled in time" in concluded(session).message) == mentioned
