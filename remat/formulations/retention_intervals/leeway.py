"""Which variables of the retention-interval model may move while only a part of a schedule is optimised anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.formulations.base import Leeway, Part
from remat.formulations.retention_intervals.encoder import Gap, RetentionEncoder
from remat.schedule import Schedule

if TYPE_CHECKING:
    from remat.formulations.retention_intervals import RetentionIntervals

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


def leeway(formulation: RetentionIntervals, schedule: Schedule, part: Part) -> Leeway:
    """Copies of the ops of `part` within its stages, ends of what they read and write, and the choice between these.

    With the free order the idle copies of these ops take events inside of the stages, so that there is room for them
    between the copies that stay.
    """
    layout, arrays = formulation.layout, formulation.problem.graph.arrays
    model, x = formulation.statement
    mine = part.ops[layout.copy_op]
    encoder = RetentionEncoder(formulation, schedule, Gap(part.first, part.last, mine))
    values = encoder.values()
    touched = np.zeros(len(arrays.size), dtype=np.bool_)
    for table in (arrays.op_inputs, arrays.op_outputs):
        touched[table.indices[part.ops[table.rows]]] = True
    lower, upper = values.copy(), values.copy()

    def release(index: Int, which: Bool) -> None:
        chosen = index[which]
        lower[chosen], upper[chosen] = model.lower[chosen], model.upper[chosen]

    low, high = encoder.range
    moves = mine & (low <= high)
    release(x.active.index, moves)
    lower[x.start.index[moves]], upper[x.start.index[moves]] = low[moves], high[moves]
    release(x.end.index, touched[layout.instance_tensor])
    release(x.after.index, moves[formulation.singles])
    release(x.buffer_start.index, touched[layout.buffers])
    release(x.buffer_end.index, touched[layout.buffers])
    contributing, into = formulation.contributions
    release(x.transient.index, moves[contributing] | touched[into])
    release(x.masked.index, moves[contributing] | touched[into])
    if len(x.cover):
        pair = formulation.covered
        reader = layout.read_copy[layout.pair_read[pair]]
        release(
            x.cover.index, moves[reader] | part.ops[layout.copy_op[layout.instance_copy[layout.pair_instance[pair]]]]
        )
    return Leeway(values, lower, upper)
