"""Decoder-only transformers of any depth as training graphs, op by op."""

from __future__ import annotations

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.autograd import INDEX, Accumulation, Value, checked_size
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

    It has the dropouts of attention and after the embeddings. Copies split and join heads; they belong to the op
    ``split`` and to the second matrix product.

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
        If a number is no positive integer, or the width is no multiple of the heads.

    Examples
    --------
    >>> graph = gpt(layers=2)
    >>> sum(op.phase == "forward" for op in graph.ops), len(graph.ops)
    (37, 75)
    >>> graph.meta["modules"]["layers.1.attn.softmax"]
    'layers.1.attn'
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "sequence": sequence, "vocabulary": vocabulary}
    for what, size in sizes.items():
        checked_size(name, what, size)
    if width % heads:
        raise GraphError(f"{name}: the width, {width}, is no multiple of the number of heads, {heads}", "zoo")
    net = Operators(name, batch, accumulation=accumulation)
    tokens, positions = net.source((batch, sequence), INDEX), net.source((batch, sequence), INDEX)
    net.source((batch, sequence), INDEX)  # the target tokens of the loss
    with net.module("embedding"):
        x = net.add(
            "add",
            net.embedding("tokens", tokens, vocabulary, width),
            net.embedding("positions", positions, sequence, width),
        )
        x = net.dropout("dropout", x)
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            x = net.add("residual1", x, _attention(net, net.layer_norm("ln1", x), heads))
            x = net.add("residual2", x, _feed_forward(net, net.layer_norm("ln2", x)))
    with net.module("head"):
        x = net.linear("logits", net.layer_norm("ln", x), vocabulary, bias=False)
        x = net.elementwise("log_softmax", "log_softmax", x)
    return net.build("nll_loss", x, **sizes)


def _attention(net: Operators, x: Value, heads: int) -> Value:
    """Add self-attention with all its intermediate values."""
    batch, sequence, width = x.shape
    part = (batch, heads, sequence, width // heads)
    with net.module("attn"):
        q, k, v = net.split("split", net.linear("qkv", x, 3 * width), {"q": part, "k": part, "v": part})
        scores = net.elementwise("scale_mask", "mask", net.matmul("scores", q, k, transpose=True))
        weights = net.dropout("dropout", net.elementwise("softmax", "softmax", scores))
        context = net.matmul("context", weights, v, shape=x.shape)
        return net.linear("projection", context, width)


def _feed_forward(net: Operators, x: Value) -> Value:
    width = x.shape[-1]
    with net.module("mlp"):
        return net.linear("down", net.elementwise("gelu", "gelu", net.linear("up", x, 4 * width)), width)
