"""Bridges: each rewrites one kind of record into simpler ones."""

from typing import Any

from remat.modeling.bridges.all_different import AllDifferentToLinear
from remat.modeling.bridges.base import Bridge, PlainLinear, kind_of
from remat.modeling.bridges.clauses import ClausesToLinear
from remat.modeling.bridges.context import Workshop
from remat.modeling.bridges.cumulative import CumulativeToLinear
from remat.modeling.bridges.domain import DomainToLinear
from remat.modeling.bridges.enforced import EnforcedToLinear
from remat.modeling.bridges.no_overlap import NoOverlap2DToLinear
from remat.modeling.bridges.reservoir import ReservoirToLinear
from remat.modeling.records import Record

#: The bridge of each kind.
BRIDGES: dict[type[Record], Bridge[Any]] = {
    bridge.source: bridge
    for bridge in (
        ClausesToLinear(),
        EnforcedToLinear(),
        DomainToLinear(),
        AllDifferentToLinear(),
        CumulativeToLinear(),
        ReservoirToLinear(),
        NoOverlap2DToLinear(),
    )
}

__all__ = [
    "BRIDGES",
    "AllDifferentToLinear",
    "Bridge",
    "ClausesToLinear",
    "CumulativeToLinear",
    "DomainToLinear",
    "EnforcedToLinear",
    "NoOverlap2DToLinear",
    "PlainLinear",
    "ReservoirToLinear",
    "Workshop",
    "kind_of",
]
