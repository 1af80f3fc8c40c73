"""Conformance of the plug-in, whose parts are found by their entry points."""

import pytest

from remat import GraphBuilder, Problem, registry, solve
from remat.testing import BACKEND_CHECKS, FORMULATION_CHECKS, PAIR_CHECKS, Effort

#: The plug-in's parts with built-in ones.
PAIRS = [
    ("live-sets", "cp-sat"),
    ("live-sets", "highs"),
    ("live-sets", "minizinc:gecode"),
    ("live-sets", "pyomo:cbc"),
    ("live-sets", "scipy-milp"),
    ("checkmate", "scipy-milp"),
    ("retention-intervals", "scipy-milp"),
]


@pytest.mark.parametrize("check", FORMULATION_CHECKS)
def test_formulation(check):
    """Check the formulation alone."""
    check(registry.load("formulations", "live-sets"))


@pytest.mark.parametrize("check", BACKEND_CHECKS)
def test_backend(check):
    """Check the backend alone."""
    check(registry.make_backend("scipy-milp"))


@pytest.mark.parametrize("check", PAIR_CHECKS)
@pytest.mark.parametrize(("formulation", "backend"), PAIRS)
def test_pair(formulation, backend, check):
    """Skip unavailable backends with the reason."""
    solver = registry.make_backend(backend)
    if not solver.ready().ready:
        pytest.skip(f"{backend}: {solver.ready().reason}")
    # solvers in child processes end late on a busy machine
    check(registry.load("formulations", formulation), solver, Effort(most_ops=4, cases=2, grace=5.0))


def test_by_name():
    """The optimum recomputes the first op."""
    b = GraphBuilder("chain")
    for op, before, size in (("a", [], 4), ("b", ["a"], 6), ("c", ["b"], 6), ("d", ["c"], 5), ("e", ["a", "d"], 5)):
        b.op(op, inputs=before, size=size, cost=1)
    result = solve(Problem(b.build(), 14), "live-sets", "scipy-milp", stop=30)
    assert (result.status, result.certificate.cost, result.backend) == ("optimal", 6, "scipy-milp")
    assert "no schedule exists" in solve(Problem(b.build(), 13), "live-sets", "scipy-milp", stop=30).message
