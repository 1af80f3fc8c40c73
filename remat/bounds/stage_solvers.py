"""Solvers of stage programmes: CP-SAT for small ones, HiGHS for others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from remat.backends.choice import placed
from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.backends.results import RawResult
from remat.bounds.cost_sums import objective_of
from remat.bounds.stage_relaxation import MEMORY, ON_DEVICE, StageRelaxation
from remat.modeling import Linear, Model, Record
from remat.modeling.rows import rows_from
from remat.runtime.arrays import Float
from remat.runtime.solve_options import SolveOptions

#: Most variables of a programme for CP-SAT, in all and for each second. On ResNets, U-Nets and transformers of up to
#: 500 ops it decides such programmes up to 9 times as fast as HiGHS; on larger ones HiGHS proves more.
MOST_VARIABLES, VARIABLES_PER_SECOND = 7_000, 2_500
#: CP-SAT's options: all rows are in its linear relaxation.
CP_SAT = {"linearization_level": 2}


def is_whole(relaxation: StageRelaxation, model: Model) -> bool:
    """Return True if a programme is small, and all of its variables take whole numbers."""
    return relaxation.slim and model.num_vars <= MOST_VARIABLES


def solve_programme(relaxation: StageRelaxation, model: Model, call: SolveOptions, near: int) -> RawResult:
    """Solve a programme of a relaxation; CP-SAT stops at an objective of at most `near`."""
    if not is_whole(relaxation, model) or model.num_vars > VARIABLES_PER_SECOND * call.deadline.remaining:
        return placed(Highs(), call).solve(model, call)
    return by_cp_sat(relaxation, model, call, near)


def by_cp_sat(
    relaxation: StageRelaxation, model: Model, call: SolveOptions, near: float = -math.inf, **more: int
) -> RawResult:
    """Solve a slim programme of a relaxation by CP-SAT, which stops at an objective of at most `near`."""
    call = replace(call, solver={**CP_SAT, **more})
    whole = in_whole_numbers(relaxation, model)
    return placed(CpSat(), call).solve(whole, call, on_incumbent=lambda found: found.objective <= near)


def holding_less(
    relaxation: StageRelaxation, model: Model, values: Float, call: SolveOptions, enough: Callable[[Float], bool]
) -> Float:
    """Return a solution that costs no more than a known one, and holds fewer bytes at the events in all.

    Repeated blocks have many solutions of the same cost. One that holds less leaves more memory between the events.

    Parameters
    ----------
    enough : callable
        Is called with each solution; True ends the search.
    """
    less, objective = in_whole_numbers(relaxation, model), model.objective
    most = objective_of(model, values) - objective.constant
    less.add(rows_from("no costlier", (0, objective.index, objective.coefficient), num_rows=1, upper=most))
    live, size = np.array(relaxation.live), relaxation.problem.graph.arrays.size
    event, tensor = np.nonzero(live >= 0)
    less.minimize(live[event, tensor], size[tensor] // max(1, int(np.gcd.reduce(size[tensor]))))
    # It starts at the known solution, so presolve may be short.
    call = replace(call, solver={**CP_SAT, "cp_model_probing_level": 0, "symmetry_level": 0})
    found = placed(CpSat(), call).solve(less, call, hint=values, on_incumbent=lambda each: enough(each.values))
    return values if found.values is None else found.values


def in_whole_numbers(relaxation: StageRelaxation, model: Model) -> Model:
    """Return a slim programme with memory in the largest unit that divides all sizes, at each event."""

    def converted(record: Record) -> Record:
        if not isinstance(record, Linear) or record.name not in (MEMORY, ON_DEVICE):
            return record
        size, room = (np.rint(part * relaxation.scale).astype(np.int64) for part in (record.value, record.upper))
        unit = max(1, int(np.gcd.reduce(size)))
        return replace(record, value=size / unit, upper=np.floor(room / unit))

    whole = model.copy(model.name)
    whole.records = [converted(record) for record in model.records]
    return whole
