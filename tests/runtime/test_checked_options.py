"""Options of methods, checked against the annotations of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from refusals import refused

from remat.runtime.checked_options import Options, Positive, Range


@dataclass(frozen=True)
class Example(Options):
    count: Positive | None = None
    share: Annotated[float, Range(0, below=1)] = 0.5
    heat: Annotated[float, Range(above=0, most=10)] = 1.0
    shares: tuple[Annotated[float, Range(0, 1)], ...] = ()
    kind: Literal["exact", "peak"] = "exact"
    fast: bool = True
    table: Mapping[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    "given",
    [{"count": 1}, {"share": 0}, {"heat": 10}, {"shares": [0, 0.5, 1]}, {"kind": "peak"}, {"table": {"a": 1}}],
)
def test_valid_values_are_accepted(given):
    assert all(getattr(Example(**given), name) == value for name, value in given.items())


@pytest.mark.parametrize(
    "given",
    [
        {"count": 0}, {"count": True}, {"count": 1.0}, {"share": 1}, {"share": float("nan")}, {"share": "half"},
        {"heat": 0}, {"heat": 11}, {"shares": (0.5, 2)}, {"shares": 0.5}, {"kind": "none"}, {"fast": 1}, {"table": 3},
        {"shares": (2,) * 100},
    ],
)  # fmt: skip
def test_errors_name_invalid_values(given):
    with refused("problem.option", culprit=next(iter(given))):
        Example(**given)
