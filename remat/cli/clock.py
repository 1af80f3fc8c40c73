"""The clock of a command: a time limit counts from the start of the process, imports and reading included."""

from __future__ import annotations

import gc
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remat.deadline import Deadline

#: Share of a limit that the start of the process takes from it at most: the shortest would have nothing left.
SHARE = 0.5

#: Objects made between two searches for garbage. What a command makes before its search begins stays, and looking
#: through it as often as Python does by default takes a tenth of the start.
COLLECT = 200_000

_began: list[float] = []


def begin() -> None:
    """Take note of when this process began; only for one that runs a single command."""
    _began[:] = [time.monotonic() - time.process_time()]
    gc.set_threshold(COLLECT)


def from_start(deadline: Deadline) -> Deadline:
    """A deadline that was made just now, with the clock put back to the start of the process where that is known."""
    if not _began or not math.isfinite(deadline.seconds):
        return deadline
    from remat.deadline import Deadline

    spent = min(max(0.0, deadline.started - _began[0]), SHARE * deadline.seconds)
    return Deadline(deadline.seconds, deadline.started - spent)
