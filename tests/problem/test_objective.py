"""Objectives as objects, named by few modules."""

import ast
import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import remat
from remat.problem import Objective

PACKAGE = Path(remat.__file__).parent
#: Modules that name an objective, with the reason.
NAMED = {
    "problem/objective.py": "defines them",
    "formulations/base.py": "states the cost by default",
    "formulations/ordering/base.py": "states these",
    "formulations/retention_intervals/formulation.py": "states these",
    "problem/problem.py": "asks for the time with a machine, and for the cost without",
    "formulations/timed_intervals/formulation.py": "states the time and the energy",
    "formulations/timed_stages/formulation.py": "bounds the time",
    "formulations/timed_h_ilp/formulation.py": "bounds the time",
    "config/description.py": "describes the machine of problems for the time",
    "cli/options.py": "describes the same",
    "solving/method.py": "finds the least cost by default; order searches find the least peak",
    "solving/min_peak.py": "asks for the least peak",
    "solving/order.py": "asks for the least peak",
    "cli/order.py": "asks for the least peak",
    "experiments/arenas.py": "asks for the least peak",
    "experiments/frontier.py": "searches for the least peak, the first point of a curve",
    "experiments/library/instances.py": "has instances of both",
    "experiments/library/runs.py": "has a method of this name",
    "solving/min_peak_search.py": "finds the least peak by problems of least cost with ever smaller budgets",
    "hierarchy/choosing.py": "the same",
    "solving/least_known_budget.py": "the same, and prices budgets",
    "solving/auto.py": "descends to ever smaller peaks if nothing fits",
    "studies/tuning.py": "tunes for the least cost",
    "testing/problems.py": "has families of problems of both",
    "testing/order_checks.py": "checks searches for the least peak",
}


def test_objectives_are_singletons_and_equal_their_names() -> None:
    peak = Objective.LEAST_PEAK
    assert peak == "least-peak" == f"{peak}" and hash(peak) == hash("least-peak")
    for same in (Objective("least-peak"), Objective(peak), pickle.loads(pickle.dumps(peak)), copy.deepcopy(peak)):
        assert same is peak
    assert list(Objective) == [Objective.LEAST_COST, peak, Objective.LEAST_TIME, Objective.LEAST_ENERGY]
    for wrong in ("least", "", None, ["least-peak"]):
        with pytest.raises(ValueError, match="not one of least-cost, least-peak"):
            Objective(wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_third_objective_takes_one_class(tmp_path: Path) -> None:
    """Solving, progress, comparison, frontier, plots, configuration and shell follow its definition."""
    program = Path(__file__).with_name("third_objective.py")
    ran = subprocess.run([sys.executable, program, tmp_path], check=False, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_only_listed_modules_name_an_objective() -> None:
    """Other branches and searches hold for any objective."""
    words = {str(each) for each in Objective}
    names = {word.upper().replace("-", "_") for word in words}

    def is_named(node: ast.AST) -> bool:
        return getattr(node, "attr", "") in names or (isinstance(node, ast.Constant) and node.value in words)

    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path, text in texts.items()
        if any(word in text for word in words | names) and any(map(is_named, ast.walk(ast.parse(text))))
    }
    assert found == set(NAMED)
