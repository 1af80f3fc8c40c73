"""Data of ``stages.mzn``, the stage formulation in MiniZinc, and values from its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remat.formulations.base import Values
from remat.formulations.stages.choices import StageChoices
from remat.graphs.arrays import Csr
from remat.modeling.alternatives import WrittenModel
from remat.modeling.model import Named
from remat.modeling.rows import NONE, ONE, expand, first_of
from remat.runtime.arrays import Bool, Int

TEXT = Path(__file__).with_name("stages.mzn")


@dataclass(frozen=True)
class WrittenStages:
    """Handwritten MiniZinc text for the model of one problem."""

    choices: StageChoices
    most_runs: Int
    """Recomputations allowed of each op, by position."""
    blocks: Named
    completed: Callable[[Bool, Bool], Values]
    """Values of the model's variables from R and S."""

    def model(self) -> WrittenModel:
        """Return the text with its data; ops, by position, and tensors are numbered from 1."""
        choices, at = self.choices, self.choices.layout
        arrays = choices.problem.graph.arrays
        stage, op = choices.runs
        cost = arrays.cost[arrays.order][op]
        unit = int(np.gcd.reduce(cost)) or 1
        hold = choices.s_table
        row, tensor = np.nonzero(at.fixed)
        fixed = Csr.from_pairs(row, tensor + 1, at.n)
        data = {
            "ops": at.n,
            "workspace": at.workspace,
            "first_stage": at.first_stage + 1,
            "capacity": at.capacity,
            "size": at.size,
            "writer": at.first_writer + 1,
            "last_writer": at.last_writer + 1,
            "is_buffer": at.is_buffer,
            "fixed": [set(row) for row in fixed.lists()],
            "run_stage": stage + 1,
            "run_op": op + 1,
            "run_cost": cost // unit,
            "run_number": (choices.run_number + 1) * (choices.run_number != NONE),
            "most_runs": self.most_runs,
            "tight": np.flatnonzero(choices.tight) + 1,
            "spare": self._spare(),
            "holds": len(self.blocks.S),
            "hold_number": np.where(hold == ONE, -1, np.where(hold == NONE, 0, hold + 1)),
            **self._reads(),
        }
        return WrittenModel(TEXT, data, self._values, self._hint, unit, choices.problem.graph.base_cost)

    def _spare(self) -> list[set[int]]:
        """Return the tensors that each run computes whether or not they are wanted, and that are not fixed."""
        choices, at, outputs = self.choices, self.choices.layout, self.choices.problem.graph.arrays.op_outputs
        stage, op = choices.runs
        number = choices.problem.graph.arrays.order[op]
        run, rank = expand(outputs.counts[number])
        tensor = outputs.indices[outputs.indptr[number[run]] + rank]
        mine = choices.spare[1][tensor] & (at.size[tensor] > 0) & ~at.fixed[stage[run], tensor]
        return [set(row) for row in Csr.from_pairs(run[mine], tensor[mine] + 1, len(op)).lists()]

    def _reads(self) -> dict[str, Any]:
        choices, at = self.choices, self.choices.layout
        stage, tensor, reader, last = choices.reads
        head = first_of(last)
        first = np.zeros((at.n, len(at.size)), dtype=np.int64)
        first[stage[head], tensor[head]] = np.arange(1, len(stage) + 1)[head]
        return {
            "read_run": choices.run_number[stage, reader] + 1, "read_tensor": tensor + 1, "first_read": first,
            "last_read": last,
        }  # fmt: skip

    def _hint(self, values: Values | None) -> Mapping[str, Any]:
        if values is None or not np.isfinite(values).all():
            return {"hint_R": [], "hint_S": []}
        return {"hint_R": values[self.blocks.R.index] > 0.5, "hint_S": values[self.blocks.S.index] > 0.5}

    def _values(self, output: Mapping[str, Any]) -> Values:
        """Return values of the model's variables from the output of the text."""
        return self.completed(np.array(output["R"], dtype=np.bool_), np.array(output["S"], dtype=np.bool_))
