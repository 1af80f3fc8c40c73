"""Layered networks: shapes, multiply-accumulates, parameters, and their training graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from remat.errors import GraphError
from remat.graphs.builder import GraphBuilder
from remat.graphs.graph import ComputeGraph

#: Height, width and channels; a vector is (1, 1, length), a reshaped image (1, pixels, channels).
Shape = tuple[int, int, int]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Layer:
    """Layer of a network."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    """Layers that it reads; empty for a layer that reads the network's input."""
    shape: Shape
    """Height, width and channels of its output."""
    macs: int = 0
    """Multiply-accumulates for one sample."""
    params: int = 0
    """Parameters, including moving statistics."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Further attributes for the graph."""

    @property
    def elements(self) -> int:
        """Elements of the output for one sample."""
        return prod(self.shape)


@dataclass
class Recorder:
    """Layers by name, in the order of insertion."""

    name: str
    batch: int

    def __post_init__(self) -> None:
        self.layers: dict[str, Layer] = {}
        if type(self.batch) is not int or self.batch < 1:
            raise GraphError(f"{self.name} needs a batch of a whole number from 1")

    def shape_of(self, x: str) -> Shape:
        """Return height, width and channels of the output of a layer."""
        return self.layers[x].shape

    def record(self, layer: Layer) -> str:
        """Add a layer and return its name."""
        if layer.name in self.layers:
            raise GraphError(f"{self.name}: two layers are named {layer.name!r}", "name-taken")
        self.layers[layer.name] = layer
        return layer.name

    def check_image(self, shape: Shape) -> None:
        """Refuse a shape that is not (height, width, channels)."""
        if len(shape) != 3 or not all(type(size) is int and size > 0 for size in shape):
            raise GraphError(f"{self.name} needs an image (height, width, channels) of whole numbers from 1")

    def same(self, name: str, inputs: Sequence[str]) -> Shape:
        """Return the common shape of all inputs."""
        shapes = {self.shape_of(x) for x in inputs}
        if len(shapes) != 1:
            raise GraphError(f"{self.name}: {name} cannot add {self._shown(inputs)}", "shapes")
        return shapes.pop()

    def concatenated(self, name: str, inputs: Sequence[str]) -> Shape:
        """Return the shape of a concatenation along the channels."""
        shapes = [self.shape_of(x) for x in inputs]
        if len({shape[:2] for shape in shapes}) != 1:
            raise GraphError(f"{self.name}: {name} cannot concatenate {self._shown(inputs)}", "shapes")
        return (*shapes[0][:2], sum(shape[2] for shape in shapes))

    def window(self, name: str, source: Shape, kernel: Pair, stride: Pair, *, valid: bool) -> Pair:
        """Return the output height and width of a sliding window; `valid` means without padding."""
        if not valid:
            return -(-source[0] // stride[0]), -(-source[1] // stride[1])
        height, width = ((source[axis] - kernel[axis]) // stride[axis] + 1 for axis in (0, 1))
        if min(height, width) < 1:
            raise GraphError(f"{self.name}: {name} needs at least {kernel[0]} x {kernel[1]} pixels, not {source[:2]}")
        return height, width

    def _shown(self, inputs: Sequence[str]) -> str:
        return " and ".join(f"{x} {self.shape_of(x)}" for x in inputs)


@dataclass
class Network(Recorder):
    """Builder of a forward network; each method adds a layer and returns its name.

    A method reads the layer added last unless another is given. Activations inside a convolution cost nothing and are
    not layers, nor is the network's input. Layers without a given name are named as in Keras: ``conv2d``,
    ``conv2d_1``, ...

    `image` is (height, width, channels).

    Examples
    --------
    >>> net = Network("tiny", batch=2, image=(8, 8, 3))
    >>> net.conv(16, 3), net.pool(), net.dense(10)
    ('conv2d', 'max_pooling2d', 'dense')
    >>> [(layer.shape, layer.macs, layer.params) for layer in net.layers.values()]
    [((8, 8, 16), 27648, 448), ((4, 4, 16), 0, 0), ((1, 1, 10), 2560, 2570)]
    """

    image: Shape

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_image(self.image)
        self._counts: Counter[str] = Counter()

    def conv(
        self, channels: int, kernel: int, *, stride: int = 1, same: bool = True, bias: bool = True,
        name: str = "", x: str = "",
    ) -> str:  # fmt: skip
        """Add a convolution with a square kernel."""
        source = self._shape(x)
        shape = (*self._slid(name or "conv2d", source, kernel, stride, same), channels)
        weights = kernel * kernel * source[2]
        return self._add("conv2d", name, [x], shape, macs=weights * prod(shape), params=(weights + bias) * channels)

    def conv_transpose(self, channels: int, kernel: int, stride: int, *, name: str = "", x: str = "") -> str:
        """Add a transposed convolution without padding or bias; its cost ignores the kernel, as in the publications."""
        height, width, depth = self._shape(x)
        shape = ((height - 1) * stride + kernel, (width - 1) * stride + kernel, channels)
        params = kernel * kernel * depth * channels
        return self._add("conv2d_transpose", name, [x], shape, macs=depth * prod(shape), params=params)

    def depthwise(self, kernel: int, *, stride: int = 1, same: bool = True, name: str = "", x: str = "") -> str:
        """Add a depthwise convolution without bias."""
        source = self._shape(x)
        shape = (*self._slid(name or "depthwise_conv2d", source, kernel, stride, same), source[2])
        weights = kernel * kernel
        return self._add("depthwise_conv2d", name, [x], shape, macs=weights * prod(shape), params=weights * source[2])

    def pool(self, window: int = 2, stride: int = 2, *, name: str = "", x: str = "") -> str:
        """Add a max pooling without padding."""
        source = self._shape(x)
        shape = (*self._slid(name or "max_pooling2d", source, window, stride, same=False), source[2])
        return self._add("max_pooling2d", name, [x], shape)

    def global_pool(self, *, name: str = "", x: str = "") -> str:
        """Add a global average pooling."""
        return self._add("global_average_pooling2d", name, [x], (1, 1, self._shape(x)[2]))

    def batch_norm(self, *, name: str = "", x: str = "") -> str:
        """Add a batch normalisation: scale, offset and two moving statistics per channel."""
        shape = self._shape(x)
        return self._add("batch_normalization", name, [x], shape, macs=4 * prod(shape), params=4 * shape[2])

    def activation(self, *, name: str = "", x: str = "") -> str:
        """Add an activation as a separate layer (ReLU, softmax)."""
        shape = self._shape(x)
        return self._add("activation", name, [x], shape, macs=prod(shape))

    def dense(self, units: int, *, name: str = "", x: str = "") -> str:
        """Add a fully connected layer with bias."""
        elements = prod(self._shape(x))
        return self._add("dense", name, [x], (1, 1, units), macs=elements * units, params=(elements + 1) * units)

    def add(self, *inputs: str, name: str = "") -> str:
        """Add the sum of layers of one shape."""
        shape = self.same(name or "add", inputs)
        return self._add("add", name, inputs, shape, macs=len(inputs) * prod(shape))

    def concat(self, *inputs: str, name: str = "") -> str:
        """Add a concatenation along the channels."""
        return self._add("concatenate", name, inputs, self.concatenated(name or "concatenate", inputs))

    def pad(self, before: int, after: int, *, name: str = "", x: str = "") -> str:
        """Add zero padding of height and width."""
        height, width, channels = self._shape(x)
        shape = (height + before + after, width + before + after, channels)
        return self._add("zero_padding2d", name, [x], shape)

    def crop(self, height: int, width: int, *, name: str = "", x: str = "") -> str:
        """Add a crop to a height and a width."""
        source = self._shape(x)
        if height > source[0] or width > source[1]:
            raise GraphError(f"{self.name}: cannot crop {source} to {height} x {width}", "zoo")
        return self._add("cropping2d", name, [x], (height, width, source[2]))

    def upsample(self, factor: int = 2, *, name: str = "", x: str = "") -> str:
        """Add nearest-neighbour upsampling."""
        height, width, channels = self._shape(x)
        shape = (height * factor, width * factor, channels)
        return self._add("up_sampling2d", name, [x], shape, macs=prod(shape))

    def reshape(self, height: int, width: int, channels: int, *, kind: str = "reshape", name: str = "") -> str:
        """Add a reshape of the last layer."""
        shape = (height, width, channels)
        if prod(shape) != prod(self._shape("")):
            raise GraphError(f"{self.name}: cannot reshape {self._shape('')} to {shape}", "zoo")
        return self._add(kind, name, [""], shape)

    def flatten(self, *, name: str = "") -> str:
        """Reshape the last layer to a vector."""
        return self.reshape(1, 1, prod(self._shape("")), kind="flatten", name=name)

    def dropout(self, *, name: str = "", x: str = "") -> str:
        """Add a dropout."""
        return self._add("dropout", name, [x], self._shape(x))

    @property
    def params(self) -> int:
        """Number of parameters of all layers."""
        return sum(layer.params for layer in self.layers.values())

    def _last(self) -> str:
        return next(reversed(self.layers), "")

    def _shape(self, x: str) -> Shape:
        """Return the shape of layer `x`; default: the last layer, or the image if there is none."""
        x = x or self._last()
        return self.shape_of(x) if x else self.image

    def _slid(self, layer: str, source: Shape, size: int, stride: int, same: bool) -> Pair:
        """Return the output height and width of a square window; `layer` appears in the message."""
        return self.window(layer, source, (size, size), (stride, stride), valid=not same)

    def _add(self, kind: str, name: str, inputs: Sequence[str], shape: Shape, *, macs: int = 0, params: int = 0) -> str:
        if not name:
            number = self._counts[kind]
            self._counts[kind] += 1
            name = f"{kind}_{number}" if number else kind
        sources = tuple(source for source in (x or self._last() for x in inputs) if source)
        return self.record(Layer(name, kind, sources, shape, macs, params))


BYTES_PER_ELEMENT = 4  # float32
LOSS = "loss"


def training_graph(network: Network) -> ComputeGraph:
    """Return one training step of `network`: its layers, a loss, and one gradient op for each layer in reverse.

    The gradient of a layer reads the layer's output and, for each reader of the layer, that reader's output and
    gradient. It has the size of the layer's output and twice its cost. The gradient of the last layer reads the loss
    instead. The loss costs nothing. Costs are multiply-accumulates of the whole batch, tensors are float32, and the
    order of the ops is the reference order. Constant memory is the image batch, the parameters and their gradients;
    ``meta["overhead"]`` has the split. The rules are those of Checkmate (Jain et al., MLSys 2020, section 6).

    Raise GraphError if the network has no layers, or a layer is named ``loss`` or like a gradient.

    Examples
    --------
    >>> net = Network("tiny", batch=2, image=(8, 8, 3))
    >>> _ = net.conv(16, 3), net.dense(10)
    >>> [(op.name, op.inputs) for op in training_graph(net).ops[2:]]  # doctest: +NORMALIZE_WHITESPACE
    [('loss', ('dense',)), ('grad_dense', ('dense', 'loss')), ('grad_conv2d', ('conv2d', 'dense', 'grad_dense'))]
    """
    layers = list(network.layers.values())
    if not layers:
        raise GraphError(f"network {network.name!r} has no layers", "no-ops")
    batch = network.batch
    height, width, channels = network.image
    input_bytes = BYTES_PER_ELEMENT * batch * height * width * channels
    param_bytes = BYTES_PER_ELEMENT * network.params
    builder = GraphBuilder(
        f"{network.name}-b{batch}",
        cost_unit="mac",
        source="built layer by layer by remat.graphs.zoo",
        constant_memory=input_bytes + 2 * param_bytes,
        meta={
            "batch": batch,
            "image": list(network.image),
            "params": network.params,
            "overhead": {"input_bytes": input_bytes, "param_bytes": param_bytes, "param_gradient_bytes": param_bytes},
        },
    )
    readers: dict[str, list[str]] = {layer.name: [] for layer in layers}
    for layer in layers:
        for source in layer.inputs:
            readers[source].append(layer.name)
        builder.op(
            layer.name,
            inputs=layer.inputs,
            size=BYTES_PER_ELEMENT * batch * layer.elements,
            cost=batch * layer.macs,
            type=layer.kind,
            phase="forward",
        )
    last = layers[-1].name
    builder.op(LOSS, inputs=[last], size=BYTES_PER_ELEMENT * batch, type=LOSS, phase="loss")
    for layer in reversed(layers):
        later = [LOSS] if layer.name == last else []
        for reader in reversed(readers[layer.name]):
            later += [reader, _gradient(reader)]
        builder.op(
            _gradient(layer.name),
            inputs=[layer.name, *later],
            size=BYTES_PER_ELEMENT * batch * layer.elements,
            cost=2 * batch * layer.macs,
            type=f"{layer.kind}_gradient",
            phase="backward",
        )
    return builder.build()


def _gradient(layer: str) -> str:
    return f"grad_{layer}"
