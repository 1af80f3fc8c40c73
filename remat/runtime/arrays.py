"""Array types of the package."""

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
Float = NDArray[np.float64]
