"""Current models of images and sound as training graphs, op by op: ViT, ConvNeXt, DiT, SD3, U-Net, Whisper."""

from __future__ import annotations

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.autograd import INDEX, Accumulation, Output, Value, check_sizes
from remat.graphs.zoo.blocks import (
    attention,
    check_heads,
    classified_images,
    embedded_tokens,
    gelu_mlp,
    on_images,
    predicted_tokens,
    self_attention,
)
from remat.graphs.zoo.operators import ImageOperators


def vit(
    batch: int = 16,
    image: tuple[int, int, int] = (224, 224, 3),
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    patch: int = 16,
    classes: int = 1000,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of a vision transformer (Dosovitskiy et al. 2021), B/16 by default.

    Examples
    --------
    >>> graph = vit(layers=2)
    >>> sum(op.phase == "forward" for op in graph.ops)
    29
    """
    check_sizes("vit", {"layers": layers, "width": width, "heads": heads, "patch": patch})
    check_heads("vit", width, heads)
    net, x = on_images("vit", batch, image, accumulation)
    x = net.conv("patches", x, width, patch, stride=patch)
    count = x.shape[1] * x.shape[2] + 1
    x = net.apply("concat", "class_token", [x], [Output("", (batch, count, width))], params=width)[0]
    x = net.apply("scale", "positions", [x], [Output("", x.shape)], params=count * width)[0]
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            x = net.add("residual1", x, self_attention(net, "attn", net.layer_norm("norm1", x), heads))
            x = net.add("residual2", x, gelu_mlp(net, net.layer_norm("norm2", x), 4 * width))
    with net.module("head"):
        x = net.reshaped("crop", "class", net.layer_norm("norm", x), (batch, width))
    return classified_images(net, x, image, classes)


def convnext(
    batch: int = 16,
    image: tuple[int, int, int] = (224, 224, 3),
    *,
    depths: tuple[int, ...] = (3, 3, 9, 3),
    width: int = 96,
    classes: int = 1000,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of ConvNeXt (Liu et al. 2022), tiny by default; `width` doubles with each stage.

    Examples
    --------
    >>> len(convnext(depths=(1, 1)).ops)
    46
    """
    check_sizes("convnext", {"width": width, **{f"depth {k}": n for k, n in enumerate(depths)}})
    net, x = on_images("convnext", batch, image, accumulation)
    x = net.layer_norm("stem.norm", net.conv("stem.conv", x, width, 4, stride=4))
    for stage, depth in enumerate(depths):
        channels = width << stage
        if stage:
            with net.module(f"down{stage}"):
                x = net.conv("conv", net.layer_norm("norm", x), channels, 2, stride=2)
        for block in range(depth):
            with net.module(f"stage{stage + 1}.{block}"):
                y = net.layer_norm("norm", net.conv("depthwise", x, channels, 7, groups=channels))
                y = net.linear("down", net.elementwise("gelu", "gelu", net.linear("up", y, 4 * channels)), channels)
                y = net.apply("scale", "scale", [y], [Output("", y.shape)], params=channels)[0]
                x = net.add("residual", x, y)
    with net.module("head"):
        x = net.layer_norm("norm", net.average_pool("pool", x))
    return classified_images(net, x, image, classes)


def dit(
    batch: int = 8,
    *,
    layers: int = 28,
    width: int = 1152,
    heads: int = 16,
    side: int = 32,
    channels: int = 4,
    patch: int = 2,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of a diffusion transformer (Peebles and Xie 2023), XL/2 on latents of 32 x 32.

    Every layer reads the embedding of time and label, through six vectors that shift, scale and gate.

    Examples
    --------
    >>> graph = dit(layers=1)
    >>> sum(op.phase == "forward" for op in graph.ops)
    30
    """
    check_sizes("dit", {"layers": layers, "width": width, "heads": heads, "side": side, "patch": patch})
    check_heads("dit", width, heads)
    net = ImageOperators("dit", batch, accumulation=accumulation)
    x = net.conv("patches", net.source((batch, side, side, channels)), width, patch, stride=patch)
    time, label = net.source((batch, 256)), net.source((batch,), INDEX)
    with net.module("condition"):
        embedded = net.linear("time2", net.elementwise("silu", "time_silu", net.linear("time1", time, width)), width)
        shared = net.elementwise("silu", "silu", net.add("add", embedded, net.embedding("label", label, 1001, width)))
    count = x.shape[1] * x.shape[2]
    x = net.reshaped("pad", "positions", x, (batch, count, width))  # adds fixed positions
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            shift1, scale1, gate1, shift2, scale2, gate2 = _vectors(net, shared, _MODULATION)
            y = _modulated(net, "1", x, shift1, scale1)
            x = net.add("residual1", x, net.multiply("gate1", self_attention(net, "attn", y, heads), gate1))
            y = gelu_mlp(net, _modulated(net, "2", x, shift2, scale2), 4 * width)
            x = net.add("residual2", x, net.multiply("gate2", y, gate2))
    with net.module("final"):
        shift, scale = _vectors(net, shared, ("shift", "scale"))
        x = net.linear("out", _modulated(net, "", x, shift, scale), patch * patch * 2 * channels)
    return net.build("mse_loss", x)


#: Vectors that shift, scale and gate both halves of a layer.
_MODULATION = ("shift1", "scale1", "gate1", "shift2", "scale2", "gate2")


def sd3(
    batch: int = 1,
    *,
    layers: int = 24,
    width: int = 1536,
    heads: int = 24,
    side: int = 64,
    channels: int = 16,
    patch: int = 2,
    context: tuple[int, int] = (154, 4096),
    pooled: int = 2048,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of Stable Diffusion 3's transformer (Esser et al. 2024), medium, on latents of 64 x 64.

    Image and text are two streams with parameters of their own; each layer has one attention over both. The last layer
    ends the stream of the text.

    Parameters
    ----------
    batch : int
        Samples.
    context : tuple of int
        Tokens and features of the text.
    pooled : int
        Features of the text as a whole.

    Examples
    --------
    >>> graph = sd3(layers=2)
    >>> sum(op.phase == "forward" for op in graph.ops)
    80
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "side": side, "patch": patch, "pooled": pooled}
    check_sizes("sd3", sizes)
    check_heads("sd3", width, heads)
    net = ImageOperators("sd3", batch, accumulation=accumulation)
    x = net.conv("patches", net.source((batch, side, side, channels)), width, patch, stride=patch)
    text, whole, time = net.source((batch, *context)), net.source((batch, pooled)), net.source((batch, 256))
    with net.module("condition"):
        embedded = net.linear("time2", net.elementwise("silu", "time_silu", net.linear("time1", time, width)), width)
        said = net.linear("text2", net.elementwise("silu", "text_silu", net.linear("text1", whole, width)), width)
        shared = net.elementwise("silu", "silu", net.add("add", embedded, said))
    x = net.reshaped("pad", "positions", x, (batch, x.shape[1] * x.shape[2], width))  # adds fixed positions
    text = net.linear("context", text, width)
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            x, text = _joint_layer(net, x, text, shared, (heads, layer == layers - 1))
    with net.module("final"):
        shift, scale = _vectors(net, shared, ("shift", "scale"))
        x = net.linear("out", _modulated(net, "", x, shift, scale), patch * patch * channels)
    return net.build("mse_loss", x)


def _joint_layer(
    net: ImageOperators, x: Value, text: Value, shared: Value, kind: tuple[int, bool]
) -> tuple[Value, Value]:  # fmt: skip
    """Add a layer of two streams; `kind` has the heads, and True for the last layer."""
    heads, is_last = kind
    width, streams = x.shape[-1], {"image": x, "text": text}
    vectors, reads = {}, []
    for word, value in streams.items():
        with net.module(word):
            names = _MODULATION[:2] if is_last and word == "text" else _MODULATION
            vectors[word] = _vectors(net, shared, names)
            y = net.linear("qkv", _modulated(net, "1", value, *vectors[word][:2]), 3 * width)
            reads.append(net.split("qkv_split", y, dict.fromkeys("qkv", value.shape)))
    rows = (x.shape[0], x.shape[1] + text.shape[1], width)
    with net.module("attn"):
        q, k, v = (net.apply("concat", f"join_{word}", parts, [Output("", rows)])[0]
                   for word, parts in zip("qkv", zip(*reads, strict=True), strict=True))  # fmt: skip
        y = net.attention("attention", q, k, v, heads)
        if is_last:
            attended = {"image": net.reshaped("crop", "image", y, x.shape)}
        else:
            shapes = {word: value.shape for word, value in streams.items()}
            attended = dict(zip(streams, net.split("split", y, shapes), strict=True))
    for word, y in attended.items():
        _, _, gate1, shift2, scale2, gate2 = vectors[word]
        with net.module(word):
            z = net.add("residual1", streams[word], net.multiply("gate1", net.linear("out", y, width), gate1))
            y = gelu_mlp(net, _modulated(net, "2", z, shift2, scale2), 4 * width)
            streams[word] = net.add("residual2", z, net.multiply("gate2", y, gate2))
    return streams["image"], streams["text"]


def _vectors(net: ImageOperators, shared: Value, names: tuple[str, ...]) -> tuple[Value, ...]:
    """Add vectors of the sample that depend on the condition."""
    batch, width = shared.shape
    made = net.linear("modulation", shared, len(names) * width)
    return net.split("split", made, dict.fromkeys(names, (batch, width)))


def _modulated(net: ImageOperators, number: str, x: Value, shift: Value, scale: Value) -> Value:
    """Add a normalisation without parameters of its own, scaled and shifted by vectors of the sample."""
    rows = x.shape[:-1]
    outputs = [Output("", x.shape), Output("mean", rows), Output("rstd", rows)]
    x = net.apply("layer_norm", f"norm{number}", [x], outputs)[0]
    return net.apply("modulate", f"modulate{number}", [x, scale, shift], [Output("", x.shape)])[0]


def diffusion_unet(
    batch: int = 4,
    *,
    side: int = 64,
    channels: int = 320,
    factors: tuple[int, ...] = (1, 2, 4, 4),
    blocks: int = 2,
    heads: int = 8,
    context: tuple[int, int] = (77, 768),
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of a latent diffusion U-Net (Rombach et al. 2022), Stable Diffusion 1 by default.

    All levels but the last attend to the `context`, tokens and features of a text.

    Examples
    --------
    >>> len(diffusion_unet(side=16, channels=32, factors=(1, 2), blocks=1).ops)
    409
    """
    check_sizes("diffusion-unet", {"side": side, "channels": channels, "blocks": blocks, "heads": heads})
    if side % (1 << (len(factors) - 1)):
        raise GraphError(f"diffusion-unet: a side of {side} cannot be halved {len(factors) - 1} times", "zoo")
    net = ImageOperators("diffusion-unet", batch, accumulation=accumulation)
    text, time = net.source((batch, *context)), net.source((batch, channels))
    with net.module("time"):
        vector = net.linear("linear2", net.elementwise("silu", "silu1", net.linear("linear1", time, 4 * channels)),
                            4 * channels)  # fmt: skip
        vector = net.elementwise("silu", "silu2", vector)
    x = net.conv("conv_in", net.source((batch, side, side, 4)), channels, 3)
    skips, last = [x], len(factors) - 1
    for level, factor in enumerate(factors):
        for block in range(blocks):
            with net.module(f"down{level}.{block}"):
                x = _residual(net, x, vector, channels * factor)
                x = _cross_block(net, x, text, heads) if level < last else x
            skips.append(x)
        if level < last:
            x = net.conv(f"down{level}.conv", x, channels * factor, 3, stride=2)
            skips.append(x)
    with net.module("middle"):
        with net.module("before"):
            x = _residual(net, x, vector, x.shape[-1])
        x = _cross_block(net, x, text, heads)
        with net.module("after"):
            x = _residual(net, x, vector, x.shape[-1])
    for level in reversed(range(len(factors))):
        for block in range(blocks + 1):
            with net.module(f"up{level}.{block}"):
                x = _residual(net, net.concat("concat", x, skips.pop()), vector, channels * factors[level])
                x = _cross_block(net, x, text, heads) if level < last else x
        if level:
            with net.module(f"up{level}"):
                grown = (batch, 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
                x = net.conv("conv", net.reshaped("resize", "resize", x, grown), x.shape[3], 3)
    with net.module("out"):
        x = net.conv("conv", net.elementwise("silu", "silu", net.group_norm("norm", x)), 4, 3)
    return net.build("mse_loss", x)


def _residual(net: ImageOperators, x: Value, vector: Value, channels: int) -> Value:
    """Add a residual block with the embedding of time."""
    with net.module("resnet"):
        y = net.conv("conv1", net.elementwise("silu", "silu1", net.group_norm("norm1", x)), channels, 3)
        shift = net.linear("time", vector, channels)
        y = net.apply("modulate", "add_time", [y, shift], [Output("", y.shape)])[0]
        y = net.conv("conv2", net.elementwise("silu", "silu2", net.group_norm("norm2", y)), channels, 3)
        kept = x if x.shape[-1] == channels else net.conv("skip", x, channels, 1)
        return net.add("add", kept, y)


def _cross_block(net: ImageOperators, x: Value, text: Value, heads: int) -> Value:
    """Add a transformer block on pixels: attention to themselves and to the text, and a gated perceptron."""
    batch, rows, columns, width = x.shape
    with net.module("attn"):
        y = net.conv("in", net.group_norm("norm", x), width, 1)
        y = Value(y.name, (batch, rows * columns, width))  # view as a list of pixels
        for name in ("self", "cross"):
            with net.module(name):
                z = net.layer_norm("norm", y)
                read = z if name == "self" else text
                y = net.add("residual", y, attention(net, z, read, heads, ("q", "k", "v")))
        with net.module("ff"):
            z = net.layer_norm("norm", y)
            gate = net.elementwise("gelu", "gelu", net.linear("gate", z, 4 * width))
            z = net.linear("down", net.multiply("multiply", net.linear("up", z, 4 * width), gate), width)
            y = net.add("residual", y, z)
        y = Value(y.name, x.shape)  # view as an image
        return net.add("add", x, net.conv("out", y, width, 1))


def whisper(
    batch: int = 8,
    *,
    layers: int = 6,
    width: int = 512,
    heads: int = 8,
    frames: int = 3000,
    sequence: int = 448,
    vocabulary: int = 51865,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of Whisper (Radford et al. 2022), base by default: sound to text.

    Examples
    --------
    >>> len(whisper(layers=1).ops)
    90
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "frames": frames, "sequence": sequence,
             "vocabulary": vocabulary}  # fmt: skip
    check_sizes("whisper", sizes)
    check_heads("whisper", width, heads)
    net = ImageOperators("whisper", batch, accumulation=accumulation)
    with net.module("encoder"):
        memory = net.elementwise("gelu", "gelu1", net.conv("conv1", net.source((batch, frames, 80)), width, 3))
        memory = net.elementwise("gelu", "gelu2", net.conv("conv2", memory, width, 3, stride=2))
    for layer in range(layers):
        with net.module(f"encoder.{layer}"):
            memory = net.add(
                "residual1", memory, _whisper_attention(net, "self", net.layer_norm("norm1", memory), heads)
            )
            memory = net.add("residual2", memory, gelu_mlp(net, net.layer_norm("norm2", memory), 4 * width))
    memory = net.layer_norm("encoder.norm", memory)
    x = embedded_tokens(net, sequence, vocabulary, width)
    net.source((batch, sequence), INDEX)  # the target tokens of the loss
    for layer in range(layers):
        with net.module(f"decoder.{layer}"):
            x = net.add("residual1", x, _whisper_attention(net, "self", net.layer_norm("norm1", x), heads))
            x = net.add("residual2", x, _whisper_attention(net, "cross", net.layer_norm("norm2", x), heads, memory))
            x = net.add("residual3", x, gelu_mlp(net, net.layer_norm("norm3", x), 4 * width))
    with net.module("head"):
        x = net.layer_norm("norm", x)
    return predicted_tokens(net, x, sizes)


def _whisper_attention(net: ImageOperators, name: str, x: Value, heads: int, memory: Value | None = None) -> Value:
    with net.module(name):
        return attention(net, x, x if memory is None else memory, heads, ("k",))
