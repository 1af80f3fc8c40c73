"""What the layers of a network compute, in plain numpy: for checks on small tensors, not for speed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Window:
    """A sliding window over the axes between batch and channels; one number for each of them.

    Attributes
    ----------
    kernel, stride, dilation : tuple of int
    padding : tuple of (int, int) or None
        Elements before and after; None: as many as give ceil(extent / stride) windows ("SAME").
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...] | None

    def pads(self, extents: Sequence[int]) -> list[tuple[int, int]]:
        """Elements before and after, for tensors of these extents."""
        if self.padding is not None:
            return list(self.padding)
        found = []
        for extent, kernel, stride, dilation in zip(extents, self.kernel, self.stride, self.dilation, strict=True):
            total = max((-(-extent // stride) - 1) * stride + (kernel - 1) * dilation + 1 - extent, 0)
            found.append((total // 2, total - total // 2))
        return found

    def views(self, x: Array, fill: float) -> list[tuple[tuple[int, ...], Array]]:
        """For each place in the kernel what it meets of (batch, extents..., channels), one element for each window."""
        extents = x.shape[1:-1]
        padded = np.pad(x, [(0, 0), *self.pads(extents), (0, 0)], constant_values=fill)
        counts = [
            (extent - (kernel - 1) * dilation - 1) // stride + 1
            for extent, kernel, stride, dilation in zip(
                padded.shape[1:-1], self.kernel, self.stride, self.dilation, strict=True
            )
        ]
        if min(counts, default=1) < 1:
            raise ValueError(f"a window of {list(self.kernel)} does not fit into {list(extents)}")
        found = []
        for place in itertools.product(*map(range, self.kernel)):
            steps = zip(place, self.stride, self.dilation, counts, strict=True)
            slices = [slice(k * d, k * d + (n - 1) * s + 1, s) for k, s, d, n in steps]
            found.append((place, padded[(slice(None), *slices)]))
        return found


def convolution(x: Array, weights: Array, window: Window, groups: int = 1) -> Array:
    """Of (batch, extents..., in) with weights (kernel..., in / groups, out)."""
    inside, outside = weights.shape[-2], weights.shape[-1] // groups
    total: Array | None = None
    for place, view in window.views(x, 0.0):
        pieces = [
            view[..., g * inside : (g + 1) * inside] @ weights[place][:, g * outside : (g + 1) * outside]
            for g in range(groups)
        ]
        piece = np.concatenate(pieces, axis=-1) if groups > 1 else pieces[0]
        total = piece if total is None else total + piece
    assert total is not None
    return total


def depthwise_convolution(x: Array, weights: Array, window: Window) -> Array:
    """Of (batch, extents..., channels) with weights (kernel..., channels, multiplier)."""
    total: Array | None = None
    for place, view in window.views(x, 0.0):
        piece = view[..., None] * weights[place]
        total = piece if total is None else total + piece
    assert total is not None
    return total.reshape(*total.shape[:-2], -1)


def transposed_convolution(x: Array, weights: Array, window: Window) -> Array:
    """Of (batch, extents..., in) with weights (kernel..., in, out); "SAME" gives extent times stride."""
    extents = x.shape[1:-1]
    sizes = zip(extents, window.stride, window.kernel, window.dilation, strict=True)
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in sizes]
    room = [max(length, n * s) for length, n, s in zip(full, extents, window.stride, strict=True)]
    whole = np.zeros((x.shape[0], *room, weights.shape[-1]))
    for place in itertools.product(*map(range, window.kernel)):
        steps = zip(place, window.stride, window.dilation, extents, strict=True)
        slices = [slice(k * d, k * d + (n - 1) * s + 1, s) for k, s, d, n in steps]
        whole[(slice(None), *slices)] += x @ weights[place]
    if window.padding is None:
        return whole[(slice(None), *(slice(0, n * s) for n, s in zip(extents, window.stride, strict=True)))]
    ends = zip(window.padding, full, strict=True)
    return whole[(slice(None), *(slice(before, length - after) for (before, after), length in ends))]


def pooling(x: Array, window: Window, *, largest: bool) -> Array:
    """Largest element or mean of each window of (batch, extents..., channels); padding does not count."""
    views = [view for _, view in window.views(x, -np.inf if largest else 0.0)]
    if largest:
        return np.maximum.reduce(views)
    counts = [view for _, view in window.views(np.ones_like(x), 0.0)]
    return np.add.reduce(views) / np.add.reduce(counts)


def normalised(x: Array, axes: tuple[int, ...]) -> Array:
    """Mean 0 and variance 1 over axes."""
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + 1e-3)


def softmax(x: Array, axis: int) -> Array:
    """Exponentials that add up to 1 along an axis."""
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def resampled(x: Array, extents: Sequence[int]) -> Array:
    """Nearest elements of (batch, extents..., channels) at other extents."""
    for axis, extent in enumerate(extents, start=1):
        x = np.take(x, np.arange(extent) * x.shape[axis] // extent, axis=axis)
    return x


def softsign(x: Array) -> Array:
    """A function that is not linear and loses nothing; stands for activations without a name."""
    return x / (1 + np.abs(x))


#: Functions of one tensor, element by element.
UNARY: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "none": lambda x: x,
    "linear": lambda x: x,
    "dropout": lambda x: x,
    "noop": lambda x: x,
    "copy": lambda x: x,
    "cast": lambda x: x,
    "quantize": lambda x: x,
    "dequantize": lambda x: x,
    "requantize": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "leakyrelu": lambda x: np.where(x > 0, x, 0.01 * x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "neg": np.negative,
    "abs": np.abs,
    "square": np.square,
}

#: Functions of several tensors, element by element; others are sums.
SEVERAL: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "subtract": np.subtract,
    "mul": np.multiply,
    "multiply": np.multiply,
    "div": lambda x, y: x / (1 + np.abs(y)),
    "divide": lambda x, y: x / (1 + np.abs(y)),
    "maximum": np.maximum,
    "max": np.maximum,
    "minimum": np.minimum,
    "min": np.minimum,
}
