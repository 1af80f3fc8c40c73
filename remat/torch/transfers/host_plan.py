"""Places of the host copies of a schedule in one arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from remat.allocation.fits import quick
from remat.allocation.problem import AllocationProblem
from remat.errors import ExecutionError
from remat.graphs import ComputeGraph
from remat.schedule import Buffers, Schedule, with_frees

Step = tuple[str, str]


@dataclass(frozen=True, eq=False)
class HostPlan:
    """A schedule with all frees and discards written out, without copies that no step reads, and places for the others.

    Attributes
    ----------
    schedule : Schedule
    offsets : mapping of int to int
        For each step that offloads, the first byte of the copy.
    size : int
        Bytes of the arena.
    """

    schedule: Schedule
    offsets: Mapping[int, int]
    size: int

    @classmethod
    def of(cls, graph: ComputeGraph, schedule: Schedule) -> HostPlan:
        """Write out a valid schedule and find places for its copies."""
        implied = with_frees(graph, schedule)
        if not implied.has_transfers:
            return cls(implied, {}, 0)
        steps = without_useless_copies(list(implied.steps()))
        begun: dict[str, int] = {}
        copies: list[tuple[str, int, int]] = []
        for number, (kind, name) in enumerate(steps):
            if kind == "offload":
                begun[name] = number
            elif kind == "discard":
                copies.append((name, begun.pop(name), number))
        copies += [(name, start, len(steps)) for name, start in begun.items()]
        sizes = {tensor.name: tensor.size for tensor in graph.tensors}
        written = Schedule.from_steps(steps, graph=graph.name, graph_digest=graph.digest, source=schedule.source)
        if not copies:
            return cls(written, {}, 0)
        buffers = Buffers.of(
            [f"{name} at {start}" for name, start, _ in copies],
            lower=[start for _, start, _ in copies],
            upper=[end for *_, end in copies],
            size=[sizes[name] for name, *_ in copies],
        )
        found = quick(AllocationProblem(buffers)).addresses
        if found is None:
            raise ExecutionError(f"no places on the host were found for the {len(copies):,} copies of {graph.name!r}")
        offsets = dict(zip((start for _, start, _ in copies), found.offset.tolist(), strict=True))
        return cls(written, offsets, found.arena)


def without_useless_copies(steps: list[Step]) -> list[Step]:
    """Leave out copies that no step reads."""
    useless, begun = set[int](), dict[str, int]()
    for number, (kind, name) in enumerate(steps):
        if kind == "offload":
            begun[name] = number
        elif kind == "fetch":
            begun.pop(name, None)
        elif kind == "discard" and name in begun:
            useless |= {begun.pop(name), number}
    useless.update(begun.values())
    return [step for number, step in enumerate(steps) if number not in useless]
