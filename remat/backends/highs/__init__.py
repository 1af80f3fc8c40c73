"""HiGHS: linear programmes, mixed-integer or not, and linear relaxations."""

from remat.backends.highs.backend import Highs

__all__ = ["Highs"]
