"""Fixture of a folder with a graph, for the tests of commands."""

from pathlib import Path

import pytest

from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with ``chain.json``, a training chain of 9 ops: reference peak 6, structural bound 3."""
    monkeypatch.chdir(tmp_path)
    write_graph(unit_chain(4), "chain.json")
    return tmp_path
