"""A forward network, layer by layer: shapes, multiply-accumulates, parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from remat.errors import GraphError

#: Height, width and channels; a vector is (1, 1, length), a reshaped image (1, pixels, channels).
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes
    ----------
    name, kind : str
    inputs : tuple of str
        Layers it reads; empty for a layer that reads the network's input.
    shape : (height, width, channels)
        Of its output.
    macs : int
        Multiply-accumulates for one sample.
    params : int
        Parameters, moving statistics included.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: Shape
    macs: int = 0
    params: int = 0

    @property
    def elements(self) -> int:
        """Elements of the output for one sample."""
        return prod(self.shape)


@dataclass
class Network:
    """Collects layers; each method adds one and returns its name, and reads the layer added last unless told.

    Activations inside a convolution cost nothing and are not layers, nor is the network's input. Layers without a
    name of their own are named like those of Keras: ``conv2d``, ``conv2d_1``, ...

    Parameters
    ----------
    name : str
    batch : int
        Samples.
    image : (height, width, channels)

    Examples
    --------
    >>> net = Network("tiny", batch=2, image=(8, 8, 3))
    >>> net.conv(16, 3), net.pool(), net.dense(10)
    ('conv2d', 'max_pooling2d', 'dense')
    >>> [(layer.shape, layer.macs, layer.params) for layer in net.layers.values()]
    [((8, 8, 16), 27648, 448), ((4, 4, 16), 0, 0), ((1, 1, 10), 2560, 2570)]
    """

    name: str
    batch: int
    image: Shape
    layers: dict[str, Layer] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter, repr=False)

    def __post_init__(self) -> None:
        sizes = (self.batch, *self.image)
        if len(sizes) != 4 or not all(type(size) is int and size > 0 for size in sizes):
            raise GraphError(
                f"{self.name} needs a batch and an image (height, width, channels) of whole numbers from 1"
            )

    # -- layers ----------------------------------------------------------------------------------------------------

    def conv(
        self, channels: int, kernel: int, *, stride: int = 1, same: bool = True, bias: bool = True,
        name: str = "", x: str = "",
    ) -> str:  # fmt: skip
        """Convolution, square kernel."""
        source = self._shape(x)
        shape = (*self._window(name or "conv2d", source, kernel, stride=stride, same=same), channels)
        weights = kernel * kernel * source[2]
        return self._add("conv2d", name, [x], shape, macs=weights * prod(shape), params=(weights + bias) * channels)

    def conv_transpose(self, channels: int, kernel: int, stride: int, *, name: str = "", x: str = "") -> str:
        """Transposed convolution without padding or bias; its cost ignores the kernel, as in the publications."""
        height, width, depth = self._shape(x)
        shape = ((height - 1) * stride + kernel, (width - 1) * stride + kernel, channels)
        params = kernel * kernel * depth * channels
        return self._add("conv2d_transpose", name, [x], shape, macs=depth * prod(shape), params=params)

    def depthwise(self, kernel: int, *, stride: int = 1, same: bool = True, name: str = "", x: str = "") -> str:
        """Depthwise convolution without bias."""
        source = self._shape(x)
        shape = (*self._window(name or "depthwise_conv2d", source, kernel, stride=stride, same=same), source[2])
        weights = kernel * kernel
        return self._add("depthwise_conv2d", name, [x], shape, macs=weights * prod(shape), params=weights * source[2])

    def pool(self, window: int = 2, stride: int = 2, *, name: str = "", x: str = "") -> str:
        """Max pooling without padding."""
        source = self._shape(x)
        shape = (*self._window(name or "max_pooling2d", source, window, stride=stride, same=False), source[2])
        return self._add("max_pooling2d", name, [x], shape)

    def global_pool(self, *, name: str = "", x: str = "") -> str:
        """Global average pooling."""
        return self._add("global_average_pooling2d", name, [x], (1, 1, self._shape(x)[2]))

    def batch_norm(self, *, name: str = "", x: str = "") -> str:
        """Batch normalisation: scale, offset and two moving statistics for each channel."""
        shape = self._shape(x)
        return self._add("batch_normalization", name, [x], shape, macs=4 * prod(shape), params=4 * shape[2])

    def activation(self, *, name: str = "", x: str = "") -> str:
        """An activation that is a layer of its own (ReLU, softmax)."""
        shape = self._shape(x)
        return self._add("activation", name, [x], shape, macs=prod(shape))

    def dense(self, units: int, *, name: str = "", x: str = "") -> str:
        """Fully connected layer with bias."""
        elements = prod(self._shape(x))
        return self._add("dense", name, [x], (1, 1, units), macs=elements * units, params=(elements + 1) * units)

    def add(self, *inputs: str, name: str = "") -> str:
        """Sum of layers of one shape."""
        shapes = {self._shape(x) for x in inputs}
        if len(shapes) != 1:
            raise GraphError(f"{self.name}: cannot add {self._shown(inputs)}")
        shape = shapes.pop()
        return self._add("add", name, inputs, shape, macs=len(inputs) * prod(shape))

    def concat(self, *inputs: str, name: str = "") -> str:
        """Concatenation along the channels."""
        if len({self._shape(x)[:2] for x in inputs}) != 1:
            raise GraphError(f"{self.name}: cannot concatenate {self._shown(inputs)}")
        height, width, _ = self._shape(inputs[0])
        return self._add("concatenate", name, inputs, (height, width, sum(self._shape(x)[2] for x in inputs)))

    def pad(self, before: int, after: int, *, name: str = "", x: str = "") -> str:
        """Zero padding of height and width."""
        height, width, channels = self._shape(x)
        shape = (height + before + after, width + before + after, channels)
        return self._add("zero_padding2d", name, [x], shape)

    def crop(self, height: int, width: int, *, name: str = "", x: str = "") -> str:
        """Crop to a height and a width."""
        source = self._shape(x)
        if height > source[0] or width > source[1]:
            raise GraphError(f"{self.name}: cannot crop {source} to {height} x {width}")
        return self._add("cropping2d", name, [x], (height, width, source[2]))

    def upsample(self, factor: int = 2, *, name: str = "", x: str = "") -> str:
        """Nearest-neighbour upsampling."""
        height, width, channels = self._shape(x)
        shape = (height * factor, width * factor, channels)
        return self._add("up_sampling2d", name, [x], shape, macs=prod(shape))

    def reshape(self, height: int, width: int, channels: int, *, kind: str = "reshape", name: str = "") -> str:
        """Same elements, other shape."""
        shape = (height, width, channels)
        if prod(shape) != prod(self._shape("")):
            raise GraphError(f"{self.name}: cannot reshape {self._shape('')} to {shape}")
        return self._add(kind, name, [""], shape)

    def flatten(self, *, name: str = "") -> str:
        """A vector of all elements."""
        return self.reshape(1, 1, prod(self._shape("")), kind="flatten", name=name)

    def dropout(self, *, name: str = "", x: str = "") -> str:
        """Dropout."""
        return self._add("dropout", name, [x], self._shape(x))

    # -- totals and shapes -----------------------------------------------------------------------------------------

    @property
    def params(self) -> int:
        """Parameters of all layers."""
        return sum(layer.params for layer in self.layers.values())

    def shape_of(self, layer: str) -> Shape:
        """Shape of the output of a layer."""
        return self.layers[layer].shape

    def _last(self) -> str:
        return next(reversed(self.layers), "")

    def _shape(self, x: str) -> Shape:
        """Shape of layer `x`, or of the layer added last, or of the image before there is one."""
        x = x or self._last()
        return self.layers[x].shape if x else self.image

    def _window(self, layer: str, source: Shape, size: int, *, stride: int, same: bool) -> tuple[int, int]:
        """Output height and width of a sliding window; `layer` is for the message."""
        if same:
            return -(-source[0] // stride), -(-source[1] // stride)
        height, width = (source[0] - size) // stride + 1, (source[1] - size) // stride + 1
        if min(height, width) < 1:
            raise GraphError(f"{self.name}: {layer} needs at least {size} x {size} pixels, not {source[:2]}")
        return height, width

    def _add(self, kind: str, name: str, inputs: Sequence[str], shape: Shape, *, macs: int = 0, params: int = 0) -> str:
        if not name:
            number = self._counts[kind]
            self._counts[kind] += 1
            name = f"{kind}_{number}" if number else kind
        if name in self.layers:
            raise GraphError(f"{self.name}: two layers are named {name!r}")
        sources = tuple(source for source in (x or self._last() for x in inputs) if source)
        self.layers[name] = Layer(name, kind, sources, shape, macs, params)
        return name

    def _shown(self, inputs: tuple[str, ...]) -> str:
        return " and ".join(f"{x} {self._shape(x)}" for x in inputs)
