"""Array types of the package."""

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Int32 = NDArray[np.int32]
Bool = NDArray[np.bool_]
Float = NDArray[np.float64]


def distinct(values: Int) -> Int:
    """Return the distinct values, sorted; faster than `np.unique`, which hashes each value and imports `numpy.ma`."""
    ordered = np.sort(values, axis=None)
    return np.append(ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]])
