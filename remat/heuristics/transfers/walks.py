"""Annealing walks over choices, each evaluated exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.heuristics.transfers.state import State, copy_choices
from remat.heuristics.walks import PenaltyWeight
from remat.runtime.deadline import Slices

if TYPE_CHECKING:
    from remat.heuristics.transfers.program_kernel import Choices

#: Room for recursion in a move.
STACK = 256
#: Moves between the first checks of the clock, and seconds between checks. The price of a byte above the budget changes
#: as often: with 0.05 s, rounds of one second often ended before it was high enough to lead back within the budget.
BATCH, CHECK_INTERVAL = 100, 0.005
#: First temperatures of rounds that improve choices, as shares of the mean cost of an op.
IMPROVING = (0.1, 0.5, 0.02)
#: The same of rounds that explore, and the price of time that the device waits, relative to that of its computes. On
#: U-Net at 35 % (24 % overhead at best), 9 of 24 rounds of one second with a temperature of 8 and prices of 3 and 10
#: found less than 33 %, and 1 of 20 rounds with temperatures of 0.1 and 0.5 and no such price.
EXPLORING = (2.0, 4.0), (8.0, 10.0), (4.0, 1.0), (8.0, 4.0)
#: Last temperature.
COLD = 0.003
#: Probability that a recomputation also provides an input that would be held for it.
AGAIN = 0.4
#: Price of time on a link, relative to time of the device: it keeps out useless transfers.
LINK = 0.02
#: First price of a byte above the budget at one step, in base costs for the bytes of all tensors.
PENALTY = 0.5
#: Range of the share of states within the budget, outside which that price rises or falls, the factor of each change,
#: and of all together.
MET, STEP, RANGE = (0.2, 0.5), 1.1, 1e3


class Annealer:
    """Annealing walk over the choices of a state, in rounds that begin with :meth:`restart`.

    Parameters
    ----------
    state : State
        The walk changes its choices.
    seed : int
        Of everything random.
    """

    def __init__(self, state: State, seed: int) -> None:
        from remat.heuristics.transfers.moves_kernel import Walk

        self.state, self._seed = state, seed
        best, stack = np.full(1, -1, dtype=np.int64), np.zeros(STACK, dtype=np.int64)
        self._walk = Walk(np.zeros(4, dtype=np.int64), best, state.copy(), stack)
        base = max(1, state.problem.graph.base_cost)
        self.base = base
        self.slices = Slices(BATCH, 1_000_000, CHECK_INTERVAL)
        self._known_penalty = self._first_penalty()
        """Price of a byte above the budget after the last round that improved choices."""
        self.rounds = 0
        """Rounds that have begun."""

    def _first_penalty(self) -> PenaltyWeight:
        """Return the price of a byte above the budget at the beginning of a walk."""
        return PenaltyWeight(PENALTY * self.base / max(1, int(self.state.net.size.sum())), MET, STEP, RANGE)

    @property
    def best(self) -> int | None:
        """Least time without excess in this round; None: none found."""
        return int(self._walk.best[0]) if self._walk.best[0] >= 0 else None

    @property
    def choices(self) -> Choices:
        """Best choices of this round."""
        return self._walk.choices

    def restart(self, *, explores: bool) -> None:
        """Begin a round from the choices of the state; they count as its best ones unless it explores."""
        from remat.heuristics.transfers.program_kernel import COMPUTING, LINKS

        self.rounds += 1
        if explores:
            self.penalty = self._first_penalty()
            self._hot, self._waiting = EXPLORING[self.rounds % len(EXPLORING)]
        else:
            self.penalty = self._known_penalty
            self._hot, self._waiting = IMPROVING[self.rounds % len(IMPROVING)], 1.0
        value = self.state.evaluate()
        number = self.state.program.number
        self._walk.current[:] = value.time, value.excess, number[LINKS], number[COMPUTING]
        self._walk.best[0] = -1
        if value.excess == 0 and not explores:
            self._walk.best[0] = value.time
            copy_choices(self.state.choices, self.choices)

    def temperature(self, done: float) -> float:
        """Return the temperature after a share of the round."""
        hot, mean = self._hot, self.base / max(1, len(self.state.net.cost))
        return float(mean * hot * (COLD / hot) ** done)

    def advance(self, done: float, moves: int | None = None) -> int:
        """Make some moves after a share of the round; return their number."""
        count = self.slices.amount if moves is None else min(moves, self.slices.amount)
        with self.slices:
            energy = self.temperature(done), self.penalty.per_byte, AGAIN, LINK, self._waiting
            met = self.batch(np.array(energy), count)
        self.penalty.follow(met)
        return count

    def batch(self, energy: NDArray[np.float64], moves: int) -> float:
        """Make moves at one temperature; return the share of states without excess."""
        from remat.heuristics.transfers.moves_kernel import anneal

        state, self._seed = self.state, self._seed + 1
        limits = np.array([self._seed, moves])
        return float(anneal(state.net, state.choices, state.program, state.prices, self._walk, energy, limits))
