"""Published and exact values on real graphs, through solve()."""

import pytest

from remat import Problem, solve
from remat.graphs import read_graph
from remat.graphs.zoo import fcn8, resnet50, vgg16
from remat.runtime.solve_options import SolveOptions, Status

#: Exact optima of FCN8 at the published settings, static cost (Checkmate's CM1), by share of the reference peak.
FCN8 = {"90%": 10_278_354_943_616, "80%": 10_289_323_652_736, "65%": 10_441_523_854_976}


@pytest.mark.parametrize(
    ("method", "backend", "budget"),
    [
        ("retention-intervals", "cp-sat", "90%"),
        *[pytest.param("retention-intervals", "cp-sat", budget, marks=pytest.mark.slow) for budget in ("80%", "65%")],
        *[pytest.param("checkmate", "highs", budget, marks=pytest.mark.slow) for budget in FCN8],
    ],
)
def test_fcn8(method, backend, budget):
    """Two copies of retention intervals also reach the optimum of class D."""
    result = solve(Problem(fcn8(), budget), method, backend, stop=500, options=SolveOptions(threads=2))
    assert result.status is Status.OPTIMAL
    assert result.objective == result.bound == FCN8[budget]


@pytest.mark.parametrize(
    ("graph", "budget", "optimum"),
    [(vgg16, "90%", 11_903_359_254_528), pytest.param(fcn8, "80%", FCN8["80%"], marks=pytest.mark.slow)],
)
def test_highs_proves_retention_intervals_without_a_start(graph, budget, optimum):
    """With specialised linear rows, 1 s of CPU each; bridges make 90,687 and 387,314 variables."""
    call = SolveOptions(threads=1, start="none")
    result = solve(Problem(graph(), budget), "retention-intervals", "highs", stop=60, options=call)
    assert (result.status, result.objective, result.bound) == (Status.OPTIMAL, optimum, optimum)


@pytest.mark.slow
def test_resnet50_at_80_percent():
    """The optimum is 0.0531 %."""
    result = solve(Problem(resnet50(), "80%"), stop=60, options=SolveOptions(threads=2))
    assert result.certificate.accepted
    assert 0.0531 <= result.certificate.overhead <= 0.4


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "budget", "overhead"), [("rl_g1", "90%", 0.789), ("rl_g1", "80%", 2.296), ("rl_g2", "90%", 0.904)]
)
def test_random_layered_graphs_of_moccasin(shared, name, budget, overhead):
    """The paper prints 0.8, 2.3 and 0.9 % (Table 2, C = 2, input order); here proved optimal."""
    graph = read_graph(shared / "data" / "graphs" / f"{name}.json")
    result = solve(Problem(graph, budget, max_computes=2), stop=500, options=SolveOptions(threads=2))
    assert result.status is Status.OPTIMAL
    assert round(result.certificate.overhead, 3) == overhead
