"""Data of ``retention_intervals.mzn``, the retention-interval formulation in MiniZinc, and values from its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remat.formulations.base import Values
from remat.formulations.retention_intervals.layout import grid_event
from remat.formulations.retention_intervals.variables import IntervalVariables
from remat.graphs.arrays import Csr
from remat.modeling.alternatives import WrittenModel
from remat.problem import Problem
from remat.problem.op_sequence import MemoryScale, standing_buffers
from remat.runtime.deadline import Deadline

TEXT = Path(__file__).with_name("retention_intervals.mzn")


@dataclass(frozen=True)
class WrittenIntervals:
    """Handwritten MiniZinc text for the model of one problem."""

    problem: Problem
    variables: IntervalVariables
    scale: MemoryScale
    deadline: Deadline
    highest_peak: int | None = None
    """Phase 1 with τ at most this, in units of the sizes' common divisor; None: phase 2."""

    def model(self) -> WrittenModel:
        """Return the text with its data."""
        first_phase = self.highest_peak is not None
        at = self.variables.layout
        again = at.copy_rank > 0
        cost = self.problem.graph.arrays.cost[at.copy_node]
        unit = int(np.gcd.reduce(cost[again])) or 1
        data = {
            **self._copies(),
            **self._buffers(),
            "cost": np.where(again, cost, 0) // unit,
            "capacity": self.scale.capacity,
            "highest_peak": self.highest_peak if first_phase else self.scale.capacity,
            "lower_peak": first_phase,
        }
        return WrittenModel(
            TEXT,
            data,
            values=self._values,
            hint=self._hint,
            cost_unit=1 if first_phase else unit,
            cost_offset=0 if first_phase else self.problem.graph.base_cost,
        )

    def _copies(self) -> dict[str, Any]:
        """Return the data of copies, instances and reads."""
        at, (_, workspace) = self.variables.layout, standing_buffers(self.problem)
        return {
            "horizon": at.horizon,
            "fixed_order": at.fixed,
            "op": at.copy_node + 1,
            "workspace": workspace[at.copy_node] // self.scale.unit,
            "events": self._events(),
            "instance_copy": at.made.copy + 1,
            "instance_size": at.tables.size[at.made.tensor] // self.scale.unit,
            "instance_kept": at.tables.kept[at.made.tensor],
            "read_copy": at.read.copy + 1,
            "read_choices": [
                set(each) for each in Csr.from_pairs(at.pair_read, at.pair_made + 1, len(at.read)).lists()
            ],
        }

    def _events(self) -> list[set[int]] | list[range]:
        """Return the events at which each copy may start, (9) or (11)."""
        at = self.variables.layout
        if not at.fixed:
            return [range(1, at.horizon + 1)] * len(at.copy_node)
        slot = at.slot
        least = slot + at.copy_rank
        most = np.where(at.copy_rank > 0, at.last_stage[at.copy_node], slot)
        return [
            set(grid_event(np.arange(a, b + 1), j).tolist())
            for a, b, j in self.deadline.each(zip(least.tolist(), most.tolist(), slot, strict=True), 16)
        ]

    def _buffers(self) -> dict[str, Any]:
        """Return the data of accumulation buffers."""
        at, producers = self.variables.layout, self.problem.graph.arrays.producers
        buffers, again = at.tables.buffers, at.contributions
        return {
            "buffer_size": at.tables.size[buffers] // self.scale.unit,
            "buffer_kept": at.tables.kept[buffers],
            "buffer_writers": [set((at.copy_first[producers[b]] + 1).tolist()) for b in buffers],
            "buffer_readers": [set((at.used.copy[at.used.tensor == b] + 1).tolist()) for b in buffers],
            "again_copy": again.copy + 1,
            "again_buffer": np.searchsorted(buffers, again.tensor) + 1,
        }

    def _hint(self, values: Values | None) -> Mapping[str, Any]:
        if values is None or not np.isfinite(values).all():
            return {"hint_active": [], "hint_start": [], "hint_held": []}
        x, copy = self.variables.blocks, self.variables.layout.made.copy
        active = values[x.active.index] > 0.5
        start, end = (np.rint(values[block.index]).astype(np.int64) for block in (x.start, x.end))
        return {"hint_active": active, "hint_start": start, "hint_held": np.where(active[copy], end - start[copy], 0)}

    def _values(self, output: Mapping[str, Any]) -> Values:
        """Return values of the model's variables from the output of the text."""
        at, variables = self.variables.layout, self.variables
        x, buffers = variables.blocks, at.tables.buffers
        active = np.array(output["active"], dtype=np.bool_)
        start, held, buffer_start, buffer_held = (
            np.array(output[name], dtype=np.int64) for name in ("start", "held", "buffer_start", "buffer_held")
        )
        copy = at.made.copy
        # an instance that does not exist may end anywhere, except if its tensor is kept: then at the end
        end = np.where(active[copy], start[copy] + held, at.horizon + 1)
        values = np.zeros(variables.model.num_vars)
        values[x.start.index] = start
        values[x.active.index] = active
        values[x.end.index] = end
        values[x.after.index] = start[np.nonzero(variables.after_table >= 0)[0]] + 1
        values[x.buffer_start.index] = buffer_start
        values[x.buffer_end.index] = buffer_start + buffer_held
        again = variables.contributions
        values[x.transient.index] = output["transient"]
        values[x.masked.index] = (
            start[again.copy] < (buffer_start + buffer_held)[np.searchsorted(buffers, again.tensor)]
        )
        if len(x.cover):
            instance = at.pair_made[variables.covered]
            reader = start[at.read.copy[at.pair_read[variables.covered]]]
            values[x.cover.index] = active[copy[instance]] & (start[copy[instance]] < reader) & (reader < end[instance])
        if self.highest_peak is not None:
            values[-1] = output["peak"]
        return values
