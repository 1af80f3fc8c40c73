"""Ops of convolutional networks in one, two or three dimensions, channels last."""

from __future__ import annotations

from math import prod

from remat.errors import GraphError
from remat.graphs.zoo.autograd import FLOAT, INDEX, Output, Value
from remat.graphs.zoo.operators import Operators


class ImageOperators(Operators):
    """Operators on images: shapes have the batch first, the channels last and any number of dimensions in between.

    Examples
    --------
    >>> net = ImageOperators("tiny", 2)
    >>> x = net.conv("a", net.source((2, 8, 8, 3)), 16, 3, stride=2, bias=False)
    >>> x.shape, net.params, net.batch_norm("b", x, then="relu").name
    ((2, 4, 4, 16), 432, 'b')
    """

    def conv(
        self, name: str, x: Value, channels: int, kernel: int, *, stride: int = 1, groups: int = 1, bias: bool = True
    ) -> Value:
        """Add a convolution, padded so that each side is divided by the stride and rounded up."""
        batch, *sides, depth = x.shape
        if depth % groups or channels % groups:
            raise GraphError(f"{self.name}: {groups} groups do not divide {depth} and {channels} channels")
        shape = (batch, *(-(-side // stride) for side in sides), channels)
        weights = kernel ** len(sides) * (depth // groups)
        params = (weights + bias) * channels
        return self.apply("conv", name, [x], [Output("", shape)], flops=2 * weights * prod(shape), params=params)[0]

    def conv_transpose(
        self,
        name: str,
        x: Value,
        channels: int,
        kernel: int,
        stride: int,
        *,
        then: str = "",
    ) -> Value:
        """Add a transposed convolution with bias; `then` is an in-place activation (leaky_relu).

        Sides grow by the factor `stride`.
        """
        batch, *before, depth = x.shape
        shape = (batch, *(side * stride for side in before), channels)
        weights = kernel ** len(before) * channels
        kind = "_".join(filter(None, ("conv_transpose", then)))
        return self.apply(
            kind, name, [x], [Output("", shape)], flops=2 * weights * prod(x.shape), params=weights * depth + channels
        )[0]

    def batch_norm(self, name: str, x: Value, *, then: str = "", other: Value | None = None) -> Value:
        """Add a batch normalisation; `then` is an in-place activation (relu, leaky_relu) after adding `other` in place.

        Mean and reciprocal deviation of the batch are separate outputs. So are the running statistics, kept at
        the end.
        """
        channels = x.shape[-1:]
        kind = "_".join(filter(None, ("batch_norm", "add" if other else "", then)))
        outputs = [Output("", x.shape), Output("mean", channels), Output("rstd", channels)]
        outputs += [Output(f"running_{what}", channels, kept=True) for what in ("mean", "var")]
        self.state_bytes += 2 * FLOAT * channels[0]
        return self.apply(kind, name, [x, other] if other else [x], outputs, params=2 * channels[0])[0]

    def instance_norm(self, name: str, x: Value) -> Value:
        """Add a normalisation per channel and sample; mean and reciprocal deviation are separate outputs."""
        rows = (x.shape[0], x.shape[-1])
        outputs = [Output("", x.shape), Output("mean", rows), Output("rstd", rows)]
        return self.apply("instance_norm", name, [x], outputs, params=2 * x.shape[-1])[0]

    def max_pool(self, name: str, x: Value, stride: int = 2) -> Value:
        """Add a max pooling; the positions of the maxima are a separate output."""
        batch, *sides, channels = x.shape
        shape = (batch, *(-(-side // stride) for side in sides), channels)
        return self.apply("max_pool", name, [x], [Output("", shape), Output("indices", shape, INDEX)])[0]

    def average_pool(self, name: str, x: Value) -> Value:
        """Add the mean per channel and sample."""
        return self.reshaped("average_pool", name, x, (x.shape[0], x.shape[-1]))
