"""Estimated size of a model before it is built, compared with available memory and time."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes for each non-zero while a model is built, including its rows and variables.
BUILT_BYTES = 60
#: Seconds to build each non-zero on a fast, idle machine.
BUILT_SECONDS = 5e-8


@dataclass(frozen=True)
class ModelSize:
    """Estimated size of a model, within a few percent.

    Examples
    --------
    >>> size = ModelSize(150_000_000)
    >>> print(size)
    about 150,000,000 non-zeros
    >>> size.lacks_memory(16 * 2**30, 400)
    'needs about 55.9 GiB, but only 16.0 GiB are available'
    >>> size.lacks_memory(100 * 2**30, 400), size.lacks_time(60)
    ('', '')
    """

    nonzeros: int
    """Entries of the rows of all records."""
    tables: int = 0
    """Additional bytes needed while the model is built."""

    def lacks_memory(self, available: float, nonzero_bytes: int = BUILT_BYTES) -> str:
        """Return required and available memory as text; empty if the model may fit."""
        needed = max(BUILT_BYTES, nonzero_bytes) * self.nonzeros + self.tables
        if needed <= available:
            return ""
        return f"needs about {_amount(needed)}, but only {_amount(available)} are available"

    def lacks_time(self, seconds: float) -> str:
        """Return required and remaining time as text; empty if that may be enough."""
        needed = BUILT_SECONDS * self.nonzeros
        return f"takes at least {needed:.1f} s to build, but only {seconds:.1f} s are left" if needed > seconds else ""

    def __str__(self) -> str:
        return f"about {self.nonzeros:,} non-zeros"


def _amount(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
