"""Exact multiplication counts of convolutions."""

from __future__ import annotations

import numpy as np

#: Largest numbers of positions enumerated on the shorter and the longer side, and largest extent, stride, padding or
#: dilation. Beyond any of these limits all pairs are counted, as if there were no padding.
_FEW, _MANY, _FAR = 256, 2**20, 2**30


def kernel_uses(
    data: int, kernel: int, out: int, *, stride: int = 1, low: int = 0, data_dilation: int = 1, kernel_dilation: int = 1
) -> int:
    """Count the pairs of an output and a kernel position along one axis that meet an element of the data.

    The other pairs meet padding, or a zero that dilation inserts between elements.

    `data`, `kernel` and `out` are extents of the axis; `low` is the padding before the data, which may be negative.

    Examples
    --------
    A window of three yields three outputs, from three elements padded by one on each side, or from five unpadded ones:

    >>> kernel_uses(3, 3, 3, low=1), kernel_uses(5, 3, 3)
    (7, 9)
    """
    few, many = sorted((kernel, out))
    if few > _FEW or many > _MANY or max(data, stride, abs(low), data_dilation, kernel_dilation) > _FAR:
        return kernel * out
    near, far = (kernel_dilation, stride) if kernel <= out else (stride, kernel_dilation)
    apart = max(1, data_dilation)
    hits = 0
    for position in range(few):
        place = np.arange(many) * far + (position * near - low)
        hits += int(((place >= 0) & (place <= (data - 1) * apart) & (place % apart == 0)).sum())
    return hits
