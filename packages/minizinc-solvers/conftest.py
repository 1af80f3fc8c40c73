"""Skip the tests unless the distribution is installed: MiniZinc starts its programs."""

import os
from importlib.metadata import PackageNotFoundError, version

import pytest


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    try:
        version("minizinc-solvers")
    except PackageNotFoundError:
        assert not os.environ.get("REMAT_CI"), "minizinc-solvers is not installed"
        pytest.skip("minizinc-solvers is not installed (make setup, or pip install -e packages/minizinc-solvers)")
