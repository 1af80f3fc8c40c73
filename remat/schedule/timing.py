"""Times of the steps of a schedule on a machine: computes and two links that work at the same time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.runtime.arrays import Int
from remat.schedule.machine import Machine, on_device
from remat.schedule.schedule import StepKind
from remat.schedule.simulate import Simulation


@dataclass(frozen=True, eq=False)
class Timing:
    """Times in the cost unit of the graph.

    Attributes
    ----------
    start, end : int64 arrays, shape (steps,)
        When the work of each step begins and ends: of a compute on the device, of an offload or fetch on its link. For
        a free or discard, both are the time up to which the device waits.
    time : int
        Time until the last compute has ended and everything that was fetched has arrived.
    stall : int
        Part of it in which the device waits for transfers.
    """

    start: Int
    end: Int
    time: int
    stall: int

    def clock(self, kinds: NDArray[np.int8]) -> Int:
        """Return the time of the device at each step, whose kinds are given.

        A compute allocates when it starts, a transfer is issued when the steps before it are done.
        """
        own = (kinds == StepKind.OFFLOAD) | (kinds == StepKind.FETCH)
        ended = np.maximum.accumulate(np.where(own, 0, self.end))
        return np.maximum(np.concatenate([[0], ended[:-1]]), np.where(own, 0, self.start))[: len(kinds)]


def time_schedule(run: Simulation, machine: Machine) -> Timing:
    r"""Return the times of a valid schedule on a machine.

    Computes and transfers are issued in the order of the steps. The device does computes one after the other; each link
    does its transfers one after the other, and where it is not full duplex both directions share one link. The device
    is busy up to time :math:`c`, the links to the host and back up to :math:`d` and :math:`h`. The write of tensor
    :math:`t` ends at :math:`w_t`; by a fetch it arrives at :math:`a_t`.

    .. math::

        \text{compute}\ o &: c \leftarrow \max(c,\ \max_{t\ \text{used by}\ o} a_t) + \text{cost}(o) \\
        \text{offload}\ t &: d \leftarrow \max(c, d) + \text{write time}(t);\quad w_t \leftarrow d \\
        \text{fetch}\ t   &: h \leftarrow \max(c, h, w_t) + \text{read time}(t);\quad a_t \leftarrow h \\
        \text{free}\ t    &: c \leftarrow \max(c, w_t, a_t) \\
        \text{discard}\ t &: c \leftarrow \max(c, w_t, a_t)

    An op that writes an output in place of an input also waits for the write of that input. So the bytes on the device
    depend on the order of the steps alone, whatever the rates.

    Raises
    ------
    ProblemError
        If the costs are no times, or the schedule moves a tensor where the machine has no link.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import Schedule, simulate
    >>> graph = replace(unit_chain(2), cost_unit="us")
    >>> steps = [("compute", "f0"), ("compute", "f1"), ("offload", "f0"), ("free", "f0"), ("compute", "loss")]
    >>> steps += [("compute", "g1"), ("fetch", "f0"), ("compute", "g0")]
    >>> timing = time_schedule(simulate(graph, Schedule.from_steps(steps)), Machine(500_000, 10**6))
    >>> timing.time, timing.stall, timing.start.tolist()
    (8, 3, [0, 1, 2, 4, 4, 5, 6, 7])
    """
    write, read = ([time or 0 for time in times] for times in machine.transfer_times(run.graph))  # 0: cannot be moved
    if (missing := first_without_link(run, machine)) is not None:
        raise ProblemError(missing[1], "no-link")
    durations = Durations(run.graph.arrays.cost.tolist(), write, read)
    return time_streams(run, durations, full_duplex=machine.full_duplex)


@dataclass(frozen=True)
class Durations:
    """Times of computes and transfers, in any unit: lists by op and by tensor."""

    compute: list[int]
    write: list[int]
    read: list[int]


def time_streams(run: Simulation, durations: Durations, *, full_duplex: bool) -> Timing:
    """Return the times of a valid schedule by the rules of :func:`time_schedule`, in the unit of the durations."""
    arrays, cost = run.graph.arrays, durations.compute
    touched = [
        (*reads, *writes)
        for reads, writes in zip(arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists(), strict=True)
    ]
    overwritten: dict[int, list[int]] = defaultdict(list)
    for step, _, source in run.in_place.T.tolist():
        overwritten[step].append(source)
    frees: dict[int, list[int]] = defaultdict(list)  # implied frees, after their step
    for step, tensor in zip(run.free_step.tolist(), run.free_tensor.tolist(), strict=True):
        if run.kinds[step] != StepKind.FREE:
            frees[step].append(tensor)

    device, links = 0, [0, 0]
    out, back = 0, int(full_duplex)  # positions in `links`
    written: dict[int, int] = {}
    arrival: dict[int, int] = {}  # of tensors that nothing has waited for
    times: list[tuple[int, int]] = []

    def wait(tensor: int) -> None:
        nonlocal device
        device = max(device, written.get(tensor, 0), arrival.pop(tensor, 0))

    steps = zip(run.kinds.tolist(), run.ops.tolist(), run.moved.tolist(), strict=True)
    for step, (kind, op, tensor) in enumerate(steps):
        start = device
        if kind == StepKind.COMPUTE:
            device = max([device, *(arrival.pop(used) for used in arrival.keys() & touched[op])])
            for source in overwritten.get(step, ()):
                wait(source)
            start = device
            device = end = start + cost[op]
        elif kind == StepKind.OFFLOAD:
            start = max(device, links[out])
            written[tensor] = links[out] = end = start + durations.write[tensor]
        elif kind == StepKind.FETCH:
            start = max(device, links[back], written.get(tensor, 0))
            arrival[tensor] = links[back] = end = start + durations.read[tensor]
        else:
            wait(tensor)
            start = end = device
        times.append((start, end))
        for freed in frees.get(step, ()):
            wait(freed)
    last = max([device, *arrival.values()])
    work = sum(each * times for each, times in zip(cost, run.counts.tolist(), strict=True))
    start_times, end_times = np.array(times, dtype=np.int64).reshape(-1, 2).T
    return Timing(start_times, end_times, last, last - work)


def first_without_link(run: Simulation, machine: Machine) -> tuple[int, str] | None:
    """Return the first impossible transfer and a message about it; None if there is none.

    The machine may have no such link, or something outside the graph holds the tensor.
    """
    links = {int(StepKind.OFFLOAD): ("to", machine.write_rate), int(StepKind.FETCH): ("from", machine.read_rate)}
    stay = on_device(run.graph)
    for step in np.flatnonzero(np.isin(run.kinds, list(links)) & (run.moved >= 0)).tolist():
        name, (way, rate) = run.graph.tensor_names[int(run.moved[step])], links[int(run.kinds[step])]
        if name in stay or rate == 0:
            reason = "something outside the graph holds it" if name in stay else "the machine has no such link"
            return step, f"step {step} moves tensor {name!r} {way} the host, but {reason}"
    return None
