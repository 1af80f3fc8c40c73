"""Concurrent calls of solve() in threads: no deadlock, deadlines, correct answers.

REMAT_STRESS_SOLVES sets the total number of solves.
"""

from __future__ import annotations

import importlib
import random
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import judged
from processes import count

from remat import Problem, Schedule, SolveOptions, simulate, solve, validate
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.heuristics.annealing import Annealing
from remat.heuristics.drops import Drops
from remat.runtime.interruption import interrupted
from remat.solving.min_peak import minimize

#: Number of concurrent threads.
THREADS = 14
#: Methods that find the optimum of the tiny problem.
EXACT = (
    "auto", "retention-intervals/cp-sat", "retention-intervals/highs", "stages/highs", "checkmate/highs",
    "checkmate/cp-sat",
)  # fmt: skip
#: Seconds for an optimum: HiGHS needs two seconds of CPU for one, and fourteen threads share the machine.
ENOUGH = 300.0
ROUGH = ("greedy", "eviction", "annealing", "drops", "lns", "lp-rounding", "chen-sqrt")
CALL = SolveOptions(threads=1)


@pytest.fixture(scope="module", autouse=True)
def _ready() -> None:
    importlib.import_module("scipy.sparse")  # the first import adds a filter of warnings
    assert Annealing().prepared()
    assert Drops().prepared()


def one(method: str, problem: Problem, seconds: float) -> tuple[object, float]:
    name, _, backend = method.partition("/")
    began = time.monotonic()
    result = solve(problem, name, backend or "cp-sat", stop=seconds, options=CALL)
    return result, time.monotonic() - began


def run_many(number: int, threads: int, seed: int) -> None:
    """Solve tiny problems with known optima, minimize, simulate and validate concurrently."""
    chain = unit_chain(6)
    problem, best = Problem(chain, 5), 16
    assert one("checkmate/highs", problem, ENOUGH)[0].objective == best
    least = minimize(unit_chain(4), stop=ENOUGH, options=CALL).peak

    def work(turn: int) -> str:
        choice = random.Random(seed * 10**6 + turn)
        kind = choice.random()
        if kind < 0.1:
            found = minimize(unit_chain(4), stop=ENOUGH, options=CALL)
            return "" if (found.peak, found.proved) == (least, True) else f"minimize: {found}"
        if kind < 0.2:
            graph = layered(60, seed=choice.randrange(5))
            reference = Schedule.reference(graph)
            same = simulate(graph, reference).peak == graph.reference_peak
            return "" if same and validate(graph, reference).accepted else "simulation"
        method = choice.choice(EXACT if kind < 0.6 else ROUGH)
        result, _ = one(method, problem, ENOUGH if method in EXACT else 1.0)
        if method in EXACT and (result.objective, str(result.status)) != (best, "optimal"):
            return f"{method}: {result}"
        if result.schedule is not None and not validate(chain, result.schedule, problem.rules).accepted:
            return f"{method}: not valid"
        return ""

    with ThreadPoolExecutor(threads) as pool:
        wrong = [what for what in pool.map(work, range(number), timeout=40 * 60) if what]
    assert not wrong
    assert not interrupted()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_thousand_solves_in_fourteen_threads() -> None:
    before = list(warnings.filters)
    run_many(count("SOLVES", 1000), THREADS, seed=0)
    assert warnings.filters == before
    assert threading.active_count() < THREADS + 20


def test_some_solves_in_fourteen_threads() -> None:
    run_many(THREADS, THREADS, seed=1)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_no_deadlock_of_drops_and_lns(rounds: int) -> None:
    """Three of each with a limit of 1 s."""
    problem = Problem(layered(120, seed=1), "80%")
    for _ in range(rounds):
        with ThreadPoolExecutor(6) as pool:
            runs = list(pool.map(lambda method: one(method, problem, 1.0), ["drops", "lns"] * 3, timeout=120))
        for result, seconds in runs:
            assert result.schedule is None or judged(problem, result.schedule).accepted
            assert seconds < 1 + 1 + 5  # 5 s for six threads on two busy cores
