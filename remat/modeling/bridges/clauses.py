"""Clauses as rows."""

from __future__ import annotations

import numpy as np

from remat.modeling.bridges.context import LoweringContext
from remat.modeling.bridges.literals import literal_rows
from remat.modeling.records import ALWAYS, Clauses, Record
from remat.modeling.rows import expand, pieces

#: Literals rewritten at a time, which takes about 0.2 s.
PIECE = 1_000_000


def clauses_to_linear(record: Clauses, context: LoweringContext) -> list[Record]:
    """State a row for each clause.

    Reformulation
    -------------
    ``l1 or l2 or ...`` becomes ``l1 + l2 + ... >= 1``, with ``1 - v`` for the literal ``~v``. Clauses
    with a true literal are omitted, and so are false literals. Large records become several.

    Source
    ------
    :class:`Clauses`

    Target
    ------
    :class:`Linear`, without literals.
    """
    rows: list[Record] = []
    for part in context.deadline.each(pieces(np.diff(record.indptr), PIECE), 1):
        begin = record.indptr[part]
        ends = record.indptr[part.start + 1 : part.stop + 1]
        literals = context.fold(record.literals[begin[0] : ends[-1]])
        clause, _ = expand(ends - begin)
        satisfied = np.bincount(clause[literals == ALWAYS], minlength=len(begin)) > 0
        renumbered = np.cumsum(~satisfied) - 1
        keep = ~satisfied[clause]
        count = int((~satisfied).sum())
        rows.append(literal_rows(record.name, renumbered[clause[keep]], literals[keep], 1, lower=np.ones(count)))
    return rows
