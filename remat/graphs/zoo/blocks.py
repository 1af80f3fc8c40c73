"""Parts that several training graphs share: sources, attention, perceptrons and heads."""

from __future__ import annotations

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.autograd import INDEX, Accumulation, Value, check_sizes, checked_size
from remat.graphs.zoo.operators import ImageOperators, Operators


def check_heads(network: str, width: int, heads: int) -> None:
    """Raise GraphError if the width is not a multiple of the heads."""
    if width % heads:
        raise GraphError(f"{network}: the width, {width}, is no multiple of the number of heads, {heads}", "zoo")


def on_images(
    name: str, batch: int, image: tuple[int, int, int], accumulation: Accumulation
) -> tuple[ImageOperators, Value]:
    """Return a tape and its source, a batch of images; raise GraphError for a wrong shape."""
    net = ImageOperators(name, batch, accumulation=accumulation)
    if len(image) != 3:
        raise GraphError(f"{name}: an image has height, width and channels, not {image!r}", "zoo")
    check_sizes(name, dict(zip(("height", "width", "channels"), image, strict=True)))
    return net, net.source((batch, *image))


def classified_images(
    net: ImageOperators, x: Value, image: tuple[int, int, int], classes: int, **meta: int
) -> ComputeGraph:
    """Add a classifier of the features of each image and return the training graph."""
    net.source((net.batch,), INDEX)  # the labels
    with net.module("head"):
        x = net.linear("fc", x, checked_size(net.name, "classes", classes))
        x = net.elementwise("log_softmax", "log_softmax", x)
    return net.build("nll_loss", x, image=list(image), **meta)


def embedded_tokens(net: Operators, sequence: int, vocabulary: int, width: int) -> Value:
    """Add the sum of the embeddings of tokens and of their positions."""
    tokens, positions = (net.source((net.batch, sequence), INDEX) for _ in range(2))
    with net.module("embedding"):
        return net.add(
            "add",
            net.embedding("tokens", tokens, vocabulary, width),
            net.embedding("positions", positions, sequence, width),
        )


def predicted_tokens(net: Operators, x: Value, sizes: dict[str, int]) -> ComputeGraph:
    """Add the logits of ``sizes["vocabulary"]`` tokens and return the training graph."""
    with net.module("head"):
        x = net.linear("logits", x, sizes["vocabulary"], bias=False)
        x = net.elementwise("log_softmax", "log_softmax", x)
    return net.build("nll_loss", x, **sizes)


def self_attention(net: Operators, name: str, x: Value, heads: int) -> Value:
    """Add self-attention in module `name`, with one linear layer for queries, keys and values."""
    width = x.shape[-1]
    with net.module(name):
        q, k, v = net.split("split", net.linear("qkv", x, 3 * width), dict.fromkeys("qkv", x.shape))
        return net.linear("out", net.attention("attention", q, k, v, heads), width)


def attention(net: Operators, x: Value, read: Value, heads: int, unbiased: tuple[str, ...] = ()) -> Value:
    """Add attention of `x` to `read`, with linear layers ``q``, ``k``, ``v`` and ``out``; some have no bias."""
    width = x.shape[-1]
    q = net.linear("q", x, width, bias="q" not in unbiased)
    k, v = (net.linear(word, read, width, bias=word not in unbiased) for word in "kv")
    return net.linear("out", net.attention("attention", q, k, v, heads), width, bias="out" not in unbiased)


def gelu_mlp(net: Operators, x: Value, hidden: int) -> Value:
    """Add a perceptron with one hidden layer."""
    with net.module("mlp"):
        return net.linear("down", net.elementwise("gelu", "gelu", net.linear("up", x, hidden)), x.shape[-1])
