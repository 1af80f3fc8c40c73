"""Published overheads on instances of the scoreboard, as facts; none of these schedules is public.

Sources: Moccasin: Bartan et al., ICML 2023, table 2 (input order, at most two computes per op), with Checkmate's MILP
as run there (input order, staged); FastSA: Imanishi et al., NeurIPS 2023 (any order).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One number: overhead in %, as printed, and seconds to the best schedule where they are printed."""

    who: str
    order: str
    overhead: float
    seconds: float | None = None
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.who} {self.overhead:g}{self.remark}"


def _moccasin(overhead: float, seconds: float) -> Published:
    return Published("Moccasin", "fixed", overhead, seconds)


def _checkmate(overhead: float, seconds: float | None = None) -> Published:
    return Published("Checkmate", "fixed", overhead, seconds)


def _fastsa(overhead: float, seconds: float | None = None, remark: str = "") -> Published:
    return Published("FastSA", "free", overhead, seconds, remark)


#: Printed peak above the budget.
OVER = " (over budget)"

#: By instance and budget in %. FCN8 with costs from its layers is Moccasin's CM1.
PUBLISHED: dict[tuple[str, int], tuple[Published, ...]] = {
    ("rl_g1", 90): (_checkmate(0.8, 18.5), _moccasin(0.8, 9.3), _fastsa(0.0, 11.7)),
    ("rl_g1", 80): (_checkmate(2.3, 22.7), _moccasin(2.3, 9.5), _fastsa(0.3, 11.5)),
    ("rl_g1", 70): (_fastsa(2.2, 12, OVER),),
    ("rl_g2", 90): (_checkmate(0.9, 685), _moccasin(0.9, 55.0), _fastsa(0.0, 15)),
    ("rl_g2", 80): (_moccasin(4.9, 639.5), _fastsa(0.0, 15)),
    ("rl_g2", 70): (_fastsa(2.6, 14.5),),
    ("rl_g3", 90): (_moccasin(0.7, 1803), _fastsa(0.03, 21)),
    ("rl_g3", 80): (_moccasin(3.4, 1805), _fastsa(2.3, 21)),
    ("rl_g3", 70): (_fastsa(4.8, 21, OVER),),
    ("rl_g4", 90): (_moccasin(0.7, 3613), _fastsa(0.4, 36)),
    ("rl_g4", 80): (_moccasin(3.4, 3612), _fastsa(2.5, 36)),
    ("rl_g4", 70): (_fastsa(7.4, 36.5),),
    ("fcn8", 90): (_checkmate(0.0), Published("Moccasin", "fixed", 0.0), _fastsa(0.1)),
    ("fcn8", 80): (_checkmate(0.1, 6), _moccasin(0.1, 3.1), _fastsa(0.1)),
    ("fcn8", 70): (_fastsa(3.0),),
}


def published(instance: str, order: str, percent: int) -> tuple[Published, ...]:
    """The numbers that stand beside a cell: those of the same rule of order."""
    return tuple(one for one in PUBLISHED.get((instance, percent), ()) if one.order == order)
