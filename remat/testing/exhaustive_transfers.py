"""Least times of tiny graphs with a host memory by exhaustive search over the states of both memories.

It follows the rules directly and shares no code with formulations, searches, or the validator. Of schedules that differ
by the order of steps that may be exchanged only one is tried: between two allocations (computes or fetches) come the
offloads and discards, then the frees by name, of which the next allocation needs each. Steps without effect on later
computes are left out: recomputations of what is there, and copies of graph inputs and of tensors that nothing reads.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from remat.errors import ProblemError
from remat.graphs import ComputeGraph
from remat.schedule.machine import Machine
from remat.schedule.schedule import Schedule

Step = tuple[str, str]
_Move = tuple[Step, int, "_State"]


@dataclass(frozen=True)
class LeastTime:
    """A schedule of least time."""

    time: int
    """In the cost unit of the graph."""
    schedule: Schedule
    """With explicit frees."""


class _State(NamedTuple):
    """Ops computed at least once, in the reference order, and what is where; all times count from now.

    `device` has the tensors on the device with the time until they have arrived, `host` the copies with the time until
    they are written; `out` and `back` are the times until the links are free.
    """

    done: int
    device: frozenset[tuple[str, int]]
    host: frozenset[tuple[str, int]]
    out: int
    back: int
    freed: str = ""

    def after(self, wait: int) -> _State:
        """Return the state a while later."""
        if not wait:
            return self

        def later(pairs: frozenset[tuple[str, int]]) -> frozenset[tuple[str, int]]:
            return frozenset((tensor, max(0, left - wait)) for tensor, left in pairs)

        return self._replace(
            device=later(self.device),
            host=later(self.host),
            out=max(0, self.out - wait),
            back=max(0, self.back - wait),
        )


def least_time(graph: ComputeGraph, budget: int, machine: Machine) -> LeastTime | None:
    """Return the schedule of least time whose first computes follow the reference order; None if there is none.

    Parameters
    ----------
    graph : ComputeGraph
        At most about eight ops; every tensor has at most one producer.
    budget : int
        Bytes of the device.
    machine : Machine

    Raises
    ------
    ProblemError
        If a tensor has several producers, or the costs are no times.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from remat.graphs.families import unit_chain
    >>> chain = replace(unit_chain(2), cost_unit="us")
    >>> least_time(chain, 3, Machine(0, 0)).time, least_time(chain, 3, Machine()).time
    (6, 5)
    """
    return _Search(graph, budget, machine).run()


def least_energy(graph: ComputeGraph, budget: int, machine: Machine) -> int | None:
    """Return the least energy of such schedules without a time limit; None if there is none.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from remat.graphs.families import unit_chain
    >>> chain = replace(unit_chain(2), cost_unit="us")
    >>> [least_energy(chain, 3, Machine.parse(f"rate=1MB/s,link-power={power}")) for power in ("0", "1", "9")]
    [5, 6, 6]
    """
    found = _EnergySearch(graph, budget, machine).run()
    return None if found is None else found.time


class _Search:
    def __init__(self, graph: ComputeGraph, budget: int, machine: Machine) -> None:
        if (graph.arrays.producers.counts > 1).any():
            raise ProblemError("the exhaustive search with a host has no accumulation buffers", "buffers")
        self.graph, self.budget, self.machine = graph, budget, machine
        self.ops = [graph.ops[op] for op in graph.arrays.order.tolist()]
        self.size = {tensor.name: tensor.size for tensor in graph.tensors}
        self.fixed = frozenset(graph.inputs)
        read = {name for op in self.ops for name in op.inputs}
        self.useful = (read | set(graph.outputs)) - self.fixed
        times = (dict(zip(graph.tensor_names, some, strict=True)) for some in machine.transfer_times(graph))
        self.write, self.read = times
        self.capacity = math.inf if machine.host is None else machine.host

    def run(self) -> LeastTime | None:
        """Search by A*; the costs of the ops not computed yet bound the time that is left."""
        start = _State(0, frozenset((name, 0) for name in self.graph.inputs), frozenset(), 0, 0)
        left = list(itertools.accumulate((op.cost for op in reversed(self.ops)), initial=0))[::-1]
        best, came = {start: 0}, dict[_State, tuple[_State, Step]]()
        heap = [(left[0], 0, start)]
        tick = itertools.count(1)
        goal: tuple[int, _State] | None = None
        while heap and (goal is None or heap[0][0] < goal[0]):
            estimate, _, state = heapq.heappop(heap)
            clock = best[state]
            if estimate > clock + left[state.done]:
                continue
            device = dict(state.device)
            if state.done == len(self.ops) and all(name in device for name in self.graph.outputs):
                arrived = clock + max(device.values(), default=0)
                if goal is None or arrived < goal[0]:
                    goal = arrived, state
            for step, wait, target in self._steps(state, device, dict(state.host)):
                if clock + wait < best.get(target, math.inf):
                    best[target] = clock + wait
                    came[target] = state, step
                    heapq.heappush(heap, (clock + wait + left[target.done], next(tick), target))
        if goal is None:
            return None
        steps, state = [], goal[1]
        while state in came:
            state, step = came[state]
            steps.append(step)
        return LeastTime(goal[0], Schedule.from_steps(reversed(steps), source="exhaustive search"))

    def _steps(self, state: _State, device: dict[str, int], host: dict[str, int]) -> Iterator[_Move]:
        """Yield each step that is possible, how long the device waits and works for it, and the state after it."""
        held = sum(self.size[name] for name in device)
        room = self.budget - held
        most = room if not state.freed else room - self.size[state.freed]  # what needs no more could be done before
        for j, op in enumerate(self.ops[: state.done + 1]):
            fresh = [name for name in op.outputs if name not in device]
            if not fresh and j < state.done:
                continue
            need = sum(self.size[name] for name in fresh) + op.workspace
            if need > room or (state.freed and need <= most) or not all(name in device for name in op.inputs):
                continue
            wait = max((device[name] for name in (*op.inputs, *op.outputs) if name in device), default=0) + op.cost
            later = state.after(wait)
            device_then = later.device | {(name, 0) for name in fresh}
            yield (
                ("compute", op.name), wait,
                later._replace(done=max(state.done, j + 1), device=device_then, freed=""),
            )  # fmt: skip
        for name, left in host.items():
            taken, need = self.read[name], self.size[name]
            if name not in device and taken is not None and need <= room and not (state.freed and need <= most):
                end = max(state.back, left) + taken
                out = state.out if self.machine.full_duplex else end
                device_then = state.device | {(name, end)}
                yield ("fetch", name), 0, state._replace(device=device_then, freed="", out=out, back=end)
        for name, left in device.items():
            if name not in self.fixed and name > state.freed:
                wait = max(left, host.get(name, 0))
                later = state.after(wait)
                gone = frozenset(pair for pair in later.device if pair[0] != name)
                yield ("free", name), wait, later._replace(device=gone, freed=name)
        if not state.freed:
            yield from self._host_steps(state, device, host)

    def _host_steps(self, state: _State, device: dict[str, int], host: dict[str, int]) -> Iterator[_Move]:
        """Yield the offloads and discards that are possible."""
        copied = sum(self.size[name] for name in host)
        for name in (name for name in device if name in self.useful and name not in host):
            taken = self.write[name]
            if taken is not None and copied + self.size[name] <= self.capacity:
                end = (state.out if self.machine.full_duplex else max(state.out, state.back)) + taken
                back = state.back if self.machine.full_duplex else end
                yield ("offload", name), 0, state._replace(host=state.host | {(name, end)}, out=end, back=back)
        for name, left in host.items() if self.capacity < math.inf else ():
            wait = max(left, device.get(name, 0))
            later = state.after(wait)
            kept = frozenset(pair for pair in later.host if pair[0] != name)
            yield ("discard", name), wait, later._replace(host=kept)


class _EnergySearch(_Search):
    """Search in which nothing takes time: the clock counts the energy."""

    def __init__(self, graph: ComputeGraph, budget: int, machine: Machine) -> None:
        rates = _open(machine.write_rate), _open(machine.read_rate)
        super().__init__(graph, budget, replace(machine, latency=0, write_rate=rates[0], read_rate=rates[1]))
        energies = machine.transfer_energies(graph)
        self.energy = {
            kind: dict(zip(graph.tensor_names, some, strict=True))
            for kind, some in zip(("offload", "fetch"), energies, strict=True)
        }

    def _steps(self, state: _State, device: dict[str, int], host: dict[str, int]) -> Iterator[_Move]:
        for step, wait, target in super()._steps(state, device, host):
            kind, name = step
            yield step, wait + self.energy.get(kind, {}).get(name, 0), target


def _open(rate: int | None) -> int | None:
    """Return an unlimited rate for a link; none if there is no link."""
    return 0 if rate == 0 else None
