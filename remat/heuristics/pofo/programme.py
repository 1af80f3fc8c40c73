"""Dynamic programme of chains whose saved values are kept or moved to the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from remat.heuristics.rotor.dynamic_programme import Programme, Step
from remat.runtime.arrays import Float, Int


class Choice(NamedTuple):
    """First step of a chain: block s by an option, or blocks s .. k − 1 forward without saving."""

    option: int
    """-1: without saving."""
    following: int
    """The block from which the chain continues."""
    moved: bool
    """True if what later blocks need of these is moved to the host."""


@dataclass(eq=False)
class OffloadProgramme:
    r"""Least cost of reversing a chain whose saved values are kept or moved, for all amounts of memory.

    Let :math:`C` be Rotor's table (:class:`~remat.heuristics.rotor.dynamic_programme.Programme`), T the last block, and
    E(s, m, i) the least cost of running blocks s .. T forward and backward in m slots, if i bytes of their input are on
    the device only while block s, or the blocks recomputed with it, runs. Per byte moved, link time is paid p times:

    .. math::
        E(s, m, i) = \min \begin{cases}
            c_{s,o} + E(s + 1, m - w_{s,o} - b_{s,s+1,T}, 0) & \text{kept} \\
            c_{s,o} + p\,(w_{s,o} + b_{s,s+1,T}) + E(s + 1, m, b_{s,s+1,s+1}) & \text{moved} \\
            \sum_{j=s}^{k-1} u_j + E(k, m - b_{s,k,T}, 0) + C(s, k - 1, m - i) & \text{kept} \\
            \sum_{j=s}^{k-1} u_j + p\,b_{s,k,T} + E(k, m, b_{s,k,k}) + C(s, k - 1, m - i) & \text{moved}
        \end{cases}

    with the conditions on m - i of Rotor's programme. The first pass decides what is moved; blocks that run again keep
    what they save. With p = 0 links are free, and with a large p it is Rotor.

    Notes
    -----
    After POFO (Beaumont, Eyraud-Dubois, Shilova, "Efficient combination of rematerialization and offloading for
    training DNNs", NeurIPS 2021), which also combines one pass that offloads with Rotor's recomputations. Here link
    time has a price, and stalls are found by evaluating the program.
    """

    programme: Programme
    price: float
    """Cost units per byte."""
    _known: dict[tuple[int, int], tuple[Float, Int, list[Choice]]] = field(default_factory=dict)

    def least(self, s: int, given: int) -> tuple[Float, Int, list[Choice]]:
        """Return E(s, m, given) for all m, the number of the first step for each, and all first steps."""
        if (s, given) not in self._known:
            self._known[s, given] = self._solved(s, given)
        return self._known[s, given]

    def _later(self, values: Float, size: int) -> Float:
        """Return values for m less the slots of `size` bytes; infinite where there are too few."""
        slots = self._slots(size)
        result = np.full(len(values), np.inf)
        if slots < len(values):
            result[slots:] = values[: len(values) - slots]
        return result

    def _solved(self, s: int, given: int) -> tuple[Float, Int, list[Choice]]:
        table, chain = self.programme.table, self.programme.chain
        last = chain.num_blocks - 1
        if s == last:
            return self._later(table[s, s], given), np.zeros(table.shape[2], dtype=np.int64), []
        choices: list[Choice] = []
        costs: list[Float] = []
        around = int(chain.above[last + 1])

        def offer(option: int, k: int, held: int, cost: Float, peak: int) -> None:
            passed = int(chain.between[s, k, k])
            for moved in (False, True):
                rest = self.least(k, passed)[0] if moved else self._later(self.least(k, 0)[0], held)
                total = cost + rest + (self.price * held if moved else 0)
                total[: self._slots(peak + given)] = np.inf
                choices.append(Choice(option, k, moved))
                costs.append(total)

        nothing = np.zeros(table.shape[2])
        for number, option in enumerate(chain.options[s]):
            peak = max(around + option.forward_peak, option.backward_peak)
            offer(number, s + 1, option.saved + int(chain.between[s, s + 1, last]), nothing + option.cost, peak)
        swept, peak = 0.0, 0
        for k in range(s + 1, last + 1):
            swept += float(chain.sweep_cost[k - 1])
            peak = max(peak, int(chain.between[s, k - 1, last] if k - 1 > s else 0) + int(chain.sweep_peak[k - 1]))
            again = self._later(table[s, k - 1], given)
            offer(-1, k, int(chain.between[s, k, last]), swept + again, around + peak)
        found = np.array(costs)
        best = found.argmin(axis=0)
        return found[best, np.arange(table.shape[2])], best, choices

    def plan(self, slots: int) -> tuple[list[Step], list[int]]:
        """Return the steps of the plan with this number of slots, and the blocks of which values are moved.

        No steps: the slots do not suffice.
        """
        programme, last = self.programme, self.programme.chain.num_blocks - 1
        if not np.isfinite(self.least(0, 0)[0][slots]):
            return [], []
        head: list[Step] = []
        tail: list[list[Step]] = []
        moved: list[int] = []
        s, given, m = 0, 0, slots
        while s < last:
            _, best, choices = self.least(s, given)
            option, k, moves = choices[int(best[m])]
            held = int(programme.chain.between[s, k, last])
            if option >= 0:
                head.append(("forward", s, option))
                tail.append([("backward", s, option)])
                held += programme.chain.options[s][option].saved
            else:
                head.append(("sweep", s, k - 1))
                tail.append(list(programme.plan(m - self._slots(given), s, k - 1)))
            if moves:
                moved += range(s, k)
            given = int(programme.chain.between[s, k, k]) if moves else 0
            m -= 0 if moves else self._slots(held)
            s = k
        head += programme.plan(m - self._slots(given), last, last)
        return [*head, *(step for steps in reversed(tail) for step in steps)], moved

    def _slots(self, size: int) -> int:
        """Return the slots that some bytes take."""
        return -(-size // self.programme.unit)
