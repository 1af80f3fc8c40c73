"""Estimated sizes of models, and models that are refused because they do not fit."""

import tracemalloc

import pytest
from helpers import ONE

from remat import Problem, solve
from remat.bounds.lp import lp_relaxation
from remat.errors import ProblemError
from remat.formulations.checkmate import Checkmate, CheckmateOptions
from remat.formulations.h_ilp import HIlp
from remat.formulations.ordering import LinearOrder, OrderIntervals, OrderPositions
from remat.formulations.retention_intervals import RetentionIntervals
from remat.formulations.stages import Stages, StagesOptions
from remat.graphs.families import in_tree, unit_chain
from remat.graphs.layered import layered
from remat.graphs.zoo import unet
from remat.modeling import Linear
from remat.modeling.size import BUILT_BYTES, ModelSize
from remat.runtime import resources
from remat.runtime.solve_options import SolveOptions, StopReason
from remat.solving import model_solve

GRAPHS = {"layered": layered(120, seed=1), "unet": unet(), "chain": unit_chain(60), "tree": in_tree(5)}


ORDERS = (OrderPositions, LinearOrder, OrderIntervals)
STATED = [
    (Checkmate, None, "fixed"), (Checkmate, CheckmateOptions(frontier=False, stages=5), "free"),
    (Stages, None, "fixed"), (Stages, StagesOptions(ahead=False), "fixed"), (HIlp, None, "fixed"),
    (RetentionIntervals, None, "free"), (RetentionIntervals, None, "fixed"),
]  # fmt: skip
CASES = [(name, *each) for name in ("layered", "unet", "chain") for each in STATED]
CASES += [(name, kind, None, "free") for name in ("layered", "tree") for kind in ORDERS]


@pytest.mark.parametrize(("name", "kind", "options", "order"), CASES)
def test_estimates_match_built_models(name, kind, options, order):
    problem = Problem(GRAPHS[name], "70%", order)
    formulation = kind(problem) if options is None else kind(problem, options)
    size = formulation.estimate()
    model = formulation.build()
    entries = sum(len(r.value) if isinstance(r, Linear) else len(r.variables()) for r in model.records)
    # estimates also count the values of start times, which are no entries of records
    most = 6 if kind is RetentionIntervals and order == "fixed" else 1.3
    assert (0.95 if kind in ORDERS else 0.9) * entries <= size.nonzeros <= most * entries


def test_cost_limit_shrinks_stages():
    problem = Problem(layered(300, seed=1), "80%")
    whole, some = Stages(problem), Stages(problem)
    some.leave_out_above(int(1.01 * problem.graph.base_cost))
    assert some.estimate().nonzeros < 0.9 * whole.estimate().nonzeros
    entries = sum(len(record.value) for record in some.build().records)
    assert entries == pytest.approx(some.estimate().nonzeros, rel=0.15)


def test_lack_of_memory_and_time():
    size = ModelSize(1000, tables=500)
    assert size.lacks_memory(1000 * BUILT_BYTES + 500) == ""
    assert "needs about 0 MiB" in size.lacks_memory(1000 * BUILT_BYTES + 499)
    assert size.lacks_memory(10**6, nonzero_bytes=1000)
    assert ModelSize(10**9).lacks_time(1) == "takes at least 50.0 s to build, but only 1.0 s are left"
    assert ModelSize(10**9).lacks_time(60) == ""


@pytest.mark.parametrize("method", ["checkmate", "stages", "lp-rounding", "checkpoint-last"])
def test_models_that_do_not_fit_are_refused(method, monkeypatch):
    """Regression: models were built until memory was exhausted."""
    for module in ("solving.model_solve", "heuristics.lp_rounding", "heuristics.checkpointing.base"):
        monkeypatch.setattr(f"remat.{module}.available_memory", lambda *_: 10_000.0)
    with pytest.raises(ProblemError, match=r"needs about .* [GM]iB.*, but only 0(\.0 G| M)iB are available"):
        solve(Problem(layered(60, seed=1), "80%"), method, "highs", options=ONE)


def test_warm_start_survives_a_model_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(model_solve, "available_memory", lambda *_: 10_000.0)
    problem = Problem(unit_chain(8), 8)
    known = solve(problem, "greedy").schedule
    result = solve(problem, "checkmate", "highs", warm_start=known, options=ONE)
    assert result.schedule is not None
    assert result.stop is StopReason.OTHER
    assert "the model of checkmate by highs is not built: it has about " in result.message


def test_memory_limit_of_the_call():
    problem = Problem(unit_chain(30), 12)
    with pytest.raises(ProblemError, match="is not built"):
        solve(problem, "checkmate", "highs", options=SolveOptions(threads=1, memory_limit=2_000_000, start="none"))


def test_relaxation_that_does_not_fit(monkeypatch):
    monkeypatch.setattr("remat.bounds.lp.available_memory", lambda *_: 10_000.0)
    bound = lp_relaxation(Problem(unit_chain(8), 5))
    assert bound.value == bound.base_cost
    assert bound.note.startswith("its model has about ")
    assert bound.note in str(bound)


def test_five_thousand_ops_lack_memory():
    """Checkmate's model has 3 billion non-zeros; stages by HiGHS took 57 s and 10 GB within a limit of 12 s."""
    graph = layered(5000, seed=1)
    problem = Problem(graph, "80%")
    limit = min(16 * 2**30, int(resources.available_memory()))
    for kind in (Checkmate, Stages):
        assert kind(problem).estimate().lacks_memory(limit, 400)
    for kind in (OrderPositions, LinearOrder):
        assert kind(Problem(graph, order="free", objective="least-peak")).estimate().lacks_memory(2**31)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Stages, HIlp])
def test_estimates_take_little_memory(kind):
    """Regression: H-ILP took 3.3 GB for 20,000 ops before they were refused."""
    formulation = kind(Problem(layered(1000, seed=1), "80%"))
    tracemalloc.start()
    size, (_, peak) = formulation.estimate(), tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 1000**2 < size.tables
