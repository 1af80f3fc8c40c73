"""Availability: missing packages and unsupported versions."""

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
    ("version", "supported"),
    [
        *((version, True) for version in ("9.15", "9.15.6755", "9.15.0.post1", "9.15+local", "9.15.1rc1")),
        # Release candidates of 9.15 precede it; those of 9.16 are not below 9.16 for pip.
        *((version, False) for version in ("9.15rc1", "9.16.dev3", "9.16rc1", "9.16", "9.2", "10.0", "unknown")),
    ],
)
def test_supported_versions(monkeypatch, version, supported):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    state = wheel_availability("ortools", ">=9.15,<9.16")
    assert state.ready is supported
    if supported:
        assert state.reason == f"ortools {version}"
    else:
        assert state.state is AvailabilityState.WRONG_VERSION
        assert state.reason == (
            f"ortools {version} is installed, but only >=9.15,<9.16 is known to be right: "
            "pip install 'ortools>=9.15,<9.16'"
        )


def test_package_without_version(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    state = wheel_availability("highspy", ">=1")
    assert state.state is AvailabilityState.WRONG_VERSION
    assert "its version is unknown: pip install 'highspy>=1'" in state.reason


def test_unsupported_version_is_refused(monkeypatch):
    """HiGHS 1.14 gives wrong optima; 1.15 cannot share a process with ortools."""
    assert Highs.availability().ready
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.14.0")
    assert "1.14.0" in Highs.availability().reason
    with refused("backend.unavailable", culprit="highs"):
        Highs().solve(Model("m"), SolveOptions())


def test_missing_packages(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    packages = {CpSat: "ortools>=9.15", Highs: "highspy>=1.12", Pyomo: "remat[pyomo]", MiniZinc: "remat[minizinc]"}
    for backend, words in packages.items():
        state = backend.availability()
        assert state.state is AvailabilityState.NOT_INSTALLED
        assert f"pip install '{words}" in state.reason
