"""Current language models as training graphs, op by op: decoders with gated or expert layers, Mamba, BERT, T5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.autograd import INDEX, Accumulation, Output, Value, check_sizes
from remat.graphs.zoo.blocks import attention, check_heads, predicted_tokens
from remat.graphs.zoo.operators import ImageOperators, Operators


@dataclass(frozen=True)
class Style:
    """Differences between decoders of today.

    Attributes
    ----------
    gate : str
        Activation of the gate, ``silu`` or ``gelu``.
    post_norm : bool
        Normalise the outputs of both halves as well (Gemma 2).
    head_norm : bool
        Normalise queries and keys (Qwen 3).
    experts, chosen : int
        Experts of a layer and those that each token uses; 0: one dense perceptron.
    """

    gate: str = "silu"
    post_norm: bool = False
    head_norm: bool = False
    experts: int = 0
    chosen: int = 0


LLAMA = Style()
GEMMA = Style(gate="gelu", post_norm=True)
QWEN = Style(head_norm=True)
QWEN_MOE = Style(head_norm=True, experts=64, chosen=8)


def decoder(
    batch: int = 1,
    *,
    layers: int = 16,
    width: int = 2048,
    heads: int = 32,
    groups: int = 8,
    head_width: int = 64,
    hidden: int = 8192,
    sequence: int = 1024,
    vocabulary: int = 128256,
    style: Style = LLAMA,
    accumulation: Accumulation = "sums",
    name: str = "llama",
) -> ComputeGraph:
    """Return the training graph of a decoder with rotary positions, grouped queries and gated perceptrons.

    The default is the size of Llama 3.2 1B (Dubey et al. 2024); `style` makes it Gemma 2 (Riviere et al. 2024), Qwen 3
    (Yang et al. 2025), or a mixture of experts like Qwen 3. Attention is one op, which stores no weights. The head has
    parameters of its own.

    Parameters
    ----------
    batch : int
        Samples.
    groups : int
        Heads of keys and values.
    hidden : int
        Hidden units of the perceptron, or of each expert.
    sequence : int
        Tokens of a sample.

    Raises
    ------
    GraphError
        If a number is not a positive integer, or the heads are no multiple of the groups.

    Examples
    --------
    >>> graph = decoder(layers=1, vocabulary=1000)
    >>> len(graph.ops), graph.name
    (45, 'llama-b1')
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "groups": groups, "head_width": head_width,
             "hidden": hidden, "sequence": sequence, "vocabulary": vocabulary}  # fmt: skip
    check_sizes(name, sizes)
    if heads % groups:
        raise GraphError(f"{name}: {heads} heads are no multiple of {groups} groups", "zoo")
    net = Operators(name, batch, accumulation=accumulation)
    x = net.embedding("tokens", net.source((batch, sequence), INDEX), vocabulary, width)
    net.source((batch, sequence), INDEX)  # the target tokens of the loss
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            y = _grouped_attention(net, net.rms_norm("norm1", x), (heads, groups, head_width), style)
            x = net.add("residual1", x, net.rms_norm("post_norm1", y) if style.post_norm else y)
            y = net.rms_norm("norm2", x)
            y = _experts(net, y, hidden, style) if style.experts else _gated_mlp(net, y, hidden, style.gate)
            x = net.add("residual2", x, net.rms_norm("post_norm2", y) if style.post_norm else y)
    return predicted_tokens(net, net.rms_norm("norm", x), sizes)


def _grouped_attention(net: Operators, x: Value, heads: tuple[int, int, int], style: Style) -> Value:
    queries, groups, width = heads
    with net.module("attn"):
        q = net.linear("q", x, queries * width, bias=False)
        k, v = (net.linear(word, x, groups * width, bias=False) for word in ("k", "v"))
        if style.head_norm:
            q, k = _head_norm(net, "q_norm", q, width), _head_norm(net, "k_norm", k, width)
        q, k = net.elementwise("rotary", "q_rotary", q), net.elementwise("rotary", "k_rotary", k)
        return net.linear("out", net.attention("attention", q, k, v, queries), x.shape[-1], bias=False)


def _head_norm(net: Operators, name: str, x: Value, width: int) -> Value:
    """Add a normalisation of each head."""
    statistics = Output("rstd", (*x.shape[:-1], x.shape[-1] // width))
    return net.apply("rms_norm", name, [x], [Output("", x.shape), statistics], params=width)[0]


def _gated_mlp(net: Operators, x: Value, hidden: int, gate: str) -> Value:
    with net.module("mlp"):
        return _gated(net, x, hidden, gate, partial(net.linear, bias=False))


def _gated(net: Operators, x: Value, hidden: int, gate: str, linear: Callable[[str, Value, int], Value]) -> Value:
    """Add a gated perceptron, whose linear layers `linear` adds: by name, input and features."""
    opened = net.elementwise(gate, gate, linear("gate", x, hidden))
    return linear("down", net.multiply("multiply", opened, linear("up", x, hidden)), x.shape[-1])


def _experts(net: Operators, x: Value, hidden: int, style: Style) -> Value:
    """Add a router and its experts: each token goes to `chosen` of them, and their products are grouped."""
    batch, sequence, width = x.shape
    rows, experts = batch * sequence * style.chosen, style.experts
    with net.module("moe"):
        scores = net.elementwise("softmax", "softmax", net.linear("router", x, experts, bias=False))
        shape = (batch, sequence, style.chosen)
        weights, chosen = net.apply("top_k", "top_k", [scores], [Output("", shape), Output("indices", shape, INDEX)])
        y = net.apply("gather", "dispatch", [x, chosen], [Output("", (rows, width))])[0]

        def product(name: str, value: Value, features: int) -> Value:
            depth = value.shape[-1]
            return net.apply("linear", name, [value], [Output("", (rows, features))], flops=2 * rows * depth * features,
                             params=experts * depth * features)[0]  # fmt: skip

        y = _gated(net, y, hidden, style.gate, product)
        return net.apply("weighted_scatter", "combine", [y, weights, chosen], [Output("", x.shape)])[0]


def mamba(
    batch: int = 2,
    *,
    layers: int = 24,
    width: int = 768,
    state: int = 16,
    sequence: int = 1024,
    vocabulary: int = 50280,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of Mamba (Gu and Dao 2023), 130M by default.

    The selective scan is one op; its backward op computes the states again, as the authors' kernel does.

    Examples
    --------
    >>> len(mamba(layers=1, vocabulary=1000).ops)
    39
    """
    sizes = {"layers": layers, "width": width, "state": state, "sequence": sequence, "vocabulary": vocabulary}
    check_sizes("mamba", sizes)
    net = ImageOperators("mamba", batch, accumulation=accumulation)
    x = net.embedding("tokens", net.source((batch, sequence), INDEX), vocabulary, width)
    net.source((batch, sequence), INDEX)  # the target tokens of the loss
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            x = net.add("residual", x, _mamba_block(net, net.rms_norm("norm", x), state))
    return predicted_tokens(net, net.rms_norm("norm", x), sizes)


def _mamba_block(net: ImageOperators, x: Value, state: int) -> Value:
    batch, sequence, width = x.shape
    inner, rank = 2 * width, -(-width // 16)
    wide = (batch, sequence, inner)
    with net.module("mixer"):
        y, gate = net.split("split", net.linear("in", x, 2 * inner, bias=False), {"x": wide, "z": wide})
        y = net.elementwise("silu", "silu", net.conv("conv", y, inner, 4, groups=inner))
        parts = {"dt": (batch, sequence, rank), "b": (batch, sequence, state), "c": (batch, sequence, state)}
        step, into, out = net.split("parts", net.linear("project", y, rank + 2 * state, bias=False), parts)
        step = net.elementwise("softplus", "softplus", net.linear("dt", step, inner))
        flops = 9 * batch * sequence * inner * state
        scanned = net.apply("scan", "scan", [y, step, into, out], [Output("", wide)], flops=flops,
                            params=inner * (state + 1))[0]  # fmt: skip
        y = net.multiply("gate", scanned, net.elementwise("silu", "gate_silu", gate))
        return net.linear("out", y, width, bias=False)


def bert(
    batch: int = 8,
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    sequence: int = 512,
    vocabulary: int = 30522,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of BERT (Devlin et al. 2019), base by default, that predicts masked tokens.

    Examples
    --------
    >>> graph = bert(layers=2)
    >>> sum(op.phase == "forward" for op in graph.ops)
    39
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "sequence": sequence, "vocabulary": vocabulary}
    check_sizes("bert", sizes)
    check_heads("bert", width, heads)
    net = Operators("bert", batch, accumulation=accumulation)
    tokens, positions, segments = (net.source((batch, sequence), INDEX) for _ in range(3))
    with net.module("embedding"):
        x = net.add(
            "add", net.embedding("tokens", tokens, vocabulary, width),
            net.embedding("positions", positions, 512, width), net.embedding("segments", segments, 2, width),
        )  # fmt: skip
        x = net.dropout("dropout", net.layer_norm("norm", x))
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            y = net.dropout("dropout1", attention(net, x, x, heads))
            x = net.layer_norm("norm1", net.add("residual1", x, y))
            y = net.linear("down", net.elementwise("gelu", "gelu", net.linear("up", x, 4 * width)), width)
            x = net.layer_norm("norm2", net.add("residual2", x, net.dropout("dropout2", y)))
    with net.module("transform"):
        x = net.layer_norm("norm", net.elementwise("gelu", "gelu", net.linear("dense", x, width)))
    return predicted_tokens(net, x, sizes)


def t5(
    batch: int = 8,
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    sequence: int = 512,
    answer: int = 128,
    vocabulary: int = 32128,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of T5 (Raffel et al. 2020), base by default; `answer` is the tokens of the decoder.

    Encoder and decoder have a table of tokens each, and their relative positions belong to the attention.

    Examples
    --------
    >>> len(t5(layers=1).ops)
    99
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "hidden": hidden, "sequence": sequence,
             "answer": answer, "vocabulary": vocabulary}  # fmt: skip
    check_sizes("t5", sizes)
    check_heads("t5", width, heads)
    net = Operators("t5", batch, accumulation=accumulation)
    source, target = net.source((batch, sequence), INDEX), net.source((batch, answer), INDEX)
    net.source((batch, answer), INDEX)  # the target tokens of the loss
    memory = net.embedding("encoder_tokens", source, vocabulary, width)
    for layer in range(layers):
        with net.module(f"encoder.{layer}"):
            memory = _t5_attention(net, "self", memory, memory, heads)
            memory = _t5_feed_forward(net, memory, hidden)
    memory = net.dropout("encoder_dropout", net.rms_norm("encoder_norm", memory))
    x = net.embedding("decoder_tokens", target, vocabulary, width)
    for layer in range(layers):
        with net.module(f"decoder.{layer}"):
            x = _t5_attention(net, "self", x, x, heads)
            x = _t5_attention(net, "cross", x, memory, heads)
            x = _t5_feed_forward(net, x, hidden)
    return predicted_tokens(net, net.dropout("dropout", net.rms_norm("norm", x)), sizes)


def _t5_attention(net: Operators, name: str, x: Value, memory: Value, heads: int) -> Value:
    """Add a residual attention; `memory` equal to `x` makes it self-attention."""
    with net.module(name):
        y = net.rms_norm("norm", x)
        out = attention(net, y, y if memory is x else memory, heads, ("q", "k", "v", "out"))
        return net.add("residual", x, net.dropout("dropout", out))


def _t5_feed_forward(net: Operators, x: Value, hidden: int) -> Value:
    with net.module("ff"):
        y = net.elementwise("relu", "relu", net.linear("up", net.rms_norm("norm", x), hidden, bias=False))
        y = net.linear("down", net.dropout("inner_dropout", y), x.shape[-1], bias=False)
        return net.add("residual", x, net.dropout("dropout", y))
