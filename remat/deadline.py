"""One deadline for building and solving together."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from remat.interruption import interrupted


@dataclass(frozen=True)
class Deadline:
    """A point in time after which work must stop; an interruption (Ctrl-C) is one at once.

    Attributes
    ----------
    seconds : float
        Allowed from `started`; infinite for no deadline.
    started : float
        ``time.monotonic()`` when the clock began to run.
    """

    seconds: float = math.inf
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """From now on; None: never."""
        return cls(math.inf if seconds is None else float(seconds))

    @property
    def elapsed(self) -> float:
        """Seconds since the clock began."""
        return time.monotonic() - self.started

    @property
    def remaining(self) -> float:
        """Seconds left, not below 0; infinite without a deadline; 0 after an interruption."""
        return 0.0 if interrupted() else max(0.0, self.seconds - self.elapsed)

    @property
    def expired(self) -> bool:
        """Whether no time is left, or somebody has interrupted the work."""
        return self.remaining <= 0

    def earlier(self, seconds: float) -> Deadline:
        """The earlier of this deadline and `seconds` from now, on the same clock."""
        return Deadline(min(self.seconds, self.elapsed + seconds), self.started)
