"""What runs on which problem, deadlines, what a bound does not know, and the shell."""

import json
import time

import pytest
from helpers import Countdown

from remat.backends.highs import Highs
from remat.bounds import Measure, best_bound, bounds, cut_bound, joint_bound, stage_bound
from remat.bounds.non_recomputable import held_bound
from remat.bounds.report import applies, bounds_in_turn
from remat.cli import main
from remat.graphs import GraphBuilder, layered
from remat.graphs.families import unit_chain
from remat.graphs.zoo.gpt import gpt
from remat.problem import Problem

COST_BOUNDS = [
    "the joint bound",
    "the linear relaxation of checkmate (simplex)",
    "the stage bound",
]


def kinds(problem, **options):
    return [bound.kind for bound in bounds(problem, threads=1, **options)]


def test_what_runs():
    chain = unit_chain(5)
    peaks = ["the structural bound", "the cut bound"]
    assert kinds(Problem(chain)) == peaks  # without a budget the base cost is the optimum
    assert kinds(Problem(chain, 2)) == peaks
    assert kinds(Problem(chain, 4), relaxations=["checkmate"]) == peaks + COST_BOUNDS
    assert kinds(Problem(chain, 4, "free")) == [*peaks, COST_BOUNDS[0]]


def test_beyond_five_thousand_ops_the_stage_bound_comes_first():
    """On five thousand ops of a transformer it is near what drops find (17.5 %), in a second."""
    problem = Problem(gpt(layers=180, width=64, heads=4, sequence=64), "50%")
    first = next(bound for bound in bounds_in_turn(problem, 60, threads=1) if (bound.overhead or 0) > 0)
    assert first.kind == "the stage bound"
    assert first.overhead >= 16


def test_every_bound_says_for_which_schedules():
    for order in ("fixed", "free"):
        problem = Problem(unit_chain(5), 4, order)
        for bound in bounds(problem, threads=1):
            assert applies(bound, problem) == (bound.kind != "the cut bound")
            assert str(bound.scope) in str(bound)
            assert (bound.overhead is None) == (bound.measure is Measure.PEAK)
    free = Problem(unit_chain(5), 4, "free")
    assert not applies(stage_bound(free, threads=1), free)
    once = Problem(unit_chain(5), 6, max_computes=1)
    assert applies(cut_bound(once), once)


def test_without_recomputation_the_cut_bound_decides():
    """Ten bytes are needed; with one compute per op nine are too few, with two they are not."""
    chain = unit_chain(8)
    assert best_bound(Problem(chain, 9, max_computes=1)).infeasible
    assert best_bound(Problem(chain, 9, max_computes=2)).value == 18
    assert best_bound(Problem(chain, 10, max_computes=1)).value == 17


def test_what_may_not_be_recomputed_must_stay():
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


def test_constant_memory_counts_where_it_is_counted():
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


def test_deadlines():
    """What has run out of time is weaker, never wrong, and nothing runs on."""
    graph = layered(250, 0.43, 1789)
    problem = Problem(graph, "60%")
    began = time.monotonic()
    found = bounds(problem, 0.0, threads=1)
    assert time.monotonic() - began < 5
    assert found[1].value == found[0].value  # no cut was made
    assert not found[1].infeasible
    assert all(bound.value == graph.base_cost for bound in found[2:])
    assert best_bound(problem, 0.0, threads=1).value == graph.base_cost
    short = joint_bound(problem, deadline=0.3, threads=1)
    assert graph.base_cost <= short.value <= graph.base_cost + 4682  # what the fixed order costs at the least


def test_shell(capsys):
    assert main(["bounds", "fcn8", "--budget", "80%", "--threads", "1", "--time-limit", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert len({line.rindex(line.split()[-1]) for line in lines[1:]}) == 1  # aligned
    joint = next(line for line in lines if line.startswith("joint"))
    assert "10,289,323,652,736" in joint
    assert "overhead 0.1361 %" in joint
    assert "any order, any number of computes" in joint
    assert lines[-1].startswith("stage bound")
    assert "10,289,323,652,736" in lines[-1]
    assert "fixed order, any number of computes" in lines[-1]


def test_shell_json(capsys):
    assert main(["bounds", "fcn8", "--budget", "80%", "--order", "free", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["infeasible"] is False
    joint = facts["bounds"][-1]
    assert (joint["value"], joint["scope"]["order"]) == (10_289_323_652_736, "free")
    assert joint["scope"]["max_computes"] is None


@pytest.mark.parametrize("as_json", [False, True])
def test_shell_says_that_there_is_no_schedule(capsys, as_json):
    assert main(["bounds", "vgg16", "--budget", "80%", *(["--json"] if as_json else [])]) == 1
    out = capsys.readouterr().out
    assert json.loads(out)["infeasible"] if as_json else "no schedule keeps the budget" in out


def test_shell_refuses_in_one_line(capsys):
    for words in (["--budget", "nonsense"], ["--budget", "80%", "--relaxation", "unknown"], ["--order", "odd"]):
        assert main(["bounds", "fcn8", *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


# -- at size -----------------------------------------------------------------------------------------------------------


def test_every_bound_by_linear_programmes_keeps_to_the_memory_limit_of_the_call(monkeypatch):
    problem = Problem(layered(40, seed=1), "60%")
    asked = []
    monkeypatch.setattr(Highs, "relax", lambda *_, **__: asked.append("relax"))
    monkeypatch.setattr(Highs, "solve", lambda *_, **__: asked.append("solve"))
    found = bounds(problem, 60, relaxations=("checkmate",), memory_limit=10_000)
    assert not asked
    noted = [bound for bound in found if bound.note]
    assert len(noted) == 3  # the joint and the stage bound, and the relaxation asked for
    assert all(bound.value >= bound.base_cost and not bound.infeasible for bound in noted)
    assert best_bound(problem, 60, memory_limit=10_000).value >= problem.graph.base_cost


@pytest.mark.parametrize("looks", range(14))
def test_a_bound_by_cuts_that_is_broken_off_anywhere_is_not_wrong(looks):
    graph = layered(60, seed=1)
    problem = Problem(graph, "50%", order="free", max_computes=dict.fromkeys(graph.op_names[::2], 1))
    whole, clock = held_bound(problem), Countdown(looks)
    part = held_bound(problem, deadline=clock)
    assert part.value <= whole.value and part.infeasible <= whole.infeasible
    assert clock.looks.__length_hint__() < max(1, looks)
