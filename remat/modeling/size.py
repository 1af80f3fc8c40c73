"""How large a model will be, known before it is built, and whether that fits into memory and time."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes that a model takes for each non-zero while it is built, its rows and variables included.
BUILT_BYTES = 60
#: Seconds that it takes to build for each non-zero, on a fast machine that has nothing else to do.
BUILT_SECONDS = 5e-8


@dataclass(frozen=True)
class ModelSize:
    """Size of a model, by arithmetic alone; right within some percent.

    Attributes
    ----------
    nonzeros : int
        Entries of the rows of all records together, whatever a row is in each kind of record.
    tables : int
        Bytes that are needed besides while the model is built.

    Examples
    --------
    >>> size = ModelSize(150_000_000)
    >>> print(size)
    about 150,000,000 non-zeros
    >>> size.lacks_memory(16 * 2**30, 400)
    'needs about 55.9 GiB, of which 16.0 GiB are to be had'
    >>> size.lacks_memory(100 * 2**30, 400), size.lacks_time(60)
    ('', '')
    """

    nonzeros: int
    tables: int = 0

    def lacks_memory(self, available: float, nonzero_bytes: int = BUILT_BYTES) -> str:
        """What the model needs and what there is, in words; empty where it may fit.

        Parameters
        ----------
        available : float
            Bytes.
        nonzero_bytes : int
            What model and solver take for each non-zero.
        """
        needed = max(BUILT_BYTES, nonzero_bytes) * self.nonzeros + self.tables
        if needed <= available:
            return ""
        return f"needs about {_amount(needed)}, of which {_amount(available)} are to be had"

    def lacks_time(self, seconds: float) -> str:
        """How long it takes to build and what is left, in words; empty where that may be enough."""
        needed = BUILT_SECONDS * self.nonzeros
        return f"takes at least {needed:.1f} s to build, of {seconds:.1f} s that are left" if needed > seconds else ""

    def __str__(self) -> str:
        return f"about {self.nonzeros:,} non-zeros"


def _amount(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
