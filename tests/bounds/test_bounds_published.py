"""Bounds on training graphs and layered graphs: exact optima, and values of independent implementations."""

import pytest
from helpers import few

from remat.bounds import best_bound, bounds, cut_bound, joint_bound, stage_bound, structural_bound
from remat.graphs import layered, read_graph
from remat.graphs.families import unit_chain
from remat.graphs.zoo import TRAINING, ZOO
from remat.problem import Problem

#: Exact optima of any order with static costs, by graph and budget; schedules of these costs are known.
OPTIMA = {
    ("vgg16", "90%"): 11_903_359_254_528,
    ("vgg19", "90%"): 15_099_620_229_120,
    ("vgg19", "80%"): 15_099_620_229_120,
    ("fcn8", "90%"): 10_278_354_943_616,
    ("fcn8", "80%"): 10_289_323_652_736,
    ("fcn8", "65%"): 10_441_523_854_976,
    ("unet", "90%"): 9_063_759_863_808,
    ("segnet", "90%"): 2_700_269_445_120,
    ("mobilenet", "90%"): 912_314_560_512,
    ("mobilenet", "80%"): 913_175_179_264,
    ("mobilenet", "70%"): 914_048_643_072,
    ("resnet50", "90%"): 3_011_548_413_952,
    ("resnet50", "80%"): 3_012_498_948_096,
}
#: Lower bounds for any order where the optimum is open.
OPEN = {
    ("unet", "80%"): 9_063_954_112_512,
    ("segnet", "80%"): 2_700_593_192_960,
    ("segnet", "70%"): 2_701_078_814_720,
    ("fcn8", "70%"): 10_366_937_158_272,
    ("resnet50", "70%"): 3_013_706_383_360,
}


@pytest.mark.parametrize(("name", "budget"), few({**OPTIMA, **OPEN}, 4))
def test_bounds_of_training_graphs(name, budget):
    """Bounds for fixed and free orders agree on these graphs."""
    value = {**OPTIMA, **OPEN}[name, budget]
    problem = Problem(ZOO[name](), budget)
    assert joint_bound(problem, threads=1).value == value
    assert stage_bound(problem, enough=value, threads=1).value == value


@pytest.mark.parametrize("name", TRAINING)
def test_cut_bound_of_training_graphs_is_the_reference_peak(name):
    graph = ZOO[name]()
    assert cut_bound(Problem(graph)).value == graph.reference_peak


def test_structural_bound_of_vgg16():
    bound = structural_bound(Problem(ZOO["vgg16"](), "80%"))
    assert bound.value == 13_153_337_344
    assert bound.infeasible
    assert bound.cause == ZOO["vgg16"]().structural_bound.op
    assert best_bound(Problem(ZOO["vgg16"](), "80%")).infeasible
    assert len(bounds(Problem(ZOO["vgg16"](), "80%"))) == 2  # no bounds on the cost


def test_stage_bound_of_the_unit_chain():
    for budget, optimum in zip(range(3, 11), [45, 26, 22, 21, 20, 19, 18, 17], strict=True):
        assert stage_bound(Problem(unit_chain(8), budget), threads=1).value == optimum


#: Random layered graphs (n, width, seed) with their cut bound, and extra costs at 90, 80, 70 and 60 % of the peak. The
#: first are by an independent interval relaxation, which the stage bound reaches soon, the second by the joint bound of
#: three ops. None: infeasible.
LAYERED = [
    ((30, 0.3, 1), 15_890, [1186, 2727, 4580, None], [33, 33, 194, None]),
    ((60, 0.35, 2), 23_990, [340, 1128, 2834, 4572], [0, 315, 696, 1233]),
    ((100, 0.27, 446), 28_850, [297, 529, 1498, 3306], [0, 0, 0, 127]),
    ((250, 0.43, 1789), 122_050, [392, 1105, 2062, 3915], [0, 28, 575, 1319]),
    ((500, 0.36, 1263), 234_430, [1170, 3701, 7448, 13_704], [0, 10, 1099, 3597]),
    ((1000, 0.31, 2085), 554_719, [1140, 4575, 10_381, 19_742], [76, 1325, 4788, 9921]),
]
BUDGETS = ["90%", "80%", "70%", "60%"]


def extra(bound):
    assert bound.infeasible == (bound.value is None)
    return None if bound.infeasible else bound.value - bound.base_cost


@pytest.mark.parametrize(
    ("parameters", "cut", "fixed", "joint"),
    [pytest.param(*row, id=f"n{row[0][0]}", marks=[pytest.mark.slow] if row[0][0] > 30 else []) for row in LAYERED],
)
def test_bounds_of_layered_graphs(parameters, cut, fixed, joint):
    graph = layered(*parameters)
    assert cut_bound(Problem(graph)).value == cut
    for budget, least, free in zip(BUDGETS, fixed, joint, strict=True):
        enough = None if least is None else graph.base_cost + least
        assert extra(stage_bound(Problem(graph, budget), enough=enough, deadline=60, threads=1)) == least
        found = extra(joint_bound(Problem(graph, budget, "free"), threads=1))
        assert (free is None and found is None) or free <= found  # the joint bound evaluates more than three ops


#: Published random layered graphs: cut bound, its share of the peak in %, and for free orders the overhead in % of the
#: joint bound of the three most promising ops at 90, 80 and 70 %.
MOCCASIN = {
    "rl_g1": (32_440, 70.0, [0, 0, 0.061]),
    "rl_g2": (105_170, 71.6, [0, 0, 0.109]),
    "rl_g3": (247_960, 87.2, [0, 0.079, 0.711]),
    "rl_g4": (550_170, 90.4, [0.0016, 0.206, 0.885]),
}


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("name", MOCCASIN)
def test_cut_and_joint_bounds_of_published_layered_graphs(shared, name):
    graph, (cut, share, joint) = read_graph(shared / "data" / "graphs" / f"{name}.json"), MOCCASIN[name]
    bound = cut_bound(Problem(graph)).value
    assert (bound, round(100 * bound / graph.reference_peak, 1)) == (cut, share)
    for budget, overhead in zip(BUDGETS, joint, strict=False):
        found = joint_bound(Problem(graph, budget, "free"), threads=1).overhead
        assert round(found, 4 if overhead < 0.01 else 3) >= overhead


#: Fixed order: overhead in % of the best schedules known, and the least that the stage bound proves within a minute.
STAGES = {
    ("rl_g1", "90%"): (0.789, 0.789),
    ("rl_g1", "80%"): (2.296, 2.296),
    ("rl_g2", "90%"): (0.904, 0.904),
    ("rl_g2", "80%"): (4.57, 2.9),
    ("rl_g3", "90%"): (0.74, 0.664),
    ("rl_g3", "80%"): (3.44, 2.22),
    ("rl_g4", "90%"): (0.74, 0.665),
    ("rl_g4", "80%"): (2.95, 2.25),
}


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(("name", "budget"), STAGES)
def test_stage_bound_of_published_layered_graphs(shared, name, budget):
    graph = read_graph(shared / "data" / "graphs" / f"{name}.json")
    known, least = STAGES[name, budget]
    found = stage_bound(Problem(graph, budget), deadline=60, threads=1).overhead
    assert least <= round(found, 3) <= known


def test_stage_bound_of_a_layered_graph():
    problem = Problem(layered(30, 0.3, 1), "90%")
    found = stage_bound(problem, enough=problem.graph.base_cost + 1187, deadline=60, threads=1)
    assert found.value - found.base_cost == 1187
