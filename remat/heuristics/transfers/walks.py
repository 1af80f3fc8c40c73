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
#: Moves between the first checks of the clock, and seconds between checks.
BATCH, CHECK_INTERVAL = 100, 0.05
#: First and last temperatures of rounds, as shares of the mean cost of an op; the first ones take turns. On ResNet-50
#: at 20 %, first ones of 0.12 and 0.6 gave 28.1 and 27.7 % overhead in 8 s of processor time, 0.024 gave 30.2 %.
HOT, COLD = (0.1, 0.5, 0.02, 2.0), 0.003
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
        choices = state.copy()
        self._walk = Walk(
            np.zeros(3, dtype=np.int64), np.full(1, -1, dtype=np.int64), choices.runs, choices.num_runs,
            choices.fetched, choices.num_fetches, np.zeros(STACK, dtype=np.int64),
        )  # fmt: skip
        base = max(1, state.problem.graph.base_cost)
        self.base = base
        self.penalty = PenaltyWeight(PENALTY * base / max(1, int(state.net.size.sum())), MET, STEP, RANGE)
        self.slices = Slices(BATCH, 1_000_000, CHECK_INTERVAL)
        self.rounds = 0
        """Rounds that have begun."""

    @property
    def best(self) -> int | None:
        """Least time without excess in this round; None: none found."""
        return int(self._walk.best[0]) if self._walk.best[0] >= 0 else None

    @property
    def choices(self) -> Choices:
        """Best choices of this round."""
        walk = self._walk
        return type(self.state.choices)(walk.best_runs, walk.best_num_runs, walk.best_fetched, walk.best_num_fetches)

    def restart(self) -> None:
        """Begin a round from the choices of the state, also its best ones if they are within the budget."""
        from remat.heuristics.transfers.program_kernel import LINKS

        self.rounds += 1
        value = self.state.evaluate()
        self._walk.current[:] = value.time, value.excess, self.state.program.number[LINKS]
        self._walk.best[0] = -1
        if value.excess == 0:
            self._walk.best[0] = value.time
            copy_choices(self.state.choices, self.choices)

    def temperature(self, done: float) -> float:
        """Return the temperature after a share of the round."""
        hot, mean = HOT[(self.rounds - 1) % len(HOT)], self.base / max(1, len(self.state.net.cost))
        return float(mean * hot * (COLD / hot) ** done)

    def advance(self, done: float, moves: int | None = None) -> int:
        """Make some moves after a share of the round; return their number."""
        count = self.slices.amount if moves is None else min(moves, self.slices.amount)
        with self.slices:
            met = self.batch(np.array([self.temperature(done), self.penalty.per_byte, AGAIN, LINK]), count)
        self.penalty.follow(met)
        return count

    def batch(self, energy: NDArray[np.float64], moves: int) -> float:
        """Make moves at one temperature; return the share of states without excess."""
        from remat.heuristics.transfers.moves_kernel import anneal

        state, self._seed = self.state, self._seed + 1
        limits = np.array([self._seed, moves])
        return float(anneal(state.net, state.choices, state.program, state.prices, self._walk, energy, limits))
