"""Time limit of one run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Deadline:
    """Seconds allowed from `started`, a value of ``time.monotonic()``; infinite for no limit."""

    seconds: float = math.inf
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def remaining(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def expired(self) -> bool:
        """True once no time is left."""
        return self.remaining <= 0
