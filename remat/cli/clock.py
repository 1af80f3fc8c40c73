"""Clock of a command: time limits count from the start of the process, including imports and reading."""

from __future__ import annotations

import gc
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remat.runtime.deadline import Deadline

#: Largest share of a limit that the start of the process uses up, so that the shortest limits leave some time.
SHARE = 0.5

#: Allocations between two garbage collections. Objects created before the search stay alive, and the default frequency
#: takes a tenth of the start-up time.
COLLECT = 200_000

_began: list[float] = []


def begin() -> None:
    """Record the start of this process; only for a process with a single command."""
    _began[:] = [time.monotonic() - time.process_time()]
    gc.set_threshold(COLLECT)


def from_start(deadline: Deadline) -> Deadline:
    """Return a new deadline with its clock set back to the start of the process, if known."""
    if not _began or not math.isfinite(deadline.seconds):
        return deadline
    from remat.runtime.deadline import Deadline

    spent = min(max(0.0, deadline.started - _began[0]), SHARE * deadline.seconds)
    return Deadline(deadline.seconds, deadline.started - spent)
