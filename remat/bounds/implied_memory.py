"""Memory between the events of a stage relaxation that its solution implies: it shows which events to add."""

from __future__ import annotations

import numpy as np

from remat.bounds.stage_relaxation import Stage, StageRelaxation
from remat.runtime.arrays import Float, Int

#: Part of an op that counts as run again when its inputs are required.
RUNS = 0.1


def implied_memory(relaxation: StageRelaxation, values: Float) -> Float:
    """Return the bytes that a schedule close to a solution holds at each first compute, shape (ops,); an estimate.

    Tensors that a first compute of a stage reads stay from the start of the stage to their last use in it. The part
    that is computed again is there from the first use of anything computed from it, the part that is fetched from its
    own first use. Other tensors stay as far as they are live at the end of the stage and not regained in it.

    Parameters
    ----------
    values : float64 array
        Solution of the built model, whole or fractional.
    """
    arrays = relaxation.problem.graph.arrays
    n = len(arrays.cost)
    change = np.zeros(n + 1)

    def add(since: Int, until: Int, part: Float, tensor: Int) -> None:
        """Hold parts of tensors from one position to another, both included."""
        held = until >= since
        np.add.at(change, since[held], (part * arrays.size[tensor])[held])
        np.add.at(change, until[held] + 1, -(part * arrays.size[tensor])[held])

    first = arrays.producers.lowest(arrays.position, n)
    for stage in relaxation.stages:
        low, high = stage.since + 1, min(stage.until, n - 1)
        used, last = uses(relaxation, low, high)
        again, read, end = regained(relaxation, stage, values)
        needed = needed_from(relaxation, stage, values, used)
        kept = np.clip(1 - again - read, 0, 1)
        old = np.flatnonzero((first < low) & (last >= low))
        ends = np.full(len(old), high)
        add(np.full(len(old), low), last[old], kept[old], old)
        add(needed[old], last[old], np.minimum(again[old], 1 - kept[old]), old)
        add(used[old], last[old], np.clip(1 - kept[old] - again[old], 0, 1), old)
        add(last[old] + 1, ends, end[old], old)
        idle = np.flatnonzero((first < low) & (last < low))
        through = np.clip(end[idle] - again[idle] - read[idle], 0, 1)
        add(np.full(len(idle), low), np.full(len(idle), high), through, idle)
        add(np.full(len(idle), high), np.full(len(idle), high), end[idle] - through, idle)
        brief = idle[needed[idle] <= high]
        add(needed[brief], needed[brief], again[brief], brief)
        new = np.flatnonzero((first >= low) & (first <= high))
        gone = np.maximum(first[new], last[new])
        add(first[new], gone, np.ones(len(new)), new)
        add(gone + 1, np.full(len(new), high), end[new], new)
    return np.cumsum(change)[:n] + arrays.workspace[arrays.order] + arrays.input_bytes


def uses(relaxation: StageRelaxation, low: int, high: int) -> tuple[Int, Int]:
    """Return the first and last position from `low` to `high` whose first compute reads each tensor."""
    arrays = relaxation.problem.graph.arrays
    n = len(arrays.cost)
    used, last = np.full(len(arrays.size), n), np.full(len(arrays.size), -1)
    when = arrays.position[arrays.edge_consumer]
    inside = (when >= low) & (when <= high)
    np.minimum.at(used, arrays.edge_tensor[inside], when[inside])
    np.maximum.at(last, arrays.edge_tensor[inside], when[inside])
    return used, last


def regained(relaxation: StageRelaxation, stage: Stage, values: Float) -> tuple[Float, Float, Float]:
    """Return the parts of each tensor that are computed again, that are read, and that are here at the end."""
    arrays = relaxation.problem.graph.arrays
    runs = variable_values(stage.again, values)[arrays.producers.indices]
    again = np.zeros(len(arrays.size))
    np.maximum.at(again, arrays.producers.rows, runs)
    end = variable_values(stage.here, values)
    if stage.until < len(arrays.order):
        op = arrays.order[stage.until]
        end[arrays.op_inputs[op]] = end[arrays.op_outputs[op]] = 1
    else:
        end[relaxation.problem.kept] = 1
    return np.minimum(again, 1), variable_values(stage.read, values), end


def needed_from(relaxation: StageRelaxation, stage: Stage, values: Float, used: Int) -> Int:
    """Return the first use in the stage of each tensor, or of a tensor that is computed again from it."""
    arrays = relaxation.problem.graph.arrays
    inputs, outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
    needed = used.tolist()
    runs = np.flatnonzero(variable_values(stage.again, values) > RUNS)
    for op in runs[np.argsort(-arrays.position[runs])].tolist():
        when = min((needed[tensor] for tensor in outputs[op]), default=len(used))
        for tensor in inputs[op]:
            needed[tensor] = min(needed[tensor], when)
    return np.array(needed, dtype=np.int64)


def variable_values(index: Int, values: Float) -> Float:
    """Return the values of variables, 0 where there is none."""
    return np.where(index >= 0, values[np.maximum(index, 0)], 0.0)
