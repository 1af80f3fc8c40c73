"""Installed versions, and "not installed" for missing packages."""

from importlib import metadata

import pytest
from packaging.requirements import Requirement

import remat
from remat.backends.base import Availability, AvailabilityState
from remat.backends.highs import Highs
from remat.solving.versions import NOT_INSTALLED, installed_versions, show_versions


def names(requirements):
    return {Requirement(each).name for each in requirements}


def test_all_packages_are_listed():
    found = installed_versions()
    assert found["system"]["remat"] == remat.__version__
    installed = metadata.requires("remat")  # as of the last installation
    always = {Requirement(each).name for each in installed if "extra" not in each.partition(";")[2]}
    assert set(found["dependencies"]) == always >= {"numpy", "ortools", "highspy"}
    assert set(found["optional"]) == names(installed) - always >= {"pyomo"}
    assert found["dependencies"]["scipy"] == metadata.version("scipy")
    assert {"cp-sat", "highs", "minizinc", "pyomo"} <= set(found["solvers"])


def test_missing_packages_are_marked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def version(name):
        if name == "pyomo":
            raise metadata.PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr(metadata, "version", version)
    gone = Availability(AvailabilityState.NOT_INSTALLED, "no highspy here")
    monkeypatch.setattr(Highs, "availability", classmethod(lambda cls: gone))
    assert installed_versions()["optional"]["pyomo"] == NOT_INSTALLED
    remat.show_versions()
    shown = capsys.readouterr().out
    assert "scipy" in shown
    assert "not installed: no highspy here" in shown
    assert remat.show_versions is show_versions


def test_versions_without_installed_metadata(monkeypatch: pytest.MonkeyPatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    found = installed_versions()
    assert found["dependencies"] == found["optional"] == {}
    assert found["system"]["remat"]
