"""Whether a solver's package is there in a version that serves."""

import importlib.metadata
import importlib.util

import pytest
from refusals import refused

from remat.backends.base import AvailabilityState, wheel_availability
from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.backends.minizinc import MiniZinc
from remat.backends.pyomo import Pyomo
from remat.modeling import Model
from remat.runtime.solve_options import SolveOptions


@pytest.mark.parametrize(
    ("version", "serves"),
    [
        *((version, True) for version in ("9.15", "9.15.6755", "9.15.0.post1", "9.15+local", "9.15.1rc1")),
        # A candidate for 9.15 is older than it; those for 9.16 are none of the releases before it.
        *((version, False) for version in ("9.15rc1", "9.16.dev3", "9.16rc1", "9.16", "9.2", "10.0", "unknown")),
    ],
)
def test_versions(monkeypatch, version, serves):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    state = wheel_availability("ortools", ">=9.15,<9.16")
    assert state.ready is serves
    if serves:
        assert state.reason == f"ortools {version}"
    else:
        assert state.state is AvailabilityState.WRONG_VERSION
        assert state.reason == (
            f"ortools {version} is installed, but only >=9.15,<9.16 is known to be right: "
            "pip install 'ortools>=9.15,<9.16'"
        )


def test_what_is_no_package(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    state = wheel_availability("highspy", ">=1")
    assert state.state is AvailabilityState.WRONG_VERSION
    assert "its version is unknown: pip install 'highspy>=1'" in state.reason


def test_a_version_that_does_not_serve(monkeypatch):
    """HiGHS 1.14 gives wrong optima; 1.15 cannot share a process with ortools."""
    assert Highs.availability().ready
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.14.0")
    assert "1.14.0" in Highs.availability().reason
    with refused("backend.unavailable", culprit="highs"):
        Highs().solve(Model("m"), SolveOptions())


def test_what_is_not_there(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    packages = {CpSat: "ortools>=9.15", Highs: "highspy>=1.12", Pyomo: "remat[pyomo]", MiniZinc: "remat[minizinc]"}
    for backend, words in packages.items():
        state = backend.availability()
        assert state.state is AvailabilityState.NOT_INSTALLED
        assert f"pip install '{words}" in state.reason
