"""Counting the multiplications of convolutions exactly."""

from __future__ import annotations

import math

#: Positions that are counted one by one; beyond it all are counted as if there were no padding.
_MOST = 256


def kernel_uses(
    data: int,
    kernel: int,
    out: int,
    *,
    stride: int = 1,
    low: int = 0,
    data_dilation: int = 1,
    kernel_dilation: int = 1,
) -> int:
    """How many pairs of an output and a kernel position of one axis meet an element of the data.

    The other pairs meet padding, or a zero that dilation puts between elements.

    Parameters
    ----------
    data, kernel, out : int
        Extents of the axis.
    stride, low, data_dilation, kernel_dilation : int
        Steps of the window, padding before the data (may be negative), distance of data and of kernel elements.

    Examples
    --------
    Three outputs of a window of three over three elements, padded by one on each side; and the same without padding:

    >>> kernel_uses(3, 3, 3, low=1), kernel_uses(5, 3, 3)
    (7, 9)
    """
    few, many = (kernel, out) if kernel <= out else (out, kernel)
    near, far = (kernel_dilation, stride) if kernel <= out else (stride, kernel_dilation)
    data_dilation = max(1, data_dilation)
    if few > _MOST:
        return kernel * out
    last = (data - 1) * data_dilation
    if last < 0:
        return 0
    return sum(_hits(position * near - low, far, many, last, data_dilation) for position in range(few))


def _hits(first: int, step: int, count: int, last: int, every: int) -> int:
    """Numbers among ``first + k·step`` (k < count) from 0 to `last` that `every` divides."""
    if step <= 0:
        return count if 0 <= first <= last and first % every == 0 else 0
    begin, end = max(0, -(first // step)), max(0, (last - first) // step + 1)
    inside = range(first, first + step * count, step)[begin:end]
    common = math.gcd(step, every)
    if not inside or inside[0] % common:
        return 0
    period = every // common
    return len(inside[-(inside[0] // common) * pow(step // common, -1, period) % period :: period])
