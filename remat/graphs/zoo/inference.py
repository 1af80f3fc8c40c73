"""Inference networks, op by op: shapes, attributes, multiply-accumulates, parameters and the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from remat.graphs.builder import GraphBuilder
from remat.graphs.graph import ComputeGraph
from remat.graphs.rewriting import RewriteOptions, RuleName, rewrite_graph
from remat.graphs.zoo.network import Layer, Pair, Recorder, Shape

#: Bytes of one element.
DTYPES = {"uint8": 1, "float32": 4}
#: Axis of the channels in the shape of a tensor, batch first.
CHANNEL_AXIS = {"NHWC": 3, "NCHW": 1}


@dataclass
class InferenceNetwork(Recorder):
    """Builder of an inference network; each method adds an op and returns its name, also the name of its tensor.

    The cost of an op is its multiply-accumulates in convolutions and fully connected layers, for the whole batch. Other
    ops cost 0, as in the publications. Parameters, including those of normalisations, are counted separately and are
    the graph's constant memory.

    Parameters
    ----------
    batch : int
        Samples.
    source : str
        Publication of the network.
    dtype : str
        ``"float32"`` or ``"uint8"``; biases have four bytes in both.
    layout : str
        Order of the axes in ``meta["shapes"]``: ``"NHWC"`` or ``"NCHW"``.
    fold_concats : bool
        Omit concatenations, and splits into one part. Their readers read the parts instead (*zero-copy*), in order,
        and have the attributes ``concat_inputs`` and ``concat_axis``.
    fold_batch_norms : bool
        Omit batch normalisations, which deployed networks fold into the weights of the preceding convolution.

    Examples
    --------
    >>> net = InferenceNetwork("tiny", batch=1, source="by hand")
    >>> x = net.input("x", (8, 8, 3))
    >>> net.conv("b", net.concat("both", x, net.conv("a", x, 5)), 4, kernel=3, stride=2)
    'b'
    >>> graph = net.graph()
    >>> [(op.name, op.type, op.cost) for op in graph.ops if op.cost]
    [('a', 'Conv', 960), ('b', 'Conv', 4608)]
    >>> graph.meta["shapes"]["b"], graph.meta["attrs"]["both"], graph.outputs
    ([1, 4, 4, 4], {'axis': 3}, ('b',))
    """

    source: str
    dtype: str = "float32"
    layout: str = "NHWC"
    fold_concats: bool = False
    fold_batch_norms: bool = False
    params: int = field(default=0, init=False)
    param_bytes: int = field(default=0, init=False)
    _kept: set[str] = field(default_factory=set, init=False, repr=False)

    def input(self, name: str, shape: Shape) -> str:
        """Add the network's input, an op without inputs that allocates the tensor."""
        self.check_image(shape)
        return self._add("Input", name, (), shape)

    def conv(
        self, name: str, x: str, channels: int, *, kernel: int | Pair = 1, stride: int | Pair = 1,
        valid: bool = False, bias: bool = False,
    ) -> str:  # fmt: skip
        """Add a convolution; `valid` means without padding."""
        (kh, kw), source = _pair(kernel), self.shape_of(x)
        height, width = self.window(name, source, (kh, kw), _pair(stride), valid=valid)
        weights = kh * kw * source[2]
        self._count(weights * channels, channels if bias else 0)
        attrs = self._sliding(kernel, stride, valid) | {"weight_shape": [channels, kh, kw, source[2]]}
        return self._add(
            "Conv", name, (x,), (height, width, channels), macs=weights * height * width * channels, attrs=attrs
        )

    def depthwise(
        self, name: str, x: str, *, kernel: int, stride: int = 1, dilation: int = 1, bias: bool = False
    ) -> str:
        """Add a depthwise convolution, one filter per channel."""
        source = self.shape_of(x)
        height, width = self.window(name, source, _pair(kernel), _pair(stride), valid=False)
        self._count(kernel * kernel * source[2], source[2] if bias else 0)
        attrs = self._sliding(kernel, stride) | {"weight_shape": [1, kernel, kernel, source[2]]}
        if dilation > 1:
            attrs["dilation"] = [dilation, dilation]
        shape = (height, width, source[2])
        return self._add("DepthwiseConv", name, (x,), shape, macs=kernel * kernel * prod(shape), attrs=attrs)

    def relu_conv_bn(self, name: str, x: str, channels: int, *, kernel: int | Pair = 1, stride: int | Pair = 1) -> str:
        """Add ReLU, convolution and normalisation: the ops ``name/relu``, ``name/conv`` and ``name/bn``."""
        x = self.conv(f"{name}/conv", self.relu(f"{name}/relu", x), channels, kernel=kernel, stride=stride)
        return self.batch_norm(f"{name}/bn", x)

    def relu_separable_bn(
        self, name: str, x: str, channels: int, *, kernel: int, stride: int = 1, dilation: int = 1
    ) -> str:
        """Add ReLU, depthwise and 1 x 1 convolution (``name/dw`` and ``name/pw``), and normalisation."""
        x = self.depthwise(f"{name}/dw", self.relu(f"{name}/relu", x), kernel=kernel, stride=stride, dilation=dilation)
        return self.batch_norm(f"{name}/bn", self.conv(f"{name}/pw", x, channels))

    def separable(
        self, name: str, *inputs: str, kind: str, kernel: int, channels: int = 0, stride: int = 1, repeats: int = 1
    ) -> str:
        """Add activation, depthwise and 1 x 1 convolution and normalisation, `repeats` times, as one op.

        It first adds up several inputs, each multiplied by a learned number.
        """
        height, width, source = self.same(name, inputs)
        size = self.window(name, (height, width, source), _pair(kernel), _pair(stride), valid=False)
        channels = channels or source
        weights = source * (kernel * kernel + channels) + (repeats - 1) * channels * (kernel * kernel + channels)
        self._count(weights, repeats * 4 * channels, trainable=repeats * 2 * channels)
        self._count(0, len(inputs) if len(inputs) > 1 else 0)
        return self._add(kind, name, inputs, (*size, channels), macs=weights * size[0] * size[1])

    def pool(self, name: str, x: str, *, kind: str = "MaxPool", kernel: int = 3, stride: int = 1) -> str:
        """Add a padded pooling, ``"MaxPool"`` or ``"AvgPool"``."""
        source = self.shape_of(x)
        height, width = self.window(name, source, _pair(kernel), _pair(stride), valid=False)
        return self._add(kind, name, (x,), (height, width, source[2]), attrs=self._sliding(kernel, stride))

    def global_pool(self, name: str, x: str) -> str:
        """Add the average over height and width."""
        return self._add("GlobalAvgPool", name, (x,), (1, 1, self.shape_of(x)[2]))

    def dense(self, name: str, x: str, units: int) -> str:
        """Add a fully connected layer with bias."""
        elements = prod(self.shape_of(x))
        self._count(elements * units, units)
        attrs = {"weight_shape": [units, elements]}
        return self._add("Dense", name, (x,), (1, 1, units), macs=elements * units, attrs=attrs)

    def batch_norm(self, name: str, x: str) -> str:
        """Add a batch normalisation, with two trainable parameters and two moving statistics per channel."""
        channels = self.shape_of(x)[2]
        if self.fold_batch_norms:
            self._count(0, channels)  # a bias
            return x
        self._count(0, 4 * channels, trainable=2 * channels)
        return self.elementwise("BatchNorm", name, x)

    def elementwise(self, kind: str, name: str, x: str) -> str:
        """Add an op of type `kind` with the shape of its input."""
        return self._add(kind, name, (x,), self.shape_of(x))

    def relu(self, name: str, x: str) -> str:
        """Add a rectified linear unit as a separate op."""
        return self.elementwise("Relu", name, x)

    def shift(self, name: str, x: str) -> str:
        """Shift the image up and left by one pixel, and fill with zeros: two ops, a Pad and a Crop."""
        height, width, channels = self.shape_of(x)
        padded = self._add("Pad", f"{name}/pad", (x,), (height + 1, width + 1, channels))
        return self._add("Crop", f"{name}/crop", (padded,), (height, width, channels))

    def add(self, name: str, *inputs: str) -> str:
        """Add the sum of tensors of one shape."""
        return self._add("Add", name, inputs, self.same(name, inputs), attrs={"inplace_ok": True})

    def weighted_add(self, name: str, *inputs: str) -> str:
        """Add the sum of tensors of one shape, each multiplied by a learned number."""
        self._count(0, len(inputs))
        return self._add("WeightedAdd", name, inputs, self.same(name, inputs))

    def mean(self, name: str, *inputs: str) -> str:
        """Add the mean of tensors of one shape."""
        return self._add("Average", name, inputs, self.same(name, inputs))

    def concat(self, name: str, *inputs: str, keep: bool = False) -> str:
        """Add a concatenation along the channels; `keep` prevents folding."""
        shape = self.concatenated(name, inputs)
        if keep:
            self._kept.add(name)
        return self._add("Concat", name, inputs, shape, attrs={"axis": CHANNEL_AXIS[self.layout]})

    def graph(self) -> ComputeGraph:
        """Return the graph; the order of the ops is the reference order, and unread tensors are graph outputs."""
        element = DTYPES[self.dtype]
        b = GraphBuilder(
            f"{self.name}-b{self.batch}",
            cost_unit="mac",
            source=self.source,
            constant_memory=self.param_bytes,
            meta={
                "family": "inference ordering",
                "dtype": self.dtype,
                "layout": self.layout,
                "batch": self.batch,
                "params": self.params,
                "overhead": {"input_bytes": 0, "param_bytes": self.param_bytes},
                "input_ops": [name for name, op in self.layers.items() if op.kind == "Input"],
                "shapes": {name: self._full(op.shape) for name, op in self.layers.items()},
                "attrs": {name: dict(op.attrs) for name, op in self.layers.items() if op.attrs},
            },
        )
        read: set[str] = set()
        for name, op in self.layers.items():
            size = self.batch * element * prod(op.shape)
            b.op(name, inputs=op.inputs, size=size, cost=self.batch * op.macs, type=op.kind)
            read.update(op.inputs)
        b.output(*(name for name in self.layers if name not in read))
        graph = b.build()
        return self._folded(graph) if self.fold_concats else graph

    def _folded(self, graph: ComputeGraph) -> ComputeGraph:
        """Return the graph without concatenations, by the rewriting rules."""
        rules = (RuleName.ZERO_COPY_CONCAT, RuleName.ZERO_COPY_SPLIT)
        chosen = {(rule, name) for rule in rules for name in self.layers if name not in self._kept}
        found = rewrite_graph(graph, RewriteOptions(rules=rules), chosen).graph
        return replace(found, name=graph.name, meta={k: v for k, v in found.meta.items() if k != "rewriting"})

    def _full(self, shape: Shape) -> list[int]:
        height, width, channels = shape
        image = [channels, height, width] if self.layout == "NCHW" else [height, width, channels]
        return [self.batch, *image]

    def _sliding(self, kernel: int | Pair, stride: int | Pair, valid: bool = False) -> dict[str, Any]:
        return {
            "kernel": list(_pair(kernel)), "stride": list(_pair(stride)), "padding": "VALID" if valid else "SAME"
        }  # fmt: skip

    def _count(self, weights: int, vectors: int, *, trainable: int | None = None) -> None:
        """Count parameters; `vectors` (biases and the like) have four bytes each in every data type."""
        self.params += weights + (vectors if trainable is None else trainable)
        self.param_bytes += DTYPES[self.dtype] * weights + 4 * vectors

    def _add(
        self, kind: str, name: str, inputs: Sequence[str], shape: Shape, *, macs: int = 0,
        attrs: dict[str, Any] | None = None,
    ) -> str:  # fmt: skip
        return self.record(Layer(name, kind, tuple(inputs), shape, macs, attrs=attrs or {}))


def _pair(size: int | Pair) -> Pair:
    return size if isinstance(size, tuple) else (size, size)
