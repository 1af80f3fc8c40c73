"""Copies of tensors in the memory of the host while a schedule runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.runtime.arrays import Int
from remat.schedule.certificate import Rule
from remat.schedule.faults import Faults
from remat.schedule.schedule import StepKind


@dataclass(frozen=True, eq=False)
class HostUse:
    """Memory and transfers of the host while a schedule runs.

    Attributes
    ----------
    memory : int64 array, shape (steps,)
        Bytes of all copies after each step.
    offloads, fetches : int
        Numbers of transfers to and from the host.
    bytes_written, bytes_read : int
        Bytes that they move.
    discard_step, discard_tensor : int64 arrays of one shape
        Implied discards: the copy goes after that step.
    """

    memory: Int
    offloads: int
    fetches: int
    bytes_written: int
    bytes_read: int
    discard_step: Int
    discard_tensor: Int

    @property
    def peak_step(self) -> int:
        """First step with the largest memory."""
        return int(self.memory.argmax())

    @property
    def peak(self) -> int:
        """Largest memory in bytes."""
        return int(self.memory.max())


class HostCopies:
    """Copies on the host, from the offload of a tensor to its discard.

    Without a discard, a copy that is fetched goes when its last fetch has surely ended: after the compute that first
    reads the tensor, or its free. A copy that is not fetched any more stays to the end.

    `begun` and `given` are the simulation's lists of the live instances and of the contributions to them.
    """

    def __init__(self, faults: Faults, targets: Int, *, begun: list[int], given: list[set[int]]) -> None:
        graph, kinds = faults.graph, faults.schedule.kinds
        self.begun, self.given, self.faults = begun, given, faults
        self.size = graph.arrays.size.tolist()
        self.producers = graph.arrays.producers
        self.reads = graph.arrays.op_inputs
        self.since: dict[int, int] = {}
        """Step of the offload of each copy."""
        self.leaving: set[int] = set()
        """Copies that go when their last fetch has ended."""
        self.last_fetches = _last_fetches(kinds, targets)
        self.changes: list[tuple[int, int]] = []  # step from which, and bytes
        self.implied: list[tuple[int, int]] = []  # steps and tensors of implied discards
        self.moved = {StepKind.OFFLOAD: [0, 0], StepKind.FETCH: [0, 0]}  # transfers and bytes

    def move(self, kind: int, tensor: int, step: int, freed: Sequence[int]) -> int:
        """Do a step that moves a tensor or discards its copy; return the bytes that it allocates on the device."""
        copied, live = tensor in self.since, self.begun[tensor] >= 0
        if kind == StepKind.OFFLOAD:
            if not live:
                self.faults.at(step, Rule.OFFLOAD_NOT_LIVE, tensor, freed[tensor])
            elif len(self.given[tensor]) < len(self.producers[tensor]):
                self.faults.at(step, Rule.OFFLOAD_INCOMPLETE, tensor, self.begun[tensor])
            elif copied:
                self.faults.at(step, Rule.OFFLOAD_AGAIN, tensor, self.since[tensor])
            else:
                self.since[tensor] = step
                self._count(kind, tensor)
                self.changes.append((step, self.size[tensor]))
        elif not copied:
            self.faults.at(step, Rule.NO_HOST_COPY, tensor, -1)
        elif kind == StepKind.DISCARD:
            self._release(tensor, step)
        elif live:
            self.faults.at(step, Rule.FETCH_OF_LIVE, tensor, self.begun[tensor])
        else:
            self._count(kind, tensor)
            self.begun[tensor] = step
            self.given[tensor] = set(self.producers[tensor].tolist())
            if step in self.last_fetches:
                self.leaving.add(tensor)
            return int(self.size[tensor])
        return 0

    def await_inputs(self, op: int, step: int) -> None:
        """Release the copies whose last fetch the compute of an op waits for."""
        for tensor in sorted(self.leaving.intersection(self.reads[op].tolist())):
            self.discard_after(tensor, step)

    def discard_after(self, tensor: int, step: int) -> None:
        """Release a copy whose last fetch ends at a step, as if discarded after it."""
        self.implied.append((step, tensor))
        self._release(tensor, step + 1)

    def use(self, steps: int) -> HostUse:
        """Return the memory and transfers of the host."""
        change = np.zeros(steps + 1, dtype=np.int64)
        for step, size in self.changes:
            change[step] += size
        (offloads, written), (fetches, read) = self.moved.values()
        discards = np.array(self.implied, dtype=np.int64).reshape(-1, 2).T
        return HostUse(np.cumsum(change)[:steps], offloads, fetches, written, read, *discards)

    def _count(self, kind: int, tensor: int) -> None:
        moved = self.moved[StepKind(kind)]
        moved[0] += 1
        moved[1] += self.size[tensor]

    def _release(self, tensor: int, step: int) -> None:
        del self.since[tensor]
        self.leaving.discard(tensor)
        self.changes.append((step, -self.size[tensor]))


def _last_fetches(kinds: NDArray[np.int8], targets: Int) -> set[int]:
    """Return the steps of fetches after which their copy is neither fetched again nor discarded."""
    found: set[int] = set()
    used: set[int] = set()  # copies that a later step uses
    for step in np.flatnonzero(kinds > StepKind.FREE)[::-1].tolist():
        kind, tensor = int(kinds[step]), int(targets[step])
        if kind == StepKind.OFFLOAD:
            used.discard(tensor)
            continue
        if kind == StepKind.FETCH and tensor not in used:
            found.add(step)
        used.add(tensor)
    return found
