"""Bytes that a host can hold for a schedule while an op runs, limited by its links."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.problem import Problem
from remat.runtime.arrays import Int


class LinkRoom(NamedTuple):
    r"""Limit of what a host holds at each first compute, of schedules that take less than a known time.

    Let :math:`T` be that time, :math:`C` the base cost, and :math:`b_k` the cost of the first computes before position
    :math:`k`. The link has the rate :math:`w` to the host and :math:`r` back. Tensors that are on the host alone at
    position :math:`k`, and are fetched later, take at most

    .. math:: \min\bigl(w\,(T - C + b_k),\; r\,(T - b_k)\bigr) \text{ bytes}.

    *Proof.* The time before the first compute at :math:`k` begins is at least :math:`b_k`, and the time after that at
    least :math:`C - b_k`; both together are less than :math:`T`. Such a tensor has been written as a whole by then: a
    `free` waits for its write. It is fetched as a whole later: a `fetch` in progress has its bytes on the device. ∎

    So the stage relaxation holds for these schedules if each event has this room in addition. Then ``live[j, t]``
    states that a tensor is on the device, or on the host and fetched later. Such a tensor was live at the event before,
    or its writer ran in between. A tensor larger than the room in addition is on the device.

    Attributes
    ----------
    room : int64 array, shape (ops,)
        Bytes by position in the reference order.
    below : int
        Time that the schedules undercut.
    """

    room: Int
    below: int

    @staticmethod
    def applies(problem: Problem) -> bool:
        """Return True if a problem has a machine with limited rates both ways."""
        machine = problem.machine
        return machine is not None and machine.write_rate is not None and machine.read_rate is not None

    @classmethod
    def of(cls, problem: Problem, below: int) -> LinkRoom:
        """Return the room of a problem whose machine has limited rates both ways.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from remat.graphs.families import unit_chain
        >>> from remat.schedule import Machine
        >>> graph = replace(unit_chain(2), cost_unit="us")
        >>> LinkRoom.of(Problem(graph, 3, machine=Machine(1_000_000, 2_000_000)), 7).room.tolist()
        [2, 3, 4, 5, 6]
        """
        arrays, machine = problem.graph.arrays, problem.machine
        assert machine is not None and machine.write_rate is not None and machine.read_rate is not None
        ticks = machine.per_second(problem.graph)
        cost = arrays.cost[arrays.order]
        before = np.cumsum(cost) - cost
        written = (below - problem.graph.base_cost + before) * machine.write_rate / ticks
        read = (below - before) * machine.read_rate / ticks
        return cls(np.ceil(np.minimum(written, read)).astype(np.int64), below)
