"""Schedules on disk, and calls of many sizes planned by buckets."""

import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager import assert_equal, record  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402

from remat.problem import Problem  # noqa: E402
from remat.torch import capture, rematerialize  # noqa: E402
from remat.torch.captured import Captured  # noqa: E402
from remat.torch.rematerialized import planner, planning, stored  # noqa: E402
from remat.torch.rematerialized.buckets import Buckets  # noqa: E402


def parts(count: int = 3) -> list[nn.Module]:
    return [part for _ in range(count) for part in (nn.Linear(16, 16), nn.GELU())]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(stored.FOLDER, str(tmp_path / "schedules"))
    return tmp_path / "schedules"


def test_stored_schedules_are_read_and_certified(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captures = cache(lambda rows: capture(module, (torch.randn(rows, 16),)))
    monkeypatch.setattr(planner, "capture", lambda _, args, *rest, **options: captures(len(args[0])))
    module, x = nn.Sequential(*parts()), torch.randn(512, 16)
    first = rematerialize(module, x, "80%", method="eviction")
    (path,) = folder.iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(planning, "solve", lambda *_args, **_more: pytest.fail("solved again"))
        again = rematerialize(module, x, "80%", method="eviction")
        assert list(again.schedule.computes()) == list(first.schedule.computes())
        assert again.report.certificate.accepted and again.report.result is None
    rematerialize(module, x, "85%", method="eviction")
    rematerialize(module, torch.randn(256, 16), "80%", method="eviction")
    assert len(list(folder.iterdir())) == 3
    path.write_text('{"format": "remat-sched', encoding="utf-8")
    with caplog.at_level(logging.WARNING, "remat.torch"):
        assert rematerialize(module, x, "80%", method="eviction").report.result is not None
    assert [record.getMessage().count("\n") for record in caplog.records if path.name in record.getMessage()] == [0]
    assert stored.find(path, first._problem) is not None
    monkeypatch.setattr(stored, "MOST", path.stat().st_size)
    rematerialize(module, x, "75%", method="eviction")
    assert len(list(folder.iterdir())) <= 1
    monkeypatch.setenv(stored.FOLDER, "off")
    assert stored.folder() is None


def step_of(model: nn.Module, x: Any) -> Any:
    model.zero_grad()
    found = model(x)
    found.square().sum().backward()
    return record(model, found)


def test_variable_lengths_are_solved_once_for_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients of every length are those of eager PyTorch."""
    module = nn.Sequential(*parts())
    largest = capture(module, (torch.randn(2, 128, 16),)).graph.reference_peak
    budget = largest * 8 // 10
    solved: list[int] = []
    real = planning._solved

    def counted(captured: Captured, problem: Problem, *rest: Any) -> Any:
        if planning.needs_search(problem):
            solved.append(problem.reference_peak)
        return real(captured, problem, *rest)

    monkeypatch.setattr(planning, "_solved", counted)
    model = rematerialize(module, torch.randn(2, 64, 16), budget, method="eviction", shapes="bucket")
    for length in (64, 120, 125, 120):
        x = torch.randn(2, length, 16)
        assert_equal(step_of(model, x), step_of(module, x))
    assert len(model.reports) == 3
    assert all(report.predicted_peak <= budget for report in model.reports)
    assert solved == [largest]
    assert len(model._planner._schedules) == 2  # those found; reused ones are copies


def test_sizes_of_buckets() -> None:
    assert [Buckets().round(size) for size in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
    assert [Buckets.of([96, 48]).round(size) for size in (1, 48, 49, 97)] == [48, 48, 96, 97]
    for wrong in ("buckets", [], [0], [True]):
        with refused("problem.step-setting", culprit=str(wrong)):
            Buckets.of(wrong)
