"""Bridges: each rewrites one kind of record into simpler ones."""

from collections.abc import Callable
from typing import Any

from remat.modeling.bridges.base import InapplicableError, PlainLinear, kind_of
from remat.modeling.bridges.context import LoweringContext
from remat.modeling.bridges.no_overlap import no_overlap_to_linear, rectangles_to_linear
from remat.modeling.bridges.plain_rows import clauses_to_linear, enforced_to_linear
from remat.modeling.bridges.resources import cumulative_to_linear, reservoir_to_linear
from remat.modeling.bridges.values import all_different_to_linear, domain_to_linear
from remat.modeling.records import (
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Linear,
    NoOverlap,
    NoOverlap2D,
    Record,
    Reservoir,
)

#: Rewrites a record into equivalent records over the variables of the lowered model, which may grow. The result has
#: neither the record's kind nor :class:`~remat.modeling.Domain`: values of the source's variables are known before the
#: first bridge runs. Raises InapplicableError.
Bridge = Callable[[Any, LoweringContext], list[Record]]

#: The bridge of each kind.
BRIDGES: dict[type[Record], Bridge] = {
    AllDifferent: all_different_to_linear,
    Clauses: clauses_to_linear,
    Cumulative: cumulative_to_linear,
    Domain: domain_to_linear,
    Linear: enforced_to_linear,
    NoOverlap: no_overlap_to_linear,
    NoOverlap2D: rectangles_to_linear,
    Reservoir: reservoir_to_linear,
}

__all__ = ["BRIDGES", "Bridge", "InapplicableError", "LoweringContext", "PlainLinear", "kind_of"]
