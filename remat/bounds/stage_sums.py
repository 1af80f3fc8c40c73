"""Sums of variables of a stage relaxation that are whole numbers, to branch on."""

from __future__ import annotations

from typing import Any

import numpy as np

from remat.bounds.stage_relaxation import StageRelaxation
from remat.runtime.arrays import Float, Int, distinct

#: Smallest tensor of a level, in parts of the budget.
SMALL = 1 / 200


def stage_sums(relaxation: StageRelaxation, columns: int) -> Any:
    r"""Return whole-numbered sums of the 0/1 variables of a built relaxation, as a sparse array of their rows.

    * *Recomputations* of ops of the same cost, in all stages, then in each. The objective is a sum of the former, each
      times its cost.
    * *Levels* at each event: :math:`\sum_t \lfloor M_t / s \rfloor\, \mathrm{live}_t` for each size `s` of a tensor
      that is not small. They divide the knapsack of the event: larger tensors leave room for few others.
    * *Live tensors* of the same size, from ops of the same cost, at each event.

    Repeated blocks have ops and tensors that are alike, so that such sums hardly depend on the block.
    """
    from scipy import sparse

    sums = [*_recomputations(relaxation), *_levels(relaxation), *_alike(relaxation)]
    indptr = np.cumsum([0, *(len(index) for index, _ in sums)])
    index = np.concatenate([np.zeros(0, dtype=np.int64), *(index for index, _ in sums)])
    value = np.concatenate([np.zeros(0), *(value for _, value in sums)])
    return sparse.csr_array((value, index, indptr), shape=(len(sums), columns))


Sum = tuple[Int, Float]


def _recomputations(relaxation: StageRelaxation) -> list[Sum]:
    cost = relaxation.problem.graph.arrays.cost
    again = np.array([stage.again for stage in relaxation.stages])
    every = [again[:, cost == each] for each in distinct(cost[cost > 0])]
    of_stage = [part[[j]] for j in range(len(again)) for part in every]
    return [(index, np.ones(len(index))) for part in [*every, *of_stage] if len(index := part[part >= 0]) > 1]


def _levels(relaxation: StageRelaxation) -> list[Sum]:
    problem, size = relaxation.problem, relaxation.problem.graph.arrays.size
    assert problem.budget_bytes is not None
    found: list[Sum] = []
    for live in relaxation.live:
        tensors = np.flatnonzero(live >= 0)
        for step in distinct(size[tensors][size[tensors] >= SMALL * problem.budget_bytes]).tolist():
            whole = size[tensors] // step
            large = whole > 0
            found.append((live[tensors[large]], whole[large].astype(np.float64)))
    return found


def _alike(relaxation: StageRelaxation) -> list[Sum]:
    arrays = relaxation.problem.graph.arrays
    found: list[Sum] = []
    for live in relaxation.live:
        tensors = np.flatnonzero(live >= 0)
        writer = arrays.producers.indices[arrays.producers.indptr[tensors]]
        kind = np.unique(np.stack([arrays.size[tensors], arrays.cost[writer]]), axis=1, return_inverse=True)[1].ravel()
        for each in range(kind.max(initial=-1) + 1):
            if len(index := live[tensors[kind == each]]) > 1:
                found.append((index, np.ones(len(index))))
    return found
