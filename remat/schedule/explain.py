"""Context of a violation: the steps around it, and the life of the tensor concerned."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from remat.runtime.arrays import Int
from remat.runtime.text import counted
from remat.schedule.schedule import StepKind
from remat.schedule.simulate import Simulation, simulate

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph
    from remat.schedule.certificate import Violation
    from remat.schedule.rules import Rules
    from remat.schedule.schedule import Schedule

#: Steps shown before and after that of the violation, and most instances and reads of a tensor that are listed.
AROUND, LISTED = 2, 4


def explain(graph: ComputeGraph, schedule: Schedule, violation: Violation, rules: Rules) -> list[tuple[str, str]]:
    """Return the steps around a violation with their memory, and the life of its tensor, as pairs of label and text.

    For the budget, the tensor is the largest one that is live at the step and that its op neither reads nor writes.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import Rules, Schedule, validate
    >>> chain = unit_chain(2)
    >>> order, rules = Schedule.reference(chain), Rules(budget=3)
    >>> found = validate(chain, order, rules).first
    >>> for label, text in explain(chain, order, found, rules):
    ...     print(f"{label:<7} {text}")
    around    step 1  2 bytes  compute f1
              step 2  3 bytes  compute loss
            > step 3  4 bytes  compute g1
              step 4  3 bytes  compute g0
    life    'f0', 1 byte: produced at step 0 by 'f0', freed after step 4; read at steps 1, 4
    """
    run = simulate(graph, schedule, keep=rules.keep, count_constant_memory=rules.count_constant_memory)
    tensor = -1 if violation.tensor is None else graph.tensor_index.get(violation.tensor, -1)
    step = violation.step
    if step is None and tensor >= 0 and len(ended := run.intervals.end[run.intervals.tensor == tensor]):
        step = min(int(ended.max()), len(schedule) - 1)  # a tensor that is lost at the end: around its last free
    if step is not None and tensor < 0 and run.ops[step] >= 0 and violation.rule == "budget":
        tensor = _idle(run, step)
    return (_around(run, schedule, step) if step is not None and len(schedule) else []) + _life(run, tensor)


def _idle(run: Simulation, step: int) -> int:
    """Return the largest tensor that is live at a step and not used by its op; -1 if there is none."""
    arrays, op = run.graph.arrays, int(run.ops[step])
    idle = np.setdiff1d(run.intervals.live_at(step), np.concatenate([arrays.op_inputs[op], arrays.op_outputs[op]]))
    idle = idle[~arrays.is_input[idle]]
    return int(idle[arrays.size[idle].argmax()]) if len(idle) else -1


def _around(run: Simulation, schedule: Schedule, step: int) -> list[tuple[str, str]]:
    low, high = max(0, step - AROUND), min(len(schedule), step + AROUND + 1)
    steps = range(low, high)
    words = [" ".join(pair) for pair in islice(schedule.steps(), low, high)]
    sizes = [counted(int(run.memory[k]), "byte") for k in steps]
    digits, width = len(str(high - 1)), max(map(len, sizes))
    return [
        ("" if k > low else "around",
         f"{'>' if k == step else ' '} step {k:<{digits}}  {size:>{width}}  {word}")
        for k, word, size in zip(steps, words, sizes, strict=True)
    ]  # fmt: skip


def _life(run: Simulation, tensor: int) -> list[tuple[str, str]]:
    """Return the instances of a tensor and the steps that read it."""
    if tensor < 0:
        return []
    graph, intervals = run.graph, run.intervals
    found = np.flatnonzero(intervals.tensor == tensor)
    parts = [_instance(run, int(intervals.start[k]), int(intervals.end[k]), tensor) for k in found[:LISTED]]
    if len(found) > LISTED:
        parts.append(f"{len(found) - LISTED:,} more times")
    reads = np.flatnonzero(np.isin(run.ops, graph.arrays.consumers[tensor]))
    parts.append(f"read at {_steps(reads)}" if len(reads) else "never read")
    size = counted(graph.tensors[tensor].size, "byte")
    return [("life", f"{graph.tensor_names[tensor]!r}, {size}: {'; '.join(parts)}")]


def _instance(run: Simulation, start: int, end: int, tensor: int) -> str:
    arrays = run.graph.arrays
    if arrays.is_input[tensor]:
        return "a graph input"
    fetched = run.kinds[start] == StepKind.FETCH
    by = f"{'fetched' if fetched else 'produced'} at step {start}"
    by += "" if fetched else f" by {run.graph.op_names[int(run.ops[start])]!r}"
    frees = run.free_step[run.free_tensor == tensor]
    if end in frees:
        return f"{by}, freed at step {end}"
    return f"{by}, freed after step {end - 1}" if end - 1 in frees else f"{by}, live at the end"


def _steps(steps: Int) -> str:
    shown = ", ".join(f"{step}" for step in steps[:LISTED].tolist())
    more = f" and {len(steps) - LISTED:,} more" if len(steps) > LISTED else ""
    return f"step{'s' if len(steps) > 1 else ''} {shown}{more}"
