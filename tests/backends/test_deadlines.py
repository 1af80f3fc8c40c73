"""Time limits on models too large to finish; building the model counts."""

import time

import pytest

from remat import Problem, solve
from remat.graphs.layered import layered
from remat.registry import make_backend
from remat.runtime.solve_options import SolveOptions, StopReason

SECONDS = 5


@pytest.fixture(scope="module")
def large():
    """Checkmate's model of it has 312,056 variables and 620,718 rows."""
    graph = layered(300, 0.43, 1789)
    graph.reference_peak, graph.arrays  # noqa: B018 (computed once, before any deadline starts)
    return graph


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore:.*rows are more than Pyomo:UserWarning")
@pytest.mark.parametrize("isolate", [False, True], ids=["", "isolated"])
@pytest.mark.parametrize(
    "backend",
    ["highs", "cp-sat", "pyomo:cbc", "pyomo:highs", "minizinc:gecode", "minizinc:cp-sat", "minizinc:highs"],
)
def test_solve_ends_within_a_second_of_its_limit(large, backend, isolate):
    state = make_backend(backend).ready()
    if not state.ready and backend == "minizinc:gecode":
        pytest.skip(f"{backend}: {state.reason}")
    began = time.monotonic()
    options = SolveOptions(threads=1, isolate=isolate)
    result = solve(Problem(large, "80%"), "checkmate", backend, stop=SECONDS, options=options)
    assert time.monotonic() - began < SECONDS + 1
    assert result.stop is StopReason.DEADLINE
    assert result.bound >= large.base_cost


def test_building_a_model_stops_at_the_deadline():
    """Building the model of 1,000 ops takes more than a second."""
    graph = layered(1000, 0.31, 2085)
    graph.reference_peak, graph.arrays  # noqa: B018
    began = time.monotonic()
    result = solve(Problem(graph, "80%"), "checkmate", "highs", stop=1, options=SolveOptions(threads=1))
    assert time.monotonic() - began < 3
    assert result.stop is StopReason.DEADLINE
    assert "the time was over before the model was built" in result.message
