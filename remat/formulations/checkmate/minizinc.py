"""Data of ``checkmate.mzn``, Checkmate's programme in MiniZinc, and values from its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remat.formulations.base import Values
from remat.formulations.checkmate.layout import CheckmateLayout
from remat.modeling.alternatives import WrittenModel
from remat.modeling.model import Named
from remat.problem import Problem
from remat.runtime.arrays import Bool

TEXT = Path(__file__).with_name("checkmate.mzn")


@dataclass(frozen=True)
class WrittenStages:
    """Handwritten MiniZinc text for the model of one problem, with frontier-advancing stages."""

    problem: Problem
    layout: CheckmateLayout
    blocks: Named
    completed: Callable[[Bool, Bool], Values]
    """Values of the model's variables from R and S."""

    def model(self) -> WrittenModel:
        """Return the text with its data; ops and tensors are numbered from 1, ops in the reference order."""
        at, arrays = self.layout, self.problem.graph.arrays
        number = np.zeros(len(at.size), dtype=np.int64)  # of tensors in the text; 0: none
        number[at.tensors] = np.arange(1, len(at.tensors) + 1)
        read = np.flatnonzero(number[at.use_tensor])
        free = np.flatnonzero(number[at.free_tensor])
        cost = arrays.cost[arrays.order]
        unit = int(np.gcd.reduce(cost)) or 1
        limits = np.array([at.n if limit is None else limit for limit in self.problem.compute_limits])[arrays.order]
        place = {
            (int(t), int(j)): k for k, (t, j) in enumerate(zip(at.free_tensor[free], at.free_op[free], strict=True), 1)
        }
        inputs = [place[source, op] for source, op in zip(at.place_source.tolist(), at.place_op.tolist(), strict=True)]
        data = {
            "cost": cost // unit,
            "workspace": at.workspace[arrays.order] // at.unit,
            "most_computes": limits,
            "size": at.size[at.tensors],
            "writer": at.writer[at.tensors] + 1,
            "last_writer": at.last_writer[at.tensors] + 1,
            "is_buffer": at.is_buffer[at.tensors],
            "kept": at.kept[at.tensors],
            "read_tensor": number[at.use_tensor[read]],
            "read_op": at.use_op[read] + 1,
            "free_tensor": number[at.free_tensor[free]],
            "free_op": at.free_op[free] + 1,
            "again_tensor": number[at.part_tensor],
            "again_op": at.part_op + 1,
            "place_output": number[at.place_output],
            "place_input": np.array(inputs, dtype=np.int64),
            "capacity": at.capacity,
        }
        return WrittenModel(TEXT, data, self._values, self._hint, unit, self.problem.graph.base_cost)

    def _hint(self, values: Values | None) -> Mapping[str, Any]:
        if values is None or not np.isfinite(values).all():
            return {"hint_R": [], "hint_S": []}
        at = self.layout
        run, held = np.zeros((at.n, at.n), dtype=np.bool_), np.zeros((at.n, len(at.size)), dtype=np.bool_)
        run[at.runs()] = values[self.blocks.R.index] > 0.5
        held[at.retained()] = values[self.blocks.S.index] > 0.5
        return {"hint_R": run.ravel(), "hint_S": held[:, at.tensors].ravel()}

    def _values(self, output: Mapping[str, Any]) -> Values:
        """Return values of the model's variables from the output of the text."""
        at = self.layout
        run = np.array(output["R"], dtype=np.bool_).reshape(at.n, at.n)
        held = np.zeros((at.n, len(at.size)), dtype=np.bool_)
        held[:, at.tensors] = np.array(output["S"], dtype=np.bool_).reshape(at.n, len(at.tensors))
        return self.completed(run[at.runs()], held[at.retained()])
