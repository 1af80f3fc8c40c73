"""Warm starts: schedules encoded as solutions, which solvers accept, and schedules that are refused."""

import random
import re
from functools import partial

import pytest
from generators import random_order, staged
from helpers import ONE, RUN, some_slow
from refusals import refused

from remat import GraphBuilder, Problem, Schedule, read_graph, read_schedule, simulate, solve, validate
from remat.backends.highs.relaxation import with_small_costs
from remat.errors import ProblemError
from remat.formulations.checkmate import Checkmate
from remat.formulations.retention_intervals import RetentionIntervals, RetentionIntervalsOptions
from remat.graphs.families import unit_chain
from remat.heuristics.greedy import Greedy
from remat.modeling import violations
from remat.modeling.matrix import to_matrix
from remat.registry import make_backend
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.testing.graphs import random_graph


def retention(problem, copies=30, **options):
    return RetentionIntervals(problem, RetentionIntervalsOptions(copies=copies, **options))


FORMULATIONS = {
    "checkmate": Checkmate,
    "retention-intervals": retention,
    "retention-intervals, reservoirs": partial(retention, precedence="reservoir"),
}
START_LINES = {
    "cp-sat": r"The solution hint is complete and is feasible\.(?: Its objective value is ([-\d.e+]+)\.)?",
    "highs": r"MIP start solution is feasible, objective value is ([-\d.e+]+)",
}
OPTIONS = {"cp-sat": {}, "highs": {"presolve": "off"}}  # presolve may leave nothing to start


def graph_of(seed):
    """Return a random graph; every second one has accumulation buffers."""
    return random_graph(seed, plain=seed % 5 == 0, buffers=seed % 2 == 0)


def schedules(seed):
    rng = random.Random(seed)
    graph = graph_of(seed)
    return graph, [Schedule.reference(graph), staged(graph, rng), staged(graph, rng, order=random_order(graph, rng))]


def start_objective(backend, model, hint, seconds=20.0):
    """Return the objective of the start in the solver's log, None unless the log calls the start feasible.

    CP-SAT logs no objective where the model has none. The solve stops as soon as the line is found.
    """
    lines = []

    def match():
        return re.search(START_LINES[backend], "\n".join(lines))

    deadline = Deadline.after(seconds).until(lambda: match() is not None)
    call = SolveOptions(deadline=deadline, threads=1, log=lines.append, solver=OPTIONS[backend])
    make_backend(backend).solve(model, call, hint)
    found = match()
    return None if found is None else float(found[1] or 0)


def terms(backend, model, values):
    """Return the objective as solvers report it, without its constant; None where linear rows leave no choice.

    HiGHS receives small costs.
    """
    form = model.overrides.get("linear") if backend == "highs" else None
    if form is not None:
        model, values = form().model, form().hint(values)
        if not model.num_vars:
            return None
    scale = with_small_costs(to_matrix(model))[1] if backend == "highs" else 1
    return round(model.objective.value(values) - model.objective.constant) / scale


@pytest.mark.parametrize(
    ("name", "order"), [(n, o) for n in FORMULATIONS for o in ("fixed", "free") if (n, o) != ("checkmate", "free")]
)
@pytest.mark.parametrize("graphs", [10, pytest.param(20, marks=pytest.mark.slow)])
def test_valid_schedules_are_solutions_or_refused(name, order, graphs):
    """With the schedule's peak as budget, the values satisfy the main model and that of phase 1."""
    encoded = refused = 0
    for seed in range(graphs):
        graph, found = schedules(seed)
        for schedule in found:
            problem = Problem(graph, simulate(graph, schedule).peak, order)
            if not validate(graph, schedule, problem.rules).accepted:
                assert order == "fixed"
                continue
            formulation = FORMULATIONS[name](problem)
            try:
                values = formulation.encode(schedule)
            except ProblemError:
                refused += 1
                continue
            encoded += 1
            assert violations(formulation.build(), values) == [], seed
            first = formulation.preliminary()
            assert first is None or violations(first.model, first.extend(values)) == [], seed
            again = validate(graph, formulation.decode(values), problem.rules)
            assert again.accepted, seed
            assert again.cost <= validate(graph, schedule, problem.rules).cost
    assert encoded > 1.6 * graphs
    assert refused < encoded / 8


@pytest.mark.parametrize("seed", range(20))
def test_phase_1_starts_from_any_schedule_at_any_budget(seed):
    graph, found = schedules(seed)
    for schedule in found:
        formulation = retention(Problem(graph, graph.structural_bound.peak, "free"))
        values = formulation.encode(schedule)
        first = formulation.preliminary()
        extended = first.extend(values)
        assert violations(first.model, extended) == []
        peak = simulate(graph, schedule.without_frees()).peak
        if (graph.arrays.producers.counts <= 1).all() and peak <= graph.reference_peak:
            assert (extended[:-1] == values).all()
            assert extended[-1] <= max(formulation.capacity, peak // formulation.unit)


@pytest.mark.parametrize("backend", START_LINES)
@pytest.mark.parametrize("name", FORMULATIONS)
@pytest.mark.parametrize("seed", some_slow(range(6), 2))
def test_solvers_accept_the_start(seed, name, backend):
    """Reference order, greedy, and random staged schedules."""
    rng = random.Random(seed)
    graph = random_graph(seed, most_ops=5, plain=seed % 4 == 0, buffers=seed % 2 == 1)
    greedy = Greedy().run(Problem(graph, graph.structural_bound.peak), RUN)
    for schedule in (Schedule.reference(graph), greedy, staged(graph, rng)):
        formulation = FORMULATIONS[name](Problem(graph, simulate(graph, schedule).peak))
        values = formulation.encode(schedule)
        assert start_objective(backend, formulation.build(), values) == terms(backend, formulation.build(), values)
        first = formulation.preliminary()
        if first is not None:
            extended = first.extend(values)
            assert start_objective(backend, first.model, extended) == terms(backend, first.model, extended)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "unet_profile_90",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("unet_profile_80", "fcn8_static_65", "fcn8_static_80", "fcn8_static_90")
        ),
    ],
)
def test_published_checkmate_schedules_are_starts(shared, name):
    """The budget is the peak of the schedule; solvers read the start within a few seconds."""
    graph = read_graph(shared / f"data/graphs/checkmate_{name.rpartition('_')[0]}.json")
    schedule = read_schedule(shared / f"data/schedules/checkmate_{name}.json", graph)
    problem = Problem(graph, simulate(graph, schedule).peak)
    most = max(schedule.computes().count(op.name) for op in graph.ops)
    for formulation, backends in ((Checkmate(problem), START_LINES), (retention(problem, copies=most), START_LINES)):
        values = formulation.encode(schedule)
        assert violations(formulation.build(), values) == []
        for backend in backends:
            expected = terms(backend, formulation.build(), values)
            assert expected > 0
            assert start_objective(backend, formulation.build(), values, seconds=20) == pytest.approx(
                expected, rel=1e-5
            )


# -- schedules that cannot be encoded ----------------------------------------------------------------------------------


@pytest.fixture
def refilled():
    """A buffer that is freed and refilled around a large tensor: peak 23, or 32 if the buffer is kept."""
    b = GraphBuilder("refill")
    b.tensor("sum", 10)
    b.op("x", size=1, cost=1)
    b.op("w1", inputs=["x"], outputs=["sum"], cost=1)
    b.op("w2", inputs=["x"], outputs=["sum"], cost=1)
    b.op("r1", inputs=["sum"], size=1, cost=1)
    b.op("large", inputs=["x"], size=20, cost=1)
    b.op("small", inputs=["large"], size=1, cost=1)
    b.op("r2", inputs=["sum", "small", "r1"], size=1, cost=1)
    graph = b.build()
    ops = ["x", "w1", "w2", "r1", "large", "small", "w1", "w2", "r2"]
    return graph, Schedule.of_computes(graph, [graph.op_index[op] for op in ops])


@pytest.mark.parametrize("name", FORMULATIONS)
def test_refilled_buffer_is_refused(refilled, name):
    graph, schedule = refilled
    assert simulate(graph, schedule).peak == 23
    with refused("problem.refilled-buffer", culprit="sum"):
        FORMULATIONS[name](Problem(graph, 23)).encode(schedule)


def test_useless_refill_is_skipped(refilled):
    graph, _ = refilled
    steps = [("compute", op) for op in ("x", "w1", "w2", "r1")] + [("free", "sum")]
    steps += [("compute", op) for op in ("w1", "w2", "large", "small", "r2")]
    schedule = Schedule.from_steps(steps)
    assert simulate(graph, schedule).peak == 34
    formulation = Checkmate(Problem(graph, 34))
    values = formulation.encode(schedule)
    assert violations(formulation.build(), values) == []
    assert formulation.decode(values).num_computes == 7


@pytest.fixture
def fork():
    b = GraphBuilder("fork")
    b.op("a", size=1), b.op("b", size=1)
    b.op("c", inputs=["a", "b"], size=1)
    b.op("d", inputs=["a", "b", "c"], size=1)
    return b.build()


@pytest.mark.parametrize("name", FORMULATIONS)
@pytest.mark.parametrize(
    ("computes", "kind", "culprit"),
    [("abc", "problem.missing-op", "d"), ("bacd", "problem.not-staged", "b"), ("abcbad", "problem.not-staged", "a")],
)
def test_unsupported_schedules_are_refused(fork, name, computes, kind, culprit):
    with refused(kind, culprit=culprit):
        FORMULATIONS[name](Problem(fork)).encode(Schedule.from_steps([("compute", op) for op in computes]))


def test_more_computes_than_copies_are_refused(fork):
    with refused("problem.too-many-copies", culprit="a"):
        retention(Problem(fork, order="free"), copies=1).encode(Schedule.of_computes(fork, [0, 1, 2, 0, 3]))


def test_compute_without_reads_is_skipped(fork):
    formulation = retention(Problem(fork, order="free"))
    assert formulation.decode(formulation.encode(Schedule.of_computes(fork, [0, 1, 2, 0, 0, 3]))).num_computes == 5


def test_message_names_the_copies_that_are_missing():
    """The warm start is within the budget, but has more computes than two copies allow."""
    problem = Problem(unit_chain(6), 4)
    best = solve(problem, "checkmate", "cp-sat", stop=60, options=ONE)
    most = max(best.schedule.computes().count(op.name) for op in problem.graph.ops)
    assert most > 2
    method, call = "retention-intervals", {"warm_start": best.schedule, "options": ONE, "stop": 60}
    result = solve(problem, method, method_options=RetentionIntervalsOptions(copies=2), **call)
    assert result.objective == best.objective
    assert result.source == "the warm start"
    assert re.search(
        rf"the warm start is no hint for retention-intervals: .* {most} times, the formulation has 2 copies of it",
        result.message,
    )
    enough = solve(problem, method, method_options=RetentionIntervalsOptions(copies=most), **call)
    assert "no hint" not in enough.message
    assert enough.objective == best.objective


def test_message_names_a_warm_start_over_budget():
    problem = Problem(unit_chain(6), 5)
    result = solve(problem, warm_start=Schedule.reference(problem.graph), stop=60, options=ONE)
    assert result.status == "optimal"
    assert "the warm start is over the budget (peak 8 bytes)" in result.message


def test_late_frees_of_a_warm_start_are_moved():
    """Late frees put it over the budget; the same computes freed at last use are within it."""
    graph = unit_chain(4)
    lean = solve(Problem(graph, 5), stop=60, options=ONE).schedule
    steps = [("compute", op) for op in lean.computes()]
    late = Schedule.from_steps([*steps, ("free", graph.ops[0].outputs[0])])
    assert simulate(graph, late).peak > 5
    result = solve(Problem(graph, 5), warm_start=late, stop=60, options=ONE)
    assert result.source == "the warm start, freed at last use"
    assert "over the budget" not in result.message
