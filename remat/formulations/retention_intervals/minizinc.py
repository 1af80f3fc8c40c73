"""The retention-interval formulation as ``retention_intervals.mzn``: its data, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from remat.formulations.base import Values
from remat.modeling.written import WrittenModel

if TYPE_CHECKING:
    from remat.formulations.retention_intervals.formulation import RetentionIntervals
    from remat.formulations.retention_intervals.layout import RetentionBlocks

Int = NDArray[np.int64]
TEXT = Path(__file__).with_name("retention_intervals.mzn")


def written(f: RetentionIntervals, x: RetentionBlocks, *, highest_peak: int | None = None) -> WrittenModel:
    """The model over blocks `x` as a text written by hand.

    Parameters
    ----------
    highest_peak : int, optional
        Phase 1 with τ at most this, in units of the sizes' common divisor; None: phase 2.
    """
    first_phase = highest_peak is not None
    again = f.layout.copy_rank > 0
    cost = f.problem.graph.arrays.cost[f.layout.copy_op]
    unit = int(np.gcd.reduce(cost[again])) or 1
    data = {
        **_copies(f),
        **_buffers(f),
        "cost": np.where(again, cost, 0) // unit,
        "capacity": f.capacity,
        "highest_peak": highest_peak if first_phase else f.capacity,
        "lower_peak": first_phase,
    }
    return WrittenModel(
        TEXT,
        data,
        values=lambda output: _values(f, x, output, first_phase),
        hint=lambda values: _hint(f, x, values),
        cost_unit=1 if first_phase else unit,
        cost_offset=0 if first_phase else f.problem.graph.base_cost,
    )


def _copies(f: RetentionIntervals) -> dict[str, Any]:
    """Copies, instances and reads."""
    layout, problem = f.layout, f.problem
    reads = np.flatnonzero(~np.isin(layout.read_tensor, layout.buffers))
    choices: list[set[int]] = [set() for _ in layout.read_copy]
    for read, instance in zip(layout.pair_read.tolist(), layout.pair_instance.tolist(), strict=True):
        choices[read].add(instance + 1)
    return {
        "horizon": f.horizon,
        "fixed_order": f.grid is not None,
        "op": layout.copy_op + 1,
        "workspace": f.workspace[layout.copy_op] // f.unit,
        "events": _events(f),
        "instance_copy": layout.instance_copy + 1,
        "instance_size": problem.graph.arrays.size[layout.instance_tensor] // f.unit,
        "instance_kept": problem.kept[layout.instance_tensor],
        "read_copy": layout.read_copy[reads] + 1,
        "read_choices": [choices[read] for read in reads.tolist()],
    }


def _events(f: RetentionIntervals) -> list[set[int]] | list[range]:
    """Events at which each copy may start, (9) or (11)."""
    layout = f.layout
    if f.grid is None:
        return [range(1, f.horizon + 1)] * len(layout.copy_op)
    slot = f.problem.graph.arrays.position[layout.copy_op] + 1
    least = slot + layout.copy_rank
    most = np.where(layout.copy_rank > 0, layout.last_stage[layout.copy_op], slot)
    return [
        set(f.grid.event(np.arange(a, b + 1), j).tolist())
        for a, b, j in zip(least.tolist(), most.tolist(), slot, strict=True)
    ]


def _buffers(f: RetentionIntervals) -> dict[str, Any]:
    """Accumulation buffers."""
    layout, arrays = f.layout, f.problem.graph.arrays
    copy, into = f.contributions
    return {
        "buffer_size": arrays.size[layout.buffers] // f.unit,
        "buffer_kept": f.problem.kept[layout.buffers],
        "buffer_writers": [set((layout.copy_first[arrays.producers[b]] + 1).tolist()) for b in layout.buffers],
        "buffer_readers": [set((layout.read_copy[layout.read_tensor == b] + 1).tolist()) for b in layout.buffers],
        "again_copy": copy + 1,
        "again_buffer": np.searchsorted(layout.buffers, into) + 1,
    }


def _hint(f: RetentionIntervals, x: RetentionBlocks, values: Values | None) -> Mapping[str, Any]:
    if values is None or not np.isfinite(values).all():
        return {"hint_active": [], "hint_start": [], "hint_held": []}
    active = values[x.active.index] > 0.5
    start, end = (np.rint(values[block.index]).astype(np.int64) for block in (x.start, x.end))
    copy = f.layout.instance_copy
    return {"hint_active": active, "hint_start": start, "hint_held": np.where(active[copy], end - start[copy], 0)}


def _values(f: RetentionIntervals, x: RetentionBlocks, output: Mapping[str, Any], first_phase: bool) -> Values:
    """Values of the model's variables from what the text puts out."""
    layout = f.layout
    active = np.array(output["active"], dtype=np.bool_)
    start, held, buffer_start, buffer_held = (
        np.array(output[name], dtype=np.int64) for name in ("start", "held", "buffer_start", "buffer_held")
    )
    copy = layout.instance_copy
    # an instance that is not there may end anywhere, and where its tensor is kept it has to be at the end
    end = np.where(active[copy], start[copy] + held, f.horizon + 1)
    values = np.zeros(f.statement[0].num_vars + first_phase)
    values[x.start.index] = start
    values[x.active.index] = active
    values[x.end.index] = end
    values[x.after.index] = start[f.singles] + 1
    values[x.buffer_start.index] = buffer_start
    values[x.buffer_end.index] = buffer_start + buffer_held
    again, into = f.contributions
    values[x.transient.index] = output["transient"]
    values[x.masked.index] = start[again] < (buffer_start + buffer_held)[np.searchsorted(layout.buffers, into)]
    if len(x.cover):
        instance = layout.pair_instance[f.covered]
        reader = start[layout.read_copy[layout.pair_read[f.covered]]]
        values[x.cover.index] = active[copy[instance]] & (start[copy[instance]] < reader) & (reader < end[instance])
    if first_phase:
        values[-1] = output["peak"]
    return values
