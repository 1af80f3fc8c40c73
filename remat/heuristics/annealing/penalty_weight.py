"""How much memory above the budget weighs against cost, along one round of annealing."""

from __future__ import annotations


class PenaltyWeight:
    """The weight of memory above the budget along one round."""

    def __init__(self, per_byte: float, met: tuple[float, float]) -> None:
        self.per_byte, self.met = per_byte, met
        self.least, self.most = per_byte / 100, per_byte * 100

    def follow(self, met: float) -> None:
        """Adapt to the share of moves that met the budget."""
        if met < self.met[0]:
            self.per_byte = min(self.most, self.per_byte * 1.25)
        elif met > self.met[1]:
            self.per_byte = max(self.least, self.per_byte / 1.25)
