"""Kinds of ops, from the text of their type: ``Conv``, ``conv2d`` and ``Conv2D`` are the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Kind(StrEnum):
    """Families of ops whose axes follow one rule."""

    SOURCE = "source"
    """Without inputs."""
    CONV = "conv"
    DEPTHWISE = "depthwise"
    CONV_TRANSPOSE = "conv-transpose"
    LINEAR = "linear"
    """The last axis times a weight matrix."""
    MATMUL = "matmul"
    """The product of two tensors."""
    ELEMENTWISE = "element-wise"
    BATCH_NORM = "batch-norm"
    LAYER_NORM = "layer-norm"
    GROUP_NORM = "group-norm"
    INSTANCE_NORM = "instance-norm"
    SOFTMAX = "softmax"
    POOL = "pool"
    GLOBAL_POOL = "global-pool"
    SPATIAL = "spatial"
    """Padding, cropping or resizing along all axes except batch and channels."""
    REDUCE_SUM = "reduce-sum"
    CONCAT = "concat"
    SPLIT = "split"
    SLICE = "slice"
    FINISH = "finish"
    """Op after a sum of partial ops in a buffer of another type: bias, activation, requantisation."""
    COMPOSITE = "composite"
    """Several layers in one op; only the batch axis is parallel."""
    OPAQUE = "opaque"
    """Unknown, or requires its inputs in one piece."""


#: Attribute of an op that names its family.
KIND = "kind"
#: Prefix of the type of an op that computes a part of another.
PARTIAL = "Partial"

_WORDS = {
    Kind.SOURCE: "input placeholder constant variable",
    Kind.CONV: "conv convolution pointwiseconv convbn convbnrelu convrelu reluconvbn",
    Kind.DEPTHWISE: "depthwiseconv depthwiseconvolution depthwise depthconv dwconv",
    Kind.CONV_TRANSPOSE: "convtranspose transposedconv transposeconv deconv deconvolution",
    Kind.LINEAR: "linear dense fullyconnected gemm innerproduct",
    Kind.MATMUL: "matmul batchmatmul bmm",
    Kind.ELEMENTWISE: (
        "add sub subtract mul multiply div divide maximum minimum max min sum average sumn addn relu relu6 leakyrelu "
        "elu selu gelu silu swish hardswish sigmoid hardsigmoid tanh exp log sqrt square abs neg clip cast quantize "
        "dequantize requantize identity dropout activation softplus softsign mish erf noop copy"
    ),
    Kind.BATCH_NORM: "batchnorm batchnormalization bn fusedbatchnorm",
    Kind.LAYER_NORM: "layernorm layernormalization rmsnorm",
    Kind.GROUP_NORM: "groupnorm groupnormalization",
    Kind.INSTANCE_NORM: "instancenorm instancenormalization",
    Kind.SOFTMAX: "softmax logsoftmax",
    Kind.POOL: "pool maxpool maxpooling averagepool avgpool averagepooling avgpooling",
    Kind.GLOBAL_POOL: "globalpool globalaveragepool globalavgpool globalaveragepooling globalmaxpool globalmaxpooling",
    Kind.SPATIAL: "pad padding zeropadding crop cropping upsample upsampling resize resizebilinear resizenearest",
    Kind.REDUCE_SUM: "reducesum reducemean",
    Kind.CONCAT: "concat concatenate concatenation cat concatv2",
    Kind.SPLIT: "split splitv chunk",
    Kind.SLICE: "slice stridedslice narrow",
    Kind.FINISH: "finish",
    Kind.COMPOSITE: "sepconv separableconv dilconv factorizedreduce factorizedreduction cell block",
}  # fmt: skip
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()}


def plain(op_type: str) -> str:
    """Return the type of an op in lower case, without ``Partial``, ``2d``, blanks and the like.

    Examples
    --------
    >>> plain("PartialDepthwiseConv"), plain("max_pooling2d"), plain("ReLU6")
    ('depthwiseconv', 'maxpooling', 'relu6')
    """
    word = re.sub(r"[^a-z0-9]", "", op_type.removeprefix(PARTIAL).lower())
    return re.sub(r"[123]d$", "", word)


def kind_of(op_type: str, attributes: Mapping[str, Any] = MappingProxyType({})) -> Kind:
    """Return the family of an op, from its attribute ``kind`` or else from its type; opaque if unknown.

    Examples
    --------
    >>> kind_of("Conv2D"), kind_of("PartialConv"), kind_of("whatever")
    (<Kind.CONV: 'conv'>, <Kind.CONV: 'conv'>, <Kind.OPAQUE: 'opaque'>)
    >>> kind_of("Conv2D", {"kind": "opaque"})
    <Kind.OPAQUE: 'opaque'>
    """
    kind = attributes.get(KIND)
    return Kind(kind) if kind is not None else _KINDS.get(plain(op_type), Kind.OPAQUE)
