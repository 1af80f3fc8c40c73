"""Plug-ins by entry points."""

import importlib
import importlib.metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from refusals import refused

from remat import registry
from remat.backends.highs import Highs


class Good:
    """Has what a class of any group must have."""

    options_type = availability = variants = solve = build = encode = decode = run = None


@pytest.fixture
def plugins(monkeypatch):
    """Three plug-ins of somebody else: a good one, one that cannot be imported, one that is no class."""
    real = importlib.metadata.entry_points

    def entry_points(group):
        others = {
            "good": "test_registry:Good",
            "bare": "collections:OrderedDict",
            "broken": "no_such_package.module:Solver",
            "function": "math:sqrt",
            "highs": "aaa_another:Highs",
        }
        return [EntryPoint(name, value, group) for name, value in others.items()] + list(real(group=group))

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_the_built_in_ones_come_through_the_same_door():
    assert {"highs", "cp-sat"} <= set(registry.backends())
    assert {"checkmate", "retention-intervals"} <= set(registry.formulations())
    assert registry.load("backends", "highs") is Highs
    assert registry.backends()["highs"] is Highs


@pytest.mark.usefixtures("plugins")
def test_a_broken_plug_in_breaks_only_itself():
    found = registry.backends()
    assert {"good", "broken", "function", "highs"} <= set(found)
    assert "broken" in found
    assert found["good"].__name__ == "Good"
    with refused("backend.incomplete-plug-in", culprit="bare"):
        registry.load("backends", "bare")
    assert "good" in found.usable()
    assert not {"bare", "broken", "function"} & set(found.usable())
    with refused("backend.plug-in-fails", culprit="broken"):
        registry.load("backends", "broken")
    with refused("remat.plug-in-fails", culprit="broken"):
        registry.load("heuristics", "broken")
    with refused("backend.wrong-kind", culprit="function"):
        registry.load("backends", "function")


@pytest.mark.usefixtures("plugins")
def test_a_plug_in_does_not_replace_a_built_in_one():
    assert registry.load("backends", "highs") is Highs


@pytest.mark.usefixtures("plugins")
def test_unknown_names_are_answered_with_the_nearest_first():
    with refused("backend.unknown-name", culprit="godo"):
        registry.load("backends", "godo")
    with refused("remat.unknown-name", culprit="checkmat"):
        registry.load("formulations", "checkmat")


def test_unknown_groups():
    with refused("remat.unknown-group", culprit="solvers"):
        registry.load("solvers", "highs")


def test_entry_points_are_read_once_until_a_package_comes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A solve asks for dozens of names, and each reading takes 15 ms where many packages are installed."""
    read: list[str] = []

    def entry_points(group: str) -> object:
        read.append(group)
        return importlib.metadata.entry_points(group=group)

    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(5):
        assert "greedy" in registry.heuristics()
    assert read == ["remat.heuristics"]
    about = tmp_path / "late-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[remat.heuristics]\nlate = remat.heuristics.greedy:Greedy\n")
    importlib.invalidate_caches()
    assert "late" in registry.heuristics()
