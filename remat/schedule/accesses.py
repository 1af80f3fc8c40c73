"""The accesses of tensors by a schedule, and what is needed of each value afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from remat.errors import ScheduleError
from remat.graphs import ComputeGraph
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import graph_positions, kept_tensors, simulate, with_frees


class Mode(IntEnum):
    """What an access does."""

    READ = 0
    WRITE = 1
    """Begins a value: nothing need be fetched."""
    ADD = 2
    """A later contribution: reads and writes."""


#: In place of the next access: nobody needs the value again.
DEAD = -1


@dataclass(frozen=True)
class Accesses:
    """Accesses of tensors by a valid schedule, in their order: each op reads its inputs, then writes its outputs.

    Attributes
    ----------
    graph : ComputeGraph
    steps : list of (op, first access, number after the last)
    tensors, modes : list of int
        For each access.
    following : list of int
        The next access that needs what this one leaves, or ``DEAD``. A tensor that is live at the end has an access
        after all others there: their number, plus that of the tensor.
    times : list of int
        The step of each access, those at the end included.
    """

    graph: ComputeGraph
    steps: list[tuple[int, int, int]]
    tensors: list[int]
    modes: list[Mode]
    following: list[int]
    times: list[int]

    @classmethod
    def of(cls, graph: ComputeGraph, schedule: Schedule, keep: Iterable[str]) -> Accesses:
        """Of a schedule, which is checked."""
        keep = list(keep)
        found = simulate(graph, schedule, keep=keep, max_violations=1).violations
        if found:
            raise ScheduleError(f"the schedule is not valid: {found[0].message}")
        schedule = with_frees(graph, schedule, keep=keep)
        arrays = graph.arrays
        reads, writes = arrays.op_inputs.lists(), arrays.op_outputs.lists()
        producers = arrays.producers.counts.tolist()
        given: list[set[int]] = [set() for _ in producers]  # contributors of the live instance
        steps: list[tuple[int, int, int]] = []
        tensors: list[int] = []
        modes: list[Mode] = []
        targets = graph_positions(graph, schedule).tolist()
        for kind, target in zip(schedule.kinds.tolist(), targets, strict=True):
            if kind != StepKind.COMPUTE:
                given[target].clear()
                continue
            first = len(tensors)
            for tensor in reads[target]:
                tensors.append(tensor)
                modes.append(Mode.READ)
            for tensor in writes[target]:
                there = given[tensor]
                if producers[tensor] > 1 and target in there:
                    continue  # the buffer has this contribution: it is masked
                tensors.append(tensor)
                modes.append(Mode.ADD if there and producers[tensor] > 1 else Mode.WRITE)
                there.add(target)
            steps.append((target, first, len(tensors)))
        kept = kept_tensors(graph, keep).tolist()
        # A graph input has its copy behind the chip: at the end it need not be held.
        after = [len(tensors) + t if kept[t] and producers[t] else DEAD for t in range(len(producers))]
        times = [number for number, (_, first, last) in enumerate(steps) for _ in range(first, last)]
        times += [len(steps)] * len(producers)
        following = [DEAD] * len(tensors)
        for access in range(len(tensors) - 1, -1, -1):
            following[access] = after[tensors[access]]
            after[tensors[access]] = DEAD if modes[access] is Mode.WRITE else access
        return cls(graph, steps, tensors, modes, following, times)
