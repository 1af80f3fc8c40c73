"""H-ILP: optima without composites, needs and memory of options, scope."""

import pytest
from claims import proved
from helpers import KINDS, answer
from refusals import refused

from remat import Problem, solve
from remat.backends.cp_sat import CpSat
from remat.formulations.checkmate import Checkmate
from remat.formulations.composites import Composite, Option
from remat.formulations.h_ilp import HIlp, HIlpOptions
from remat.formulations.stages import Stages, StagesOptions
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.problem.scope import Restriction
from remat.runtime.solve_options import Status
from remat.testing import optimum, random_budget, random_graph

# -- without composites ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "seed"), [("plain", 101), ("full", 102)])
def test_optimum_equals_checkmate_on_larger_graphs(kind, seed):
    graph = random_graph(seed, 9, **KINDS[kind])
    problem = Problem(graph, random_budget(graph, seed))
    assert proved(HIlp(problem)) == answer(Checkmate(problem)).objective


@pytest.mark.parametrize("seed", range(3))
def test_optimum_without_recomputing_ahead_equals_stages(seed):
    graph = random_graph(seed, 7, plain=True)
    problem = Problem(graph, random_budget(graph, seed))
    least = proved(HIlp(problem, HIlpOptions(ahead=False)))
    raw = answer(Stages(problem, StagesOptions(ahead=False)))
    assert least == (None if raw.status is Status.INFEASIBLE else pytest.approx(raw.objective))


def test_model_without_recomputing_ahead_is_smaller():
    """On groups of a U-Net at 50 %, 582 computes remain instead of 861."""
    wide, narrow = (HIlp(Problem(unit_chain(9), 8), HIlpOptions(ahead=ahead)) for ahead in (True, False))
    for formulation in (wide, narrow):
        formulation.leave_out_above(23)
    few, many = narrow.phases.may, wide.phases.may
    assert (few <= many).all() and few.sum() < 0.9 * many.sum()
    assert proved(narrow) == proved(wide)
    assert [one.scope().notes for one in (wide, narrow)] == [(), (Restriction.NO_AHEAD,)]


@pytest.mark.slow
def test_refilled_buffers_where_checkmate_is_infeasible():
    """Checkmate holds a buffer from its first contribution to its last read."""
    found = 0
    for seed in range(300):
        graph = random_graph(seed, 5, buffers=True)
        problem = Problem(graph, random_budget(graph, seed))
        if len(graph.ops) > 5 or optimum(problem, Checkmate(problem).scope()) is not None:
            continue
        best = optimum(problem, HIlp(problem).scope())
        if best is not None:
            assert proved(HIlp(problem)) == best.cost
            found += 1
        if found == 2:
            return
    pytest.fail("no such graph")


# -- composites -------------------------------------------------------------------------------------------------------


def two_outputs():
    """Graph in which the backward op reads x again."""
    b = GraphBuilder("two outputs")
    b.op("f", outputs={"x": 4}, cost=1)
    b.op("g", inputs=["x"], outputs={"y": 2}, cost=1)
    b.op("use", inputs=["x", "y"], outputs={"z": 1}, cost=1)
    b.op("large", inputs=["z"], outputs={"d": 4}, cost=1, workspace=2)
    b.op("back", inputs=["x", "d"], outputs={"e": 1}, cost=1)
    b.output("e")
    return b.build()


def test_inputs_of_one_option_do_not_bind_others():
    """The problem would be infeasible if every option of the backward part needed x."""
    problem = Problem(two_outputs(), 9)
    keep, again = Option([0, 1], [4]), Option([0, 1], [0, 4])
    layer = Composite("layer", [0, 1], [4], [keep, again])
    formulation = HIlp(problem, HIlpOptions((layer,)))
    assert proved(formulation) == 6
    assert proved(HIlp(problem, HIlpOptions((Composite("layer", [0, 1], [4], [again]),)))) == 6
    assert proved(HIlp(problem, HIlpOptions((Composite("layer", [0, 1], [4], [keep]),)))) is None


def test_memory_inside_a_fast_forward_counts():
    """The second fast-forward holds three wide tensors at once."""
    b = GraphBuilder("wide inside")
    b.op("a", outputs={"a": 1}, cost=1)
    for name in ("w1", "w2", "w3"):
        b.op(name, inputs=["a"], outputs={name: 8}, cost=1)
    b.op("n2", inputs=["w2"], outputs={"n2": 1}, cost=1)
    b.op("n3", inputs=["w3"], outputs={"n3": 1}, cost=1)
    b.op("n", inputs=["n2", "n3", "w1"], outputs={"n": 1}, cost=1)
    b.op("loss", inputs=["n"], outputs={"l": 1}, cost=1, workspace=15, recomputable=False)
    b.op("back", inputs=["w1", "l"], outputs={"g": 1}, cost=1)
    problem = Problem(b.build(), 20, "free")
    save = Option([1, 2, 2, 4, 3, 5, 6], [8])
    for ahead, cost in (([1, 2, 4, 3, 5, 6], 16), ([1, 2, 3, 4, 5, 6], 17)):
        layer = Composite("layer", range(1, 7), [8], [save, Option(ahead)])
        assert proved(HIlp(problem, HIlpOptions((layer,)))) == cost


def test_scope_and_order_of_composites():
    graph = unit_chain(6)
    middle = Composite("middle", [1, 2, 3, 4], [8, 9, 10, 11], [
        Option([1, 2, 3, 4], [8, 9, 10, 11]), Option([1, 2, 3, 4], [1, 2, 3, 8, 9, 10, 11]), Option([1, 2, 3, 4]),
    ])  # fmt: skip
    problem = Problem(graph)
    free = HIlp(problem, HIlpOptions((middle,)))
    assert Restriction.COMPOSITES in free.scope().notes
    assert proved(HIlp(Problem(graph, 100), HIlpOptions((middle,)))) == 13
    with refused("problem.order-rule", culprit="fixed"):
        HIlp(Problem(graph, order="free"))
    certified = solve(Problem(graph, 7), "h-ilp", CpSat(), method_options=HIlpOptions((middle,)))
    assert certified.certificate.accepted
