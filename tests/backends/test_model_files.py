"""Model files of linear programmes."""

import highspy
import numpy as np
import pytest
from helpers import options
from refusals import refused
from test_answers import lp

from remat.backends.highs import Highs
from remat.modeling import Linear, Model
from remat.runtime.solve_options import Status
from remat.testing.backend_checks import knapsack
from remat.testing.raw_models import tiny_models


def awkward():
    """Ranges, equations, free, fixed and negative columns, and names that no file format accepts."""
    model = Model("a model: [with] +odd* \\names\n")
    x = model.integers("x\ny z", 3, [-4, 2, 0], [4, 2, 7])
    c = model.continuous("<=", 2, [-np.inf, -1.5], np.inf)
    model.add(
        Linear.rows("end", [0, 0, 1, 1, 2, 2], [*x[:2], x[0], c[0], x[2], c[1]], [1, 2, -1, 1, 3, -2],
                    lower=[1, 0, -np.inf], upper=[5, 0, 10.5]),
        Linear.rows("st", [0, 0], [c[0], c[1]], [1, 1], lower=[-2.25]),
    )  # fmt: skip
    model.minimize([*x, *c], [1, 0, -2, 3, 0.5], 12.5)
    return model


def tiny(kind):
    """Return a function that makes a model with bridged records."""
    return lambda: next(tiny_models(kind, 1)).model


def solved_file(path):
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    assert solver.readModel(str(path)) == highspy.HighsStatus.kOk
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return solver.getInfo().objective_function_value


@pytest.mark.parametrize("suffix", [".lp", ".mps"])
@pytest.mark.parametrize(
    "make", [awkward, lp, lambda: knapsack(12), *(tiny(kind) for kind in ("enforced", "cumulative"))]
)
def test_exported_files_have_the_same_optimum(make, suffix, tmp_path):
    model = make()
    expected = Highs().solve(model, options(60))
    path = tmp_path / f"model{suffix}"
    Highs().write(model, path, {})
    assert expected.status is Status.OPTIMAL
    assert solved_file(path) == pytest.approx(expected.objective, abs=1e-6)
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_files_are_refused(tmp_path):
    impossible = lp()
    impossible.add(Linear.rows("none", [], [], [], lower=[1]))
    with refused("model.impossible-row", culprit="lp"):
        Highs().write(impossible, tmp_path / "model.lp", {})
    with refused("format.not-written"):
        Highs().write(lp(), tmp_path / "missing" / "model.lp", {})
