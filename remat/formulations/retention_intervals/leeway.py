"""Bounds of the retention-interval model while only a part of a schedule is optimised again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from remat.formulations.base import Leeway, Part
from remat.formulations.retention_intervals.encoder import Gap, IntervalsEncoder
from remat.runtime.arrays import Bool, Int
from remat.schedule import Schedule

if TYPE_CHECKING:
    from remat.formulations.retention_intervals import RetentionIntervals


def leeway(formulation: RetentionIntervals, schedule: Schedule, part: Part) -> Leeway:
    """Release the copies of the ops of `part` within its stages, and the instances that these make or read.

    With the free order, idle copies of these ops take events within the stages, so that there is room for them between
    the copies that are fixed.
    """
    at = formulation.layout
    variables = formulation.statement
    model, x = variables.model, variables.blocks
    mine = part.ops[at.copy_node]
    encoder = IntervalsEncoder(formulation, formulation.runs_of(schedule), Gap(part.first, part.last, mine))
    values = encoder.values()
    touched = part.touched(formulation.problem.graph.arrays)
    lower, upper = values.copy(), values.copy()

    def release(index: Int, which: Bool) -> None:
        chosen = index[which]
        lower[chosen], upper[chosen] = model.lower[chosen], model.upper[chosen]

    low, high = encoder.range
    moves = mine & (low <= high)
    release(x.active.index, moves)
    lower[x.start.index[moves]], upper[x.start.index[moves]] = low[moves], high[moves]
    release(x.end.index, touched[at.made.tensor])
    release(x.after.index, moves[np.nonzero(variables.after_table >= 0)[0]])
    release(x.buffer_start.index, touched[at.tables.buffers])
    release(x.buffer_end.index, touched[at.tables.buffers])
    again = variables.contributions
    release(x.transient.index, moves[again.copy] | touched[again.tensor])
    release(x.masked.index, moves[again.copy] | touched[again.tensor])
    if len(x.cover):
        pair = variables.covered
        reader, maker = at.read.copy[at.pair_read[pair]], at.made.copy[at.pair_made[pair]]
        release(x.cover.index, moves[reader] | mine[maker])
    return Leeway(values, lower, upper)
