"""One deadline for building and solving together, checked between bounded pieces of work."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from remat.runtime.interruption import interrupted

T = TypeVar("T")

#: Pieces of work of some microseconds each between two checks of the clock.
PIECES = 256


#: Clock of deadlines: wall time, or processor time of this process.
Clock = Literal["wall", "processor"]

_clock: list[Callable[[], float]] = [time.monotonic]


def now() -> float:
    """Return the seconds of the clock of deadlines."""
    return _clock[-1]()


@contextlib.contextmanager
def deadlines_by(clock: Clock) -> Iterator[None]:
    """Let deadlines that start in the block count wall time, or processor time of this process.

    With processor time, limits depend little on other work on the machine. Waiting and child processes take no time.
    HiGHS and CP-SAT are stopped at the deadline; other solvers, which have clocks of their own, may stop earlier.

    Examples
    --------
    >>> with deadlines_by("processor"):
    ...     deadline = Deadline.after(60)
    ...     time.sleep(0.2)
    ...     deadline.elapsed < 0.1
    True
    """
    _clock.append(time.process_time if clock == "processor" else time.monotonic)
    try:
        yield
    finally:
        _clock.pop()


class OverdueError(TimeoutError):
    """Raised when work exceeds its deadline."""


@dataclass(frozen=True)
class Deadline:
    """A point in time after which work must stop; an interruption (Ctrl-C) expires it at once.

    Work is never aborted from outside. It runs in pieces of less than a second each and checks the clock between them,
    by :meth:`check` or :meth:`each`.

    Attributes
    ----------
    seconds : float
        Seconds allowed from `started`; infinite for no deadline.
    started : float
        Reading of the clock (:func:`now`) when it began to run.
    """

    seconds: float = math.inf
    started: float = field(default_factory=now)

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return a deadline that many seconds from now; None: it never expires."""
        return cls(math.inf if seconds is None else float(seconds))

    @classmethod
    def of(cls, given: float | Deadline | None) -> Deadline:
        """Return `given` itself if it is a deadline, otherwise one :meth:`after` that many seconds."""
        return given if isinstance(given, Deadline) else cls.after(given)

    @property
    def elapsed(self) -> float:
        """Seconds since the clock started."""
        return now() - self.started

    @property
    def remaining(self) -> float:
        """Seconds left, not below 0; infinite without a deadline; 0 after an interruption."""
        return 0.0 if interrupted() else max(0.0, self.seconds - self.elapsed)

    @property
    def wall_seconds(self) -> float:
        """Time limit for a solver that counts wall time and is also stopped at the deadline; infinite on another clock.

        Examples
        --------
        >>> with deadlines_by("processor"):
        ...     Deadline.after(60).wall_seconds
        inf
        """
        return self.remaining if _clock[-1] is time.monotonic else math.inf

    @property
    def expired(self) -> bool:
        """True when no time is left or the work is interrupted."""
        return self.remaining <= 0

    def check(self) -> None:
        """Require that time is left.

        Raises
        ------
        OverdueError
            If no time is left, or the work is interrupted.

        Examples
        --------
        >>> Deadline.after(60).check()
        >>> Deadline.after(0).check()
        Traceback (most recent call last):
        ...
        remat.runtime.deadline.OverdueError: no time is left
        """
        if self.expired:
            raise OverdueError("interrupted" if interrupted() else "no time is left")

    def each(self, items: Iterable[T], pieces: int = PIECES) -> Iterator[T]:
        """Yield the items, and check the clock before every `pieces` of them.

        Raises
        ------
        OverdueError
            If no time is left.
        """
        for number, item in enumerate(items):
            if number % pieces == 0:
                self.check()
            yield item

    def earlier(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and `seconds` from now, on the same clock."""
        return Deadline(min(self.seconds, self.elapsed + seconds), self.started)

    def share(self, share: float, endless: float = math.inf) -> Deadline:
        """Return the earlier of this deadline and a share of the time left, or of `endless` seconds if unlimited.

        Examples
        --------
        >>> round(Deadline.after(60).share(0.5).remaining), round(Deadline().share(0.5, endless=9).remaining)
        (30, 9)
        """
        remaining = self.remaining
        return self.earlier(share * remaining if math.isfinite(remaining) else endless)

    def until(self, done: Callable[[], bool]) -> Deadline:
        """Return this deadline, which also expires once `done()` returns true.

        Deadlines derived from it and work in other processes ignore `done`. It is called often, from any thread.

        Examples
        --------
        >>> Deadline.after(60).until(lambda: True).expired
        True
        """
        return _Until(self.seconds, self.started, done)


class Slices:
    """Amount of work for a compiled function between two checks of the clock, adapted to the time of the last slice.

    Parameters
    ----------
    first, most : int
        First and largest amount of work, in units of the caller.
    seconds : float
        The amount doubles after a slice that took less, and halves otherwise.

    Examples
    --------
    >>> slices = Slices(1000, 100_000, 60.0)
    >>> with slices:
    ...     _ = sum(range(slices.amount))
    >>> slices.amount
    2000
    """

    def __init__(self, first: int, most: int, seconds: float) -> None:
        self.amount, self.most, self.seconds = first, most, seconds

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        quick = time.perf_counter() - self._began <= self.seconds
        self.amount = min(2 * self.amount, self.most) if quick else max(1, self.amount // 2)


@dataclass(frozen=True)
class _Until(Deadline):
    done: Callable[[], bool] = bool

    @property
    def remaining(self) -> float:
        return 0.0 if self.done() else super().remaining
