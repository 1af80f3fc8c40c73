"""Transformers and MLP-Mixer as training graphs, op by op."""

from __future__ import annotations

from math import prod

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.autograd import INDEX, Accumulation, Output, Value, check_sizes
from remat.graphs.zoo.blocks import (
    check_heads,
    classified_images,
    embedded_tokens,
    gelu_mlp,
    on_images,
    predicted_tokens,
    self_attention,
)
from remat.graphs.zoo.operators import Operators


def gpt(
    batch: int = 2,
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    sequence: int = 512,
    vocabulary: int = 50257,
    accumulation: Accumulation = "sums",
    name: str = "gpt",
) -> ComputeGraph:
    """Return the training graph of a GPT-like stack (Radford et al. 2019): 15 forward ops per layer and 7 around them.

    Dropouts are in the attention and after the embeddings. Copies split and join heads; they belong to the op ``split``
    and to the second matrix product.

    Parameters
    ----------
    batch : int
        Samples.
    sequence : int
        Tokens of a sample.
    accumulation : {"sums", "buffers"}
        Accumulation of gradients from several readers; see :class:`~remat.graphs.zoo.autograd.Tape`.
    name : str
        Name of the network.

    Raises
    ------
    GraphError
        If a number is not a positive integer, or the width is not a multiple of the heads.

    Examples
    --------
    >>> graph = gpt(layers=2)
    >>> sum(op.phase == "forward" for op in graph.ops), len(graph.ops)
    (37, 75)
    >>> graph.meta["modules"]["layers.1.attn.softmax"]
    'layers.1.attn'
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "sequence": sequence, "vocabulary": vocabulary}
    check_sizes(name, sizes)
    check_heads(name, width, heads)
    net = Operators(name, batch, accumulation=accumulation)
    x = embedded_tokens(net, sequence, vocabulary, width)
    net.source((batch, sequence), INDEX)  # the target tokens of the loss
    with net.module("embedding"):
        x = net.dropout("dropout", x)
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            x = net.add("residual1", x, _plain_attention(net, net.layer_norm("ln1", x), heads))
            x = net.add("residual2", x, gelu_mlp(net, net.layer_norm("ln2", x), 4 * width))
    with net.module("head"):
        x = net.layer_norm("ln", x)
    return predicted_tokens(net, x, sizes)


def _plain_attention(net: Operators, x: Value, heads: int) -> Value:
    """Add self-attention with all its intermediate values."""
    batch, sequence, width = x.shape
    part = (batch, heads, sequence, width // heads)
    with net.module("attn"):
        q, k, v = net.split("split", net.linear("qkv", x, 3 * width), {"q": part, "k": part, "v": part})
        scores = net.elementwise("scale_mask", "mask", net.matmul("scores", q, k, transpose=True))
        weights = net.dropout("dropout", net.elementwise("softmax", "softmax", scores))
        context = net.matmul("context", weights, v, shape=x.shape)
        return net.linear("projection", context, width)


def transformer(
    batch: int = 64,
    *,
    layers: int = 6,
    width: int = 512,
    heads: int = 8,
    sequence: int = 200,
    hidden: int = 2048,
    accumulation: Accumulation = "sums",
    name: str = "transformer",
) -> ComputeGraph:
    """Return the training graph of an encoder-decoder transformer (Vaswani et al. 2017).

    There are `layers` layers in the encoder and as many in the decoder, each of which reads the encoder's output.
    Embeddings and classifier are left out. Attention is one op that does not store its weights. Normalisations follow
    the sums and end both halves.

    Examples
    --------
    >>> graph = transformer(1, layers=6, sequence=10)
    >>> sum(op.phase == "forward" for op in graph.ops), graph.meta["params"]
    (218, 44140544)
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "sequence": sequence, "hidden": hidden}
    check_sizes(name, sizes)
    check_heads(name, width, heads)
    net = Operators(name, batch, accumulation=accumulation)
    memory, x = net.source((batch, sequence, width)), net.source((batch, sequence, width))
    net.source((batch, sequence, width))  # the target of the loss
    for layer in range(layers):
        with net.module(f"encoder.{layer}"):
            memory = _residual(net, "1", memory, self_attention(net, "self_attn", memory, heads))
            memory = _residual(net, "2", memory, _feed_forward(net, memory, hidden))
    with net.module("encoder"):
        memory = net.layer_norm("norm", memory)
    for layer in range(layers):
        with net.module(f"decoder.{layer}"):
            x = _residual(net, "1", x, self_attention(net, "self_attn", x, heads))
            x = _residual(net, "2", x, _cross_attention(net, x, memory, heads))
            x = _residual(net, "3", x, _feed_forward(net, x, hidden))
    with net.module("decoder"):
        x = net.layer_norm("norm", x)
    return net.build("mse_loss", x, **sizes)


def _residual(net: Operators, number: str, x: Value, y: Value) -> Value:
    return net.layer_norm(f"norm{number}", net.add(f"residual{number}", x, net.dropout(f"dropout{number}", y)))


def _cross_attention(net: Operators, x: Value, memory: Value, heads: int) -> Value:
    width = x.shape[-1]
    with net.module("cross_attn"):
        q = net.linear("q", x, width)
        k, v = net.split("split", net.linear("kv", memory, 2 * width), {"k": memory.shape, "v": memory.shape})
        return net.linear("out", net.attention("attention", q, k, v, heads), width)


def _feed_forward(net: Operators, x: Value, hidden: int) -> Value:
    with net.module("ff"):
        y = net.dropout("dropout", net.elementwise("relu", "relu", net.linear("linear1", x, hidden)))
        return net.linear("linear2", y, x.shape[-1])


def mlp_mixer(
    batch: int = 32,
    image: tuple[int, int, int] = (224, 224, 3),
    *,
    layers: int = 12,
    width: int = 768,
    patch: int = 16,
    tokens: int = 384,
    channels: int = 3072,
    classes: int = 1000,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of MLP-Mixer (Tolstikhin et al. 2021), B/16 by default; transposes are views, not ops.

    Parameters
    ----------
    image : (height, width, channels)
    layers, width, patch : int
        Side of a patch in pixels.
    tokens, channels : int
        Hidden units of the perceptrons that mix tokens and channels.
    accumulation : {"sums", "buffers"}
    """
    sizes = {"layers": layers, "width": width, "patch": patch, "tokens": tokens, "channels": channels}
    check_sizes("mlp-mixer", sizes)
    if any(side % patch for side in image[:2]):
        raise GraphError(f"mlp-mixer: patches of {patch} pixels do not tile an image of {image[0]} x {image[1]}", "zoo")
    net, x = on_images("mlp-mixer", batch, image, accumulation)
    x = net.conv("stem", x, width, patch, stride=patch)
    count = x.shape[1] * x.shape[2]
    x = Value(x.name, (batch, count, width))  # view as a list of patches
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            y = net.layer_norm("norm1", x)
            with net.module("tokens"):
                y = _over_patches(net, "linear1", y, (batch, width, tokens), features=count)
                y = _over_patches(net, "linear2", net.elementwise("gelu", "gelu", y), x.shape, features=tokens)
            x = net.add("residual1", x, y)
            y = net.layer_norm("norm2", x)
            with net.module("channels"):
                y = net.linear("linear2", net.elementwise("gelu", "gelu", net.linear("linear1", y, channels)), width)
            x = net.add("residual2", x, y)
    with net.module("head"):
        x = net.reshaped("mean", "mean", net.layer_norm("norm", x), (batch, width))
    return classified_images(net, x, image, classes, **sizes)


def _over_patches(net: Operators, name: str, x: Value, shape: tuple[int, ...], *, features: int) -> Value:
    """Add a linear layer over patches, with `features` inputs and as many outputs as `shape` implies."""
    flops = 2 * prod(shape) * features
    params = (features + 1) * (prod(shape) * features // prod(x.shape))
    return net.apply("linear", name, [x], [Output("", shape)], flops=flops, params=params)[0]
