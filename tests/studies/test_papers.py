"""Studies that repeat the papers, and the page that shows their results."""

import re
import sys
from pathlib import Path

import pytest

from remat.io.files import read_toml
from remat.studies.plan import Plan
from remat.studies.tuning import Tuner

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "studies").glob("*.toml"))
sys.path.insert(0, str(ROOT / "docs"))
try:
    import _papers
finally:
    sys.path.remove(str(ROOT / "docs"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_studies_of_the_papers_are_valid(path: Path) -> None:
    content = read_toml(path)
    content["instances"].pop("orders", None)  # a hundred graphs
    if "tune" in content:
        content["instances"]["library"] = content["instances"]["library"][:2]
        assert Tuner(content, str(path), path.parent).name == path.stem
        return
    plan = Plan.from_mapping(content, str(path), path.parent)
    assert plan.name == path.stem
    assert plan.seconds is not None


#: Tables that take seconds: orders of a sample, and models of graphs of up to 500 ops.
LONG = {"random-orders", "model-sizes"}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tables_of_the_page(every: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set() if every else LONG:
        assert name in _papers.TABLES
        monkeypatch.setitem(_papers.TABLES, name, list)
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert {found[1] for found in _papers.MARKER.finditer(page)} == set(_papers.TABLES)
    shown = _papers.with_tables(page)
    assert "<!--" not in shown
    assert "| [rl_g1](library/rl_g1.md) | 90 | 0.8 | 0.8 | 0.0 | **0.789** | 0.789 |" in shown
    assert {path.stem for path in _papers.RESULTS.glob("*.csv")} <= {path.stem for path in STUDIES}
    assert set(re.findall(r"studies/([\w-]+)\.toml", page)) <= {path.stem for path in STUDIES}
