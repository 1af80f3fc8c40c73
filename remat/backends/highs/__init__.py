"""HiGHS: linear programmes, mixed-integer programmes and linear relaxations."""

from remat.backends.highs.backend import Highs

__all__ = ["Highs"]
