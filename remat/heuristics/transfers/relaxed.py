"""Choices that follow from a solution of the relaxation behind the transfer bound."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.bounds.implied_memory import needed_from, regained, uses, variable_values
from remat.bounds.stage_relaxation import StageRelaxation
from remat.runtime.arrays import Float, Int


class Rounded(NamedTuple):
    """Recomputations of ops and fetches of tensors, with their stages of the search."""

    ops: Int
    op_stages: Int
    tensors: Int
    tensor_stages: Int


def rounded(relaxation: StageRelaxation, values: Float, least: float) -> Rounded:
    """Return the recomputations and fetches whose parts in a solution are at least `least`.

    The relaxation says only between which events they are. Each is placed at the first use there: that of a tensor
    itself, or of something that is recomputed from it. Of a tensor that is in part recomputed and in part fetched, the
    larger part counts, with the sum of both.

    Parameters
    ----------
    values : float64 array
        Solution of the built model, whole or fractional.
    least : float
        From 0 to 1; high values recompute and fetch less.
    """
    arrays = relaxation.problem.graph.arrays
    n = len(arrays.cost)
    found: list[tuple[Int, Int, Int, Int]] = []
    for stage in relaxation.stages:
        low, high = stage.since + 1, min(stage.until, n - 1)
        used, _ = uses(relaxation, low, high)
        again, read, _ = regained(relaxation, stage, values)
        needed = needed_from(relaxation, stage, values, used)
        both = again + read >= least
        fetched = np.flatnonzero(both & (read >= again) & (read > 0) & (needed < n))
        asked = np.full(n, n)
        writes = both & (again > read)
        edges = writes[arrays.producers.rows]
        np.minimum.at(asked, arrays.producers.indices[edges], needed[arrays.producers.rows[edges]])
        ops = np.flatnonzero((asked < n) & (variable_values(stage.again, values) > 0))
        found.append((ops, asked[ops], fetched, needed[fetched]))
    return Rounded(*(np.concatenate(part).astype(np.int64) for part in zip(*found, strict=True)))
