"""Kernels for sets as 64-bit words."""

# Compiled functions carry no types.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from remat.runtime.compiled import inner

NONE, ONE = np.uint64(0), np.uint64(1)
#: The product with the lowest bit of a word has its number in the six highest bits: a de Bruijn sequence.
SEQUENCE, TOP = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
#: Factors and shift of hashes.
FACTOR, GOLDEN = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0x9E3779B97F4A7C15)
SHIFT = np.uint64(32)


@inner
def number(tables, bit):
    """Return the number of a bit; ``tables.digits`` belongs to :data:`SEQUENCE`."""
    return tables.digits[np.int64((bit * SEQUENCE) >> TOP)]


@inner
def hashed(low, high, more):
    """Return the hash of three words."""
    mixed = (low ^ (more * GOLDEN)) * FACTOR
    mixed ^= mixed >> SHIFT
    mixed = (mixed ^ high) * FACTOR
    mixed ^= mixed >> SHIFT
    mixed *= FACTOR
    return mixed ^ (mixed >> SHIFT)
