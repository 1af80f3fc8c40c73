"""Ops of networks by name, with shapes, FLOPs and parameters; also ops on images."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from remat.errors import GraphError
from remat.graphs.zoo.autograd import FLAG, FLOAT, INDEX, Output, Tape, Value


class Operators(Tape):
    """Tape with a method for each op; the first argument is the op's name within the current module.

    Shapes have the batch first and the features, or channels, last.

    Examples
    --------
    >>> net = Operators("tiny", 2)
    >>> x = net.linear("a", net.source((2, 8, 16)), 32)
    >>> x, net.params
    (Value(name='a', shape=(2, 8, 32), itemsize=4, differentiable=True), 544)
    """

    def linear(self, name: str, x: Value, features: int, *, bias: bool = True) -> Value:
        """Add a matrix product with parameters over the last dimension."""
        *rows, depth = x.shape
        flops = 2 * prod(rows) * depth * features
        params = (depth + bias) * features
        return self.apply("linear", name, [x], [Output("", (*rows, features))], flops=flops, params=params)[0]

    def matmul(self, name: str, a: Value, b: Value, *, transpose: bool = False, shape: tuple[int, ...] = ()) -> Value:
        """Add a batched matrix product, stored as `shape`; `transpose` swaps the last two dimensions of `b`."""
        *rest, rows, inner = a.shape
        *others, one, two = b.shape
        inside, columns = (two, one) if transpose else (one, two)
        if rest != others or inner != inside:
            raise GraphError(f"{self.name}: cannot multiply {a.name!r} {a.shape} and {b.name!r} {b.shape}")
        product = (*rest, rows, columns)
        if shape and prod(shape) != prod(product):
            raise GraphError(f"{self.name}: cannot store {product} as {shape}")
        return self.apply("matmul", name, [a, b], [Output("", shape or product)], flops=2 * prod(product) * inner)[0]

    def elementwise(self, kind: str, name: str, x: Value) -> Value:
        """Add an op with the shape of its input: gelu, relu, softmax, log_softmax, scale_mask."""
        return self.apply(kind, name, [x], [Output("", x.shape)])[0]

    def add(self, name: str, *terms: Value, relu: bool = False) -> Value:
        """Add the sum of values of one shape; `relu` adds an in-place ReLU."""
        if len({term.shape for term in terms}) != 1:
            raise GraphError(f"{self.name}: cannot add {' and '.join(f'{t.name!r} {t.shape}' for t in terms)}")
        return self.apply("add_relu" if relu else "add", name, terms, [Output("", terms[0].shape)])[0]

    def dropout(self, name: str, x: Value) -> Value:
        """Add a dropout; its mask, one byte per element, is a separate output."""
        return self.apply("dropout", name, [x], [Output("", x.shape), Output("mask", x.shape, FLAG)])[0]

    def layer_norm(self, name: str, x: Value) -> Value:
        """Add a normalisation over the last dimension; mean and reciprocal deviation per row are separate outputs."""
        rows = x.shape[:-1]
        outputs = [Output("", x.shape), Output("mean", rows), Output("rstd", rows)]
        return self.apply("layer_norm", name, [x], outputs, params=2 * x.shape[-1])[0]

    def rms_norm(self, name: str, x: Value) -> Value:
        """Add a normalisation by the root mean square of the last dimension; its reciprocal is a separate output."""
        return self.apply("rms_norm", name, [x], [Output("", x.shape), Output("rstd", x.shape[:-1])],
                          params=x.shape[-1])[0]  # fmt: skip

    def multiply(self, name: str, x: Value, factor: Value) -> Value:
        """Add a product with the shape of `x`; `factor` is broadcast."""
        return self.apply("multiply", name, [x, factor], [Output("", x.shape)])[0]

    def embedding(self, name: str, indices: Value, entries: int, features: int) -> Value:
        """Add a lookup of one row of a table per index."""
        return self.apply(
            "embedding", name, [indices], [Output("", (*indices.shape, features))], params=entries * features
        )[0]

    def split(self, name: str, x: Value, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Value, ...]:
        """Copy the parts of a value: a tensor ``name.part`` of each of the shapes."""
        if sum(prod(shape) for shape in shapes.values()) != prod(x.shape):
            raise GraphError(f"{self.name}: cannot split {x.name!r} {x.shape} into {list(shapes.values())}")
        outputs = [Output(part, shape, differentiable=True) for part, shape in shapes.items()]
        return self.apply("split", name, [x], outputs)

    def attention(self, name: str, q: Value, k: Value, v: Value, heads: int) -> Value:
        """Add attention as one op that stores no weights; the logarithms of their sums are a separate output.

        It includes its dropout: a recomputation must draw the same numbers.
        """
        batch, rows, width = q.shape
        outputs = [Output("", q.shape), Output("logsumexp", (batch, heads, rows))]
        return self.apply("attention", name, [q, k, v], outputs, flops=4 * batch * rows * k.shape[1] * width)[0]

    def concat(self, name: str, *parts: Value) -> Value:
        """Add a concatenation along the last dimension."""
        if len({part.shape[:-1] for part in parts}) != 1:
            shown = " and ".join(f"{part.name!r} {part.shape}" for part in parts)
            raise GraphError(f"{self.name}: cannot concatenate {shown}")
        shape = (*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))
        return self.apply("concat", name, parts, [Output("", shape)])[0]

    def reshaped(self, kind: str, name: str, x: Value, shape: tuple[int, ...]) -> Value:
        """Add an op without parameters that changes the shape: crop, pad, resize, mean, average_pool."""
        return self.apply(kind, name, [x], [Output("", shape)])[0]


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

    def conv_transpose(self, name: str, x: Value, channels: int, kernel: int, stride: int, *, then: str = "") -> Value:
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

        Mean and reciprocal deviation of the batch are separate outputs, as are the running statistics, which are kept.
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

    def group_norm(self, name: str, x: Value, groups: int = 32) -> Value:
        """Add a normalisation per group of channels and sample; mean and reciprocal deviation are separate outputs."""
        outputs = [Output("", x.shape), *(Output(word, (x.shape[0], groups)) for word in ("mean", "rstd"))]
        return self.apply("group_norm", name, [x], outputs, params=2 * x.shape[-1])[0]

    def max_pool(self, name: str, x: Value, stride: int = 2) -> Value:
        """Add a max pooling; the positions of the maxima are a separate output."""
        batch, *sides, channels = x.shape
        shape = (batch, *(-(-side // stride) for side in sides), channels)
        return self.apply("max_pool", name, [x], [Output("", shape), Output("indices", shape, INDEX)])[0]

    def average_pool(self, name: str, x: Value) -> Value:
        """Add the mean per channel and sample."""
        return self.reshaped("average_pool", name, x, (x.shape[0], x.shape[-1]))
