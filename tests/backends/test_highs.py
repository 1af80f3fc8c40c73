"""HiGHS: answers, statuses, hints, deadlines."""

import threading
import time

import numpy as np
import pytest
from helpers import options
from refusals import refused

from remat.backends.highs import Highs
from remat.modeling import AllDifferent, Linear, Model, violations
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.testing.backend_checks import knapsack
from remat.testing.kit import answer

#: Has many incumbents and a wide gap after seconds.
HARD = knapsack(120)


def test_implied_variables_are_continuous_and_the_bound_is_rounded():
    model = knapsack(120)
    u = model.implied("u", 1, 0, 5)
    model.minimize(np.append(model.objective.index, u.index), np.append(model.objective.coefficient, 3))
    result = answer(Highs(), model, options(1))  # checks incumbents and bounds, too
    assert (result.status, result.stop) == (Status.FEASIBLE, StopReason.DEADLINE)
    assert len(result.incumbents) >= 2
    assert result.bound == np.rint(result.bound) < result.objective


@pytest.mark.parametrize("integers", [False, True])
def test_unbounded_model_is_an_error(integers):
    model = Model("open")
    u = model.continuous("u", 2).index
    if integers:
        x = model.integers("x", 1, 0, 3).index
        model.add(Linear.rows("link", [0, 0], [u[1], x[0]], [1, -1], lower=[0]))
    model.minimize(u, [-1, 0])
    result = Highs().solve(model, options())
    assert (result.status, result.message) == (Status.ERROR, "the objective is unbounded")
    assert result.bound is None
    model.add(Linear.rows("never", [0, 0], u, [0, 1], upper=[-1]))
    assert Highs().solve(model, options()).status is Status.INFEASIBLE


def test_infeasible_model_with_unbounded_relaxation():
    model = Model("parity")
    u, x = model.continuous("u", 1).index, model.integers("x", 2, 0, 9).index
    model.add(Linear.rows("odd", [0, 0], x, [2, 4], lower=[7], upper=[7]))
    model.minimize(u, [-1])
    assert Highs().solve(model, options()).status is Status.INFEASIBLE


def test_feasible_hint_is_the_first_incumbent():
    model, log = HARD, []
    hint = np.zeros(model.num_vars)
    hint[0] = 1
    result = Highs().solve(model, options(1, log=log.append), hint=hint)
    value = model.objective.value(hint)
    assert any("MIP start solution is feasible" in line and line.endswith(f" {value:g}") for line in log)
    assert result.incumbents[0].objective == value
    assert result.incumbents[0].bound is None


def test_hint_is_extended_to_variables_of_bridges():
    rng = np.random.default_rng(1)
    model, log, count = Model("tour"), [], 6
    x = model.integers("x", count, 0, count - 1).index
    model.add(AllDifferent("different", x))
    first, second = np.triu_indices(count, 1)
    rows = np.arange(len(first))
    apart = model.continuous("apart", len(first)).index
    for sign in (1, -1):
        column = np.concatenate([apart, x[first], x[second]])
        value = np.repeat([1, sign, -sign], len(rows))
        model.add(Linear.rows("distance", np.tile(rows, 3), column, value, lower=np.zeros(len(rows))))
    model.minimize(apart, rng.integers(1, 9, len(first)))
    hint = np.full(model.num_vars, np.nan)
    hint[x] = np.arange(count)  # the distances are left to the solver
    result = Highs().solve(model, options(20, log=log.append), hint=hint)
    assert any("MIP start solution is feasible" in line for line in log)
    assert result.status is Status.OPTIMAL
    assert violations(model, result.values) == []


def test_slow_transfer_of_the_model_stops_at_the_deadline(monkeypatch):
    import highspy

    pass_model, finished = highspy.Highs.passModel, threading.Event()

    def slow(self, *arguments):
        finished.wait(8)
        return pass_model(self, *arguments)

    monkeypatch.setattr(highspy.Highs, "passModel", slow)
    model, clock = HARD, Deadline.after(0.5)
    hint = np.zeros(model.num_vars)
    result = Highs().solve(model, SolveOptions(deadline=clock, threads=1), hint=hint)
    finished.set()
    assert clock.elapsed < 5
    assert (result.status, result.stop, result.objective) == (Status.FEASIBLE, StopReason.DEADLINE, 0)


def test_model_that_highs_rejects_is_an_error(monkeypatch):
    import highspy

    monkeypatch.setattr(highspy.Highs, "passModel", lambda self, *_: highspy.HighsStatus.kError)
    with refused("backend.model-refused", culprit="knapsack 120"):
        Highs().solve(HARD, options(10))


def test_thread_count_can_change_between_solves():
    model = knapsack(6)
    first, *others = [Highs().solve(model, SolveOptions(threads=threads)).objective for threads in (2, 1, None, 2)]
    assert others == [first] * 3


@pytest.mark.slow
def test_concurrent_solves_with_different_thread_counts():
    results = []

    def work(threads, seconds):
        results.append(Highs().solve(HARD, SolveOptions(Deadline.after(seconds), threads=threads)))

    for seconds in (1, 10):  # a busy machine may find nothing in 1 s
        results.clear()
        workers = [threading.Thread(target=work, args=(threads, seconds)) for threads in (1, 2)]
        for worker in workers:
            worker.start()
            time.sleep(0.3)
        for worker in workers:
            worker.join()
        if all(result.status is Status.FEASIBLE for result in results):
            break
    assert [result.status for result in results] == [Status.FEASIBLE] * 2


def test_solver_options_reach_highs():
    log = []
    Highs().solve(knapsack(6), options(log=log.append, solver={"presolve": "off"}))
    assert not any("Presolve reductions" in line for line in log)
    assert any(line.startswith("Running HiGHS") for line in log)


#: Factor of costs beyond those that HiGHS receives unchanged.
LARGE = 3 * 2.0**30


def multiplied(model: Model) -> Model:
    """Return a model whose costs are :data:`LARGE` times as high."""
    copy = model.copy(model.name)
    copy.minimize(model.objective.index, LARGE * model.objective.coefficient)
    return copy


def test_large_costs_of_a_relaxation():
    """Divided by a power of two for the solver, they give multiples of the objective, bound and duals."""
    model = knapsack(20)
    small, large = Highs().relax(model, options()), Highs().relax(multiplied(model), options())
    assert small.objective is not None and small.bound is not None
    assert large.objective == pytest.approx(LARGE * small.objective, rel=1e-12)
    assert large.bound == pytest.approx(LARGE * small.bound, rel=1e-12)
    assert large.row_duals == pytest.approx(LARGE * small.row_duals, rel=1e-9)


def test_large_costs_of_an_integer_programme():
    model = knapsack(20)
    small, large = Highs().solve(model, options()), Highs().solve(multiplied(model), options())
    assert large.status is small.status is Status.OPTIMAL
    assert large.objective == large.bound == LARGE * small.objective
    target = LARGE * 0.5 * small.objective
    early = Highs().solve(multiplied(model), options(solver={"objective_target": target, "presolve": "off"}))
    assert (early.status, early.stop) == (Status.FEASIBLE, StopReason.OTHER)
    assert small.objective * LARGE < early.objective <= target
