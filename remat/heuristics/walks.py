"""Parts of searches by annealing walks: the weight of excess memory, and walks in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor


class PenaltyWeight:
    """Weight of memory above the budget, adapted during a walk.

    Parameters
    ----------
    per_byte : float
        First weight.
    met : tuple of float
        Least and largest share of moves within the budget, outside which the weight rises or falls.
    step : float
        Factor of each change.
    most : float
        Largest factor of all changes together, up or down.

    Examples
    --------
    >>> weight = PenaltyWeight(2.0, (0.2, 0.5), 1.5, 2.0)
    >>> weight.follow(0.1)
    >>> weight.per_byte
    3.0
    >>> weight.follow(0.1)
    >>> weight.per_byte
    4.0
    """

    def __init__(self, per_byte: float, met: tuple[float, float], step: float, most: float) -> None:
        self.per_byte, self.met, self.step = per_byte, met, step
        self.least, self.most = per_byte / most, per_byte * most

    def follow(self, met: float) -> None:
        """Adapt to the share of moves within the budget."""
        if met < self.met[0]:
            self.per_byte = min(self.most, self.per_byte * self.step)
        elif met > self.met[1]:
            self.per_byte = max(self.least, self.per_byte / self.step)


def run_walks(walks: Iterable[Callable[[], object]], threads: int, stop: Callable[[], object]) -> None:
    """Run walks in threads until all end; call `stop`, which must end them, after the last one or an exception."""
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(walk) for walk in walks]
        try:
            for thread in running:
                thread.result()
        finally:  # also after Ctrl-C
            stop()
