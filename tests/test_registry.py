"""Plug-ins by entry points."""

import importlib
import importlib.metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from refusals import refused

from remat import registry
from remat.backends.highs import Highs


class Good:
    """All attributes that a class of any group needs."""

    options_type = availability = variants = solve = build = encode = decode = run = None


@pytest.fixture
def plugins(monkeypatch):
    """Add plug-ins: a good one, some that cannot be loaded, one with the name of a built-in part."""
    real = importlib.metadata.entry_points

    def entry_points():
        others = {
            "good": "test_registry:Good",
            "bare": "collections:OrderedDict",
            "broken": "no_such_package.module:Solver",
            "function": "math:sqrt",
            "highs": "aaa_another:Highs",
        }
        groups = [f"remat.{group}" for group in registry.GROUPS]
        added = [EntryPoint(name, value, group) for name, value in others.items() for group in groups]
        installed = real()
        return EntryPoints([*added, *(entry for group in installed.groups for entry in installed.select(group=group))])

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_built_in_parts_are_plug_ins():
    assert {"highs", "cp-sat"} <= set(registry.backends())
    assert {"checkmate", "retention-intervals"} <= set(registry.formulations())
    assert registry.load("backends", "highs") is registry.backends()["highs"] is Highs


@pytest.mark.usefixtures("plugins")
def test_broken_plug_ins_do_not_affect_others():
    found = registry.backends()
    assert {"good", "broken", "function", "highs"} <= set(found)
    assert found["good"].__name__ == "Good"
    assert found["highs"] is Highs, "plug-ins cannot replace built-in parts"
    assert "good" in found.usable()
    assert not {"bare", "broken", "function"} & set(found.usable())


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("group", "name", "kind"),
    [
        ("backends", "godo", "backend.unknown-name"),  # the message suggests the closest name
        ("formulations", "checkmat", "remat.unknown-name"),
        ("solvers", "highs", "remat.unknown-group"),
        ("backends", "bare", "backend.incomplete-plug-in"),
        ("backends", "broken", "backend.plug-in-fails"),
        ("heuristics", "broken", "remat.plug-in-fails"),
        ("backends", "function", "backend.wrong-kind"),
    ],
)
def test_parts_that_cannot_be_loaded(group, name, kind):
    with refused(kind, culprit=group if group == "solvers" else name):
        registry.load(group, name)


def test_entry_points_are_cached_until_an_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of other packages are read only for a name that this package lacks."""
    read: list[object] = []

    def entry_points() -> object:
        read.append(importlib.metadata.entry_points())
        return read[-1]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(5):
        assert "greedy" in registry.heuristics()
        assert registry.backends()["highs"] is Highs
    assert read == []
    for _ in range(5):
        assert "late" not in registry.heuristics()
        assert "late" not in registry.backends()
    assert len(read) == 1
    about = tmp_path / "late-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[remat.heuristics]\nlate = remat.heuristics.greedy:Greedy\n")
    importlib.invalidate_caches()
    assert "late" in registry.heuristics()
