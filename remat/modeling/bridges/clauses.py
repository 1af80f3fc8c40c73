"""Clauses as rows."""

from __future__ import annotations

import numpy as np

from remat.modeling.bridges.context import Workshop
from remat.modeling.bridges.literals import literal_rows
from remat.modeling.records import ALWAYS, Clauses, Record


def clauses_to_linear(record: Clauses, workshop: Workshop) -> list[Record]:
    """State a row for each clause.

    Reformulation
    -------------
    ``l1 or l2 or ...`` becomes ``l1 + l2 + ... >= 1``, with ``1 - v`` for the literal ``~v``. Clauses with a literal
    that is fixed to true are left out, literals that are fixed to false too.

    Source
    ------
    :class:`Clauses`

    Target
    ------
    :class:`Linear`, without literals.
    """
    literals = workshop.fold(record.literals)
    clause = record.owner
    satisfied = np.bincount(clause[literals == ALWAYS], minlength=len(record)) > 0
    renumbered = np.cumsum(~satisfied) - 1
    keep = ~satisfied[clause]
    count = int((~satisfied).sum())
    return [literal_rows(record.name, renumbered[clause[keep]], literals[keep], 1, lower=np.ones(count))]
