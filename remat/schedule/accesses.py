"""Accesses of tensors by a schedule, and the next access that needs each value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from remat.graphs import ComputeGraph
from remat.schedule.early_frees import running
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import graph_positions, kept_tensors


class Mode(IntEnum):
    """Kind of an access."""

    READ = 0
    WRITE = 1
    """Starts a value: nothing is fetched."""
    ADD = 2
    """A later contribution: reads and writes."""


#: In place of the next access: no access needs the value again.
DEAD = -1


@dataclass(frozen=True)
class Accesses:
    """Accesses of tensors by a valid schedule, in order: each op reads its inputs, then writes its outputs."""

    graph: ComputeGraph
    tensors: list[int]
    modes: list[Mode]
    """`tensors` and `modes` have one entry per access."""
    following: list[int]
    """Next access that needs the value, or ``DEAD``; number of accesses plus tensor if it is live at the end."""
    times: list[int]
    """Step of each access, including those at the end."""

    @classmethod
    def of(cls, graph: ComputeGraph, schedule: Schedule, keep: Iterable[str]) -> Accesses:
        """Return the accesses of a valid schedule."""
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
                    continue  # the buffer has this contribution already: it is masked
                tensors.append(tensor)
                modes.append(Mode.ADD if there and producers[tensor] > 1 else Mode.WRITE)
                there.add(target)
            times += [step] * (len(tensors) - len(times))
            step += 1
        kept = kept_tensors(graph, keep).tolist()
        # a graph input has a copy off the chip, so the chip need not hold it at the end
        after = [len(tensors) + t if kept[t] and producers[t] else DEAD for t in range(len(producers))]
        times += [step] * len(producers)
        following = [DEAD] * len(tensors)
        for access in range(len(tensors) - 1, -1, -1):
            following[access] = after[tensors[access]]
            after[tensors[access]] = DEAD if modes[access] is Mode.WRITE else access
        return cls(graph, tensors, modes, following, times)
