"""The accesses of tensors by a schedule, and what is needed of each value afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from remat.graphs import ComputeGraph
from remat.schedule.early_frees import running
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import graph_positions, kept_tensors


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
    tensors, modes : list of int
        For each access.
    following : list of int
        The next access that needs what this one leaves, or ``DEAD``. A tensor that is live at the end has an access
        after all others there: their number, plus that of the tensor.
    times : list of int
        The step of each access, those at the end included.
    """

    graph: ComputeGraph
    tensors: list[int]
    modes: list[Mode]
    following: list[int]
    times: list[int]

    @classmethod
    def of(cls, graph: ComputeGraph, schedule: Schedule, keep: Iterable[str]) -> Accesses:
        """Read the accesses of a valid schedule."""
        keep = list(keep)
        schedule = running(graph, schedule, keep=keep)
        arrays = graph.arrays
        reads, writes = arrays.op_inputs.lists(), arrays.op_outputs.lists()
        producers = arrays.producers.counts.tolist()
        given: list[set[int]] = [set() for _ in producers]  # contributors of the live instance
        tensors: list[int] = []
        times: list[int] = []
        step = 0
        modes: list[Mode] = []
        targets = graph_positions(graph, schedule).tolist()
        for kind, target in zip(schedule.kinds.tolist(), targets, strict=True):
            if kind != StepKind.COMPUTE:
                given[target].clear()
                continue
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
            times += [step] * (len(tensors) - len(times))
            step += 1
        kept = kept_tensors(graph, keep).tolist()
        # A graph input has its copy behind the chip: at the end it need not be held.
        after = [len(tensors) + t if kept[t] and producers[t] else DEAD for t in range(len(producers))]
        times += [step] * len(producers)
        following = [DEAD] * len(tensors)
        for access in range(len(tensors) - 1, -1, -1):
            following[access] = after[tensors[access]]
            after[tensors[access]] = DEAD if modes[access] is Mode.WRITE else access
        return cls(graph, tensors, modes, following, times)
