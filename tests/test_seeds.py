"""Seeds outside the range of solvers are refused before reading and building."""

import pytest
from refusals import refused

from remat.cli import main
from remat.heuristics.annealing import Annealing
from remat.runtime.solve_options import MOST, SolveOptions


@pytest.mark.parametrize(
    "seed",
    [2**31, 2**63, 10**5000, -1, True, 1.0, "1"],
    ids=lambda seed: repr(seed)[:9] if not isinstance(seed, int) or seed < 2**64 else "huge",
)
def test_invalid_seeds_are_refused(seed: object) -> None:
    kind = "problem.large-seed" if type(seed) is int and seed > 0 else "problem.number"
    with refused(kind, culprit="seed") as caught:
        SolveOptions(seed=seed)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_largest_seed() -> None:
    assert SolveOptions(seed=MOST).seed == 2**31 - 1
    assert Annealing().prepared()  # annealing runs to its deadline
    for method, limit in (("greedy", "3"), ("annealing", "0.5"), ("auto", "3")):
        assert main(["solve", "vgg16", "-b", "90%", "-t", limit, "--seed", str(MOST), "--method", method, "-q"]) == 0
