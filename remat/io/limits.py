"""Limits on the expansion of files: readers refuse a file before it fills the memory or takes minutes.

Readers draw memory in advance from one :class:`Budget` of bytes and seconds per file. The limits far exceed the needs
of real files, such as a graph of a million ops or a schedule of a million steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from remat.errors import FormatError
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import interrupted
from remat.runtime.resources import available_memory
from remat.runtime.sizes import memory_bytes

#: Default limit of a file, in bytes.
MAX_BYTES = 512 * 1024 * 1024
#: Default memory for reading one file: a share of the available memory, or bytes if the system does not report it.
MEMORY_SHARE, UNKNOWN_MEMORY = 0.25, 4 * 1024**3
#: Bytes that any reader may use.
SMALL = 1024**2
#: Default seconds for reading one file: three times the time of 300,000 ONNX nodes.
SECONDS = 120.0
#: Least seconds for reading under a time limit: short limits are for searches, whose tolerance is larger than this.
LEAST_SECONDS = 1.0
#: Bytes of Python objects per punctuation mark of a JSON text; above the measured value for any mixture.
_JSON_WEIGHTS = {"{": 160, "[": 80, ":": 130, ",": 80}
#: Most steps, statements or lines of a schedule, and most cells of a table.
MAX_STEPS = 4_000_000
#: Bytes per step, or per cell of a table.
CELL_MEMORY = 100
#: Most parts of a dotted key of TOML: the memory for reading it grows with the square of their number.
MAX_KEY_PARTS = 32
_KEY = r"(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_KEY}(?:[ \t]*+\.[ \t]*+{_KEY}){{{MAX_KEY_PARTS}}}")


class ReadLimitError(FormatError):
    """Raised when reading a file exceeds its budget; the place where that happens is not at fault."""


class Budget:
    """Remaining bytes and seconds for reading one file.

    Without `memory`, the limit is a share of the memory that is available when a draw exceeds :data:`SMALL`. Finding
    it takes a millisecond, and small files draw many times.
    """

    def __init__(self, memory: float | None, deadline: Deadline) -> None:
        self._memory, self._drawn, self._deadline = memory, 0.0, deadline

    def draw(self, memory: float, seconds: float) -> None:
        """Take `memory` and check that `seconds` are left; see :func:`draw`."""
        self._drawn += memory
        if self._memory is None and self._drawn > SMALL:
            available = available_memory()
            self._memory = UNKNOWN_MEMORY if math.isinf(available) else MEMORY_SHARE * available
        if self._memory is not None and self._drawn > self._memory:
            raise ReadLimitError(
                f"reading it would take more than {max(1, int(self._memory) >> 20):,} MiB of memory; allow more with "
                "remat --read-memory SIZE, or remat.io.limits.read_limits in Python",
                "read-memory",
            )
        if interrupted():
            if _completes.get():
                return
            raise KeyboardInterrupt
        if self._deadline.remaining <= seconds:
            raise ReadLimitError(
                f"reading it takes more than {self._deadline.seconds:g} s; allow more with "
                "remat --read-time SECONDS, or remat.io.limits.read_limits in Python",
                "read-time",
            )


_memory: ContextVar[int | None] = ContextVar("memory", default=None)
_seconds: ContextVar[float | None] = ContextVar("seconds", default=None)
_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)
_completes: ContextVar[bool] = ContextVar("completes", default=False)


@contextmanager
def read_limits(seconds: float | None = None, memory: int | str | None = None) -> Iterator[None]:
    """Set the limits for reading files within the ``with`` block; limits of an outer block stay.

    Raise ProblemError if `memory` is not a number of bytes.

    Parameters
    ----------
    seconds : float, optional
        Per file, at least :data:`LEAST_SECONDS`. Default: :data:`SECONDS`, without a limit on waiting for a pipe.
    memory : int or str, optional
        Per file, in bytes or as ``"4GiB"``. Default: :data:`MEMORY_SHARE` of the available memory.

    Examples
    --------
    >>> with read_limits(memory=1000):
    ...     draw(2000)
    Traceback (most recent call last):
    remat.io.limits.ReadLimitError: reading it would take more than 1 MiB of memory; allow more with ...
    """
    size = None if memory is None else memory_bytes(memory)
    least = None if seconds is None else max(LEAST_SECONDS, seconds)
    tokens = _memory.set(_memory.get() or size), _seconds.set(_seconds.get() or least)
    try:
        yield
    finally:
        _memory.reset(tokens[0])
        _seconds.reset(tokens[1])


@contextmanager
def completing() -> Iterator[None]:
    """Let reads within the ``with`` block end after Ctrl-C: they check an answer that is about to be written."""
    token = _completes.set(True)
    try:
        yield
    finally:
        _completes.reset(token)


@contextmanager
def budgeted() -> Iterator[None]:
    """Use one budget for all reads within the ``with`` block; the budget of an outer block stays."""
    token = _budget.set(_budget.get() or _new_budget())
    try:
        yield
    finally:
        _budget.reset(token)


def _new_budget() -> Budget:
    return Budget(_memory.get(), Deadline.after(_seconds.get() or SECONDS))


def draw(memory: float = 0, seconds: float = 0) -> None:
    """Draw from the budget of the current file.

    `memory` is an estimate of what the caller is about to allocate; `seconds` is the time of the next piece of work,
    if it cannot be stopped early.

    Raises
    ------
    ReadLimitError
        If the budget is exceeded; the caller adds the path.
    KeyboardInterrupt
        If the process is interrupted.
    """
    (_budget.get() or _new_budget()).draw(memory, seconds)


def pipe_deadline() -> Deadline:
    """Return the deadline for the writer of a pipe; infinite without :func:`read_limits`."""
    return Deadline.after(_seconds.get())


def draw_json(text: str) -> None:
    """Draw the memory of the values of a JSON text, estimated from its punctuation, including marks inside strings."""
    draw(sum(weight * text.count(mark) for mark, weight in _JSON_WEIGHTS.items()))


def check_count(count: int, what: str, memory: int = CELL_MEMORY) -> None:
    """Refuse more than :data:`MAX_STEPS` items, such as ``"steps"``, and draw `memory` for each."""
    if count > MAX_STEPS:
        raise FormatError(f"{count:,} {what}, more than the {MAX_STEPS:,} that are read")
    draw(memory * count)


def check_toml_keys(text: str, name: str) -> None:
    """Refuse a TOML text with a key of too many parts (``a.b.c = 1`` has three).

    Raise FormatError with `name` and the line.
    """
    found = _LONG_KEY.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise FormatError(f"{name}: line {line}: a key of more than {MAX_KEY_PARTS} parts", "toml-keys")
