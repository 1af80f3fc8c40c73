"""Published overheads on instances of the library; none of these schedules is public.

Sources: Moccasin: Bartan et al., ICML 2023, table 2 (input order, at most two computes per op), with Checkmate's MILP
as run there (input order, staged); FastSA: Imanishi et al., NeurIPS 2023 (any order).
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    """One number: overhead in % as printed, and seconds to the best schedule if printed."""

    who: str
    overhead: float
    seconds: float | None = None
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.who} {self.overhead:g}{self.remark}"


#: Printed peak above the budget.
OVER = " (over budget)"
#: Rules of order.
FIXED, FREE = ("Checkmate", "Moccasin"), ("FastSA",)

#: By instance and budget in %. FCN8 with costs from its layers is Moccasin's CM1, ResNet-50 with published costs CM2.
PUBLISHED: dict[tuple[str, int], tuple[tuple[Any, ...], ...]] = {
    ("rl_g1", 90): (("Checkmate", 0.8, 18.5), ("Moccasin", 0.8, 9.3), ("FastSA", 0.0, 11.7)),
    ("rl_g1", 80): (("Checkmate", 2.3, 22.7), ("Moccasin", 2.3, 9.5), ("FastSA", 0.3, 11.5)),
    ("rl_g1", 70): (("FastSA", 2.2, 12, OVER),),
    ("rl_g2", 90): (("Checkmate", 0.9, 685), ("Moccasin", 0.9, 55.0), ("FastSA", 0.0, 15)),
    ("rl_g2", 80): (("Moccasin", 4.9, 639.5), ("FastSA", 0.0, 15)),
    ("rl_g2", 70): (("FastSA", 2.6, 14.5),),
    ("rl_g3", 90): (("Moccasin", 0.7, 1803), ("FastSA", 0.03, 21)),
    ("rl_g3", 80): (("Moccasin", 3.4, 1805), ("FastSA", 2.3, 21)),
    ("rl_g3", 70): (("FastSA", 4.8, 21, OVER),),
    ("rl_g4", 90): (("Moccasin", 0.7, 3613), ("FastSA", 0.4, 36)),
    ("rl_g4", 80): (("Moccasin", 3.4, 3612), ("FastSA", 2.5, 36)),
    ("rl_g4", 70): (("FastSA", 7.4, 36.5),),
    ("fcn8", 90): (("Checkmate", 0.0), ("Moccasin", 0.0), ("FastSA", 0.1)),
    ("fcn8", 80): (("Checkmate", 0.1, 6), ("Moccasin", 0.1, 3.1), ("FastSA", 0.1)),
    ("fcn8", 70): (("FastSA", 3.0),),
    ("resnet50-profile", 90): (("Checkmate", 0.1, 434), ("Moccasin", 0.2, 65), ("FastSA", 0.2)),
    ("resnet50-profile", 80): (("Checkmate", 0.3, 485), ("Moccasin", 0.3, 69), ("FastSA", 0.4)),
    ("resnet50-profile", 70): (("FastSA", 0.8),),
}


def published(instance: str, order: str, percent: int) -> list[Published]:
    """Return the numbers of a problem, with the same rule of order."""
    found = [Published(*one) for one in PUBLISHED.get((instance, percent), ())]
    return [one for one in found if one.who in (FIXED if order == "fixed" else FREE)]
