"""Bounds of a problem: selection, scopes, deadlines, memory limits, and the command."""

import json
import time

import pytest
from helpers import Countdown

from remat.backends.highs import Highs
from remat.bounds import Measure, best_bound, bounds, cut_bound, joint_bound, stage_bound
from remat.bounds.peak_bounds import held_bound
from remat.bounds.selection import applies, bounds_in_turn
from remat.cli import main
from remat.graphs import GraphBuilder, layered
from remat.graphs.families import unit_chain
from remat.graphs.zoo.transformers import gpt
from remat.problem import Problem

COST_BOUNDS = [
    "the joint bound",
    "the linear relaxation of checkmate (simplex)",
    "the stage bound",
]


def kinds(problem, **options):
    return [bound.kind for bound in bounds(problem, threads=1, **options)]


def test_bounds_that_apply():
    chain = unit_chain(5)
    peaks = ["the structural bound", "the cut bound"]
    assert kinds(Problem(chain)) == peaks  # without a budget the base cost is the optimum
    assert kinds(Problem(chain, 2)) == peaks
    assert kinds(Problem(chain, 4), relaxations=["checkmate"]) == peaks + COST_BOUNDS
    assert kinds(Problem(chain, 4, "free")) == [*peaks, COST_BOUNDS[0]]


def test_stage_bound_comes_first_on_large_graphs():
    """On a transformer of 5,000 ops it comes within a second near the overhead that drops finds, 17.5 %."""
    problem = Problem(gpt(layers=180, width=64, heads=4, sequence=64), "50%")
    first = next(bound for bound in bounds_in_turn(problem, 60, threads=1) if (bound.overhead or 0) > 0)
    assert first.kind == "the stage bound"
    assert first.overhead >= 16


def test_bounds_state_their_scope():
    for order in ("fixed", "free"):
        problem = Problem(unit_chain(5), 4, order)
        for bound in bounds(problem, threads=1):
            assert applies(bound, problem) == (bound.kind != "the cut bound")
            assert str(bound.scope) in str(bound)
            assert (bound.overhead is None) == (bound.measure is Measure.PEAK)
    free = Problem(layered(8), "80%", "free")
    assert not applies(stage_bound(free, threads=1), free)
    once = Problem(unit_chain(5), 6, max_computes=1)
    assert applies(cut_bound(once), once)


def test_cut_bound_proves_infeasibility_without_recomputation():
    """Nine bytes suffice only with two computes per op."""
    chain = unit_chain(8)
    assert best_bound(Problem(chain, 9, max_computes=1)).infeasible
    assert best_bound(Problem(chain, 9, max_computes=2)).value == 18
    assert best_bound(Problem(chain, 10, max_computes=1)).value == 17


def test_bounds_keep_outputs_of_non_recomputable_ops():
    builder = GraphBuilder("noise")
    builder.op("noise", size=5, cost=1, recomputable=False)
    builder.op("a", inputs=["noise"], size=5, cost=1)
    builder.op("b", inputs=["a"], size=5, cost=1)
    builder.op("c", inputs=["b"], size=5, cost=1)
    builder.op("d", inputs=["c", "noise"], size=1, cost=1)
    graph = builder.build()
    assert graph.structural_bound.peak == 11
    for problem in (Problem(graph, 14), Problem(graph, 14, "free")):
        assert best_bound(problem).infeasible
    assert best_bound(Problem(graph, 15)).value == 5


def test_constant_memory_raises_bounds_on_the_peak():
    builder = GraphBuilder("g", constant_memory=100)
    for k in range(4):
        builder.op(f"f{k}", inputs=[f"f{k - 1}"] * (k > 0), size=4, cost=2)
    builder.op("end", inputs=["f3", "f0"], size=4, cost=2)
    graph = builder.build()
    small = [(b.value, b.infeasible) for b in bounds(Problem(graph, 12), threads=1)]
    large = [(b.value, b.infeasible) for b in bounds(Problem(graph, 112, count_constant_memory=True), threads=1)]
    assert [value for value, _ in large] == [value + 100 * (i < 2) for i, (value, _) in enumerate(small)]
    assert [flag for _, flag in large] == [flag for _, flag in small]
    assert best_bound(Problem(graph, 111, count_constant_memory=True)).infeasible


def test_expired_deadlines_weaken_bounds():
    """Bounds without time left are weaker but valid."""
    graph = layered(250, 0.43, 1789)
    problem = Problem(graph, "60%")
    began = time.monotonic()
    found = bounds(problem, 0.0, threads=1)
    assert time.monotonic() - began < 5
    assert found[1].value == found[0].value  # no cut was evaluated
    assert not found[1].infeasible
    assert all(bound.value == graph.base_cost for bound in found[2:])
    assert best_bound(problem, 0.0, threads=1).value == graph.base_cost
    short = joint_bound(problem, deadline=0.3, threads=1)
    assert graph.base_cost <= short.value <= graph.base_cost + 4682  # a lower bound for the fixed order


def test_bounds_command(capsys):
    assert main(["bounds", "fcn8", "--budget", "80%", "--threads", "1", "--time-limit", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:12].strip(): line for line in lines if " cost " in line or " peak " in line}
    assert "10,289,323,652,736" in rows["joint bound"]
    assert "overhead 0.1361 %" in rows["joint bound"]
    assert "10,289,323,652,736" in rows["stage bound"]
    assert any("joint bound" in line and "of schedules in any order, any number of computes" in line for line in lines)
    assert lines[-1] == "stage bound: of schedules in fixed order, any number of computes"


def test_bounds_command_as_json(capsys):
    assert main(["bounds", "fcn8", "--budget", "80%", "--order", "free", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["infeasible"] is False
    joint = facts["bounds"][-1]
    assert (joint["value"], joint["scope"]["order"]) == (10_289_323_652_736, "free")
    assert joint["scope"]["max_computes"] is None


@pytest.mark.parametrize("as_json", [False, True])
def test_bounds_command_reports_infeasibility(capsys, as_json):
    assert main(["bounds", "vgg16", "--budget", "80%", *(["--json"] if as_json else [])]) == 1
    out = capsys.readouterr().out
    assert json.loads(out)["infeasible"] if as_json else "No schedule keeps the budget." in out


def test_bounds_command_reports_errors_in_one_line(capsys):
    for words in (["--budget", "nonsense"], ["--budget", "80%", "--relaxation", "unknown"], ["--order", "odd"]):
        assert main(["bounds", "fcn8", *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


# -- limits ------------------------------------------------------------------------------------------------------------


def test_linear_programmes_respect_the_memory_limit(monkeypatch):
    problem = Problem(layered(40, seed=1), "60%")
    solves = []
    monkeypatch.setattr(Highs, "relax", lambda *_, **__: solves.append("relax"))
    monkeypatch.setattr(Highs, "solve", lambda *_, **__: solves.append("solve"))
    found = bounds(problem, 60, relaxations=("checkmate",), memory_limit=10_000)
    assert not solves
    noted = [bound for bound in found if bound.note]
    assert len(noted) == 3  # the joint bound, the stage bound, and the relaxation
    assert all(bound.value >= bound.base_cost and not bound.infeasible for bound in noted)
    assert best_bound(problem, 60, memory_limit=10_000).value >= problem.graph.base_cost


@pytest.mark.parametrize("checks", range(14))
def test_bound_of_held_tensors_is_valid_when_interrupted(checks):
    graph = layered(60, seed=1)
    problem = Problem(graph, "50%", order="free", max_computes=dict.fromkeys(graph.op_names[::2], 1))
    whole, clock = held_bound(problem), Countdown(checks)
    part = held_bound(problem, deadline=clock)
    assert part.value <= whole.value and part.infeasible <= whole.infeasible
    assert clock.checks.__length_hint__() < max(1, checks)
