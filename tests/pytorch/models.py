"""Small models of common kinds, each a module and its sample arguments, scalable by arguments.

A module called with targets returns the loss (a scalar), otherwise its logits. `gpt`, `bert` and `encoder_decoder`
have dropout, `resnet` and `unet` batch norm. Their real sizes are in `FULL`: ``resnet(**FULL["resnet"])``.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from remat.torch.capture import capture, fake_tensors
from remat.torch.captured import Captured

Sample = tuple[nn.Module, tuple[Tensor, ...]]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.heads, self.dropout, self.causal = heads, dropout, causal

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        batch, _, width = x.shape
        q, k, v = (
            part.view(batch, -1, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.query(x), self.key(memory), self.value(memory))
        )
        drop = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, -1, width))


class Layer(nn.Module):
    """Transformer layer: attention, optional cross attention, two linear maps."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal)
        if cross:
            self.norm_cross = nn.LayerNorm(width)
            self.cross = Attention(width, heads, dropout, causal=False)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        if memory is not None:
            x = x + self.dropout(self.cross(self.norm_cross(x), memory))
        return x + self.dropout(self.mlp(self.norm_2(x)))


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Embedded(nn.Module):
    """Embeddings of tokens and positions."""

    def __init__(self, width: int, vocabulary: int, length: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.dropout(self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))


class Gpt(Embedded):
    """Token embedding and last linear map share their weight, as in GPT-2."""

    def __init__(self, layers: int, width: int, heads: int, *, vocabulary: int, length: int, dropout: float) -> None:
        super().__init__(width, vocabulary, length, dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.embedded(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return logits if targets is None else token_loss(logits, targets)


class Bert(Embedded):
    """Encoder with a head for masked tokens, and a pooler without gradient from a token loss."""

    def __init__(self, layers: int, width: int, heads: int, *, vocabulary: int, length: int, dropout: float) -> None:
        super().__init__(width, vocabulary, length, dropout)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads, dropout, causal=False) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("places", torch.arange(length))

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        x = self.dropout(self.norm(self.tokens(ids) + self.positions(self.places[: ids.shape[1]])))
        for layer in self.layers:
            x = layer(x)
        if targets is None:
            return {"logits": self.head(x), "pooled": torch.tanh(self.pooler(x[:, 0]))}
        return token_loss(self.head(x), targets)


class EncoderDecoder(Embedded):
    def __init__(self, layers: int, width: int, heads: int, *, vocabulary: int, length: int, dropout: float) -> None:
        super().__init__(width, vocabulary, length, dropout)
        self.encoder = nn.ModuleList(Layer(width, heads, dropout, causal=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, dropout, causal=True, cross=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        memory = self.embedded(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.embedded(ids)
        for layer in self.decoder:
            x = layer(x, memory)
        logits = self.head(self.norm(x))
        return logits if targets is None else token_loss(logits, targets)


def normed(*convolutions: nn.Module) -> list[nn.Module]:
    """Return the convolutions, each followed by batch norm and ReLU."""
    return [part for each in convolutions for part in (each, nn.BatchNorm2d(each.out_channels), nn.ReLU())]


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        *inner, self.relu = normed(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.Conv2d(width, 4 * width, 1, bias=False),
        )
        self.body, self.shortcut = nn.Sequential(*inner), nn.Sequential()
        if stride != 1 or channels != 4 * width:
            self.shortcut.extend(normed(nn.Conv2d(channels, 4 * width, 1, stride, bias=False))[:2])

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class Resnet(nn.Module):
    def __init__(self, blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*normed(nn.Conv2d(3, width, 7, 2, 3, bias=False)), nn.MaxPool2d(3, 2, 1))
        channels, self.stages = width, nn.Sequential()
        for number, count in enumerate(blocks):
            for block in range(count):
                self.stages.append(Bottleneck(channels, width << number, 2 if number and not block else 1))
                channels = 4 * (width << number)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.stages(self.stem(images))
        logits = self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits if targets is None else functional.cross_entropy(logits, targets)


def double_convolution(channels: int, width: int) -> nn.Module:
    """Return two convolutions with batch norm."""
    return nn.Sequential(*normed(nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)))


class Unet(nn.Module):
    def __init__(self, levels: int, width: int, classes: int) -> None:
        super().__init__()
        self.first = double_convolution(3, width)
        self.down = nn.ModuleList(double_convolution(width << k, width << (k + 1)) for k in range(levels - 1))
        self.pool = nn.MaxPool2d(2)
        upwards = [width << k for k in reversed(range(levels - 1))]
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * each, each, 2, 2) for each in upwards)
        self.join = nn.ModuleList(double_convolution(2 * each, each) for each in upwards)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor, targets: Tensor | None = None) -> Tensor:
        found = [self.first(images)]
        for block in self.down:
            found.append(block(self.pool(found[-1])))
        x = found.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([found.pop(), up(x)], 1))
        logits = self.last(x)
        return logits if targets is None else functional.cross_entropy(logits, targets)


class Net(nn.Module):
    """Dropout, batch norm, a tied weight, a branch and an option; returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.3)

    def forward(self, x: Tensor, target: Tensor | None = None, *, scale: float = 1.0) -> dict[str, Any]:
        y = torch.relu(self.norm(self.first(x)))
        for _ in range(6):
            y = torch.tanh(self.dropout(self.second(y)) * scale)
        loss = None if target is None else ((y - target) ** 2).mean()
        return {"y": y, "loss": loss}


def transformer(kind: Callable[..., nn.Module], sequences: int) -> Callable[..., Sample]:
    """Return a maker of transformers with `sequences` of ids and, with `loss`, targets as sample arguments."""

    def make(
        *, vocabulary: int = 64, length: int = 16, batch: int = 2, dropout: float = 0.1, loss: bool = True, **sizes: int
    ) -> Sample:
        sizes = {"layers": 2, "width": 32, "heads": 2, **sizes}
        module = kind(**sizes, vocabulary=vocabulary, length=length, dropout=dropout)
        return module, tuple(torch.randint(vocabulary, (batch, length)) for _ in range(sequences + loss))

    return make


gpt = transformer(Gpt, 1)
#: Without `loss` the module returns a dictionary.
bert = transformer(Bert, 1)
#: The first sequence is the encoder's.
encoder_decoder = transformer(EncoderDecoder, 2)


def resnet(
    *,
    blocks: Sequence[int] = (1, 1),
    width: int = 8,
    image: int = 32,
    classes: int = 10,
    batch: int = 2,
    loss: bool = True,
) -> Sample:
    """Return a ResNet; sample arguments are images and, with `loss`, classes."""
    args = (torch.randn(batch, 3, image, image), torch.randint(classes, (batch,)))
    return Resnet(blocks, width, classes), args[: 1 + loss]


def unet(
    *, levels: int = 3, width: int = 8, image: int = 32, classes: int = 4, batch: int = 2, loss: bool = True
) -> Sample:
    """Return a U-Net; sample arguments are images and, with `loss`, the class of each pixel."""
    args = (torch.randn(batch, 3, image, image), torch.randint(classes, (batch, image, image)))
    return Unet(levels, width, classes), args[: 1 + loss]


#: All models.
MODELS: dict[str, Callable[..., Any]] = {
    "gpt": gpt, "bert": bert, "encoder_decoder": encoder_decoder, "resnet": resnet, "unet": unet,
}  # fmt: skip
#: Smallest sizes of each model.
SMALLEST: dict[str, dict[str, Any]] = {
    **{name: {"layers": 1} for name in ("gpt", "bert", "encoder_decoder")},
    "resnet": {"blocks": (1,)},
    "unet": {"levels": 2},
}
#: Real sizes.
FULL: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "length": 512, "batch": 4},
    "bert": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 30522, "length": 512, "batch": 8},
    "encoder_decoder": {"layers": 6, "width": 512, "heads": 8, "vocabulary": 32000, "length": 256, "batch": 16},
    "resnet": {"blocks": (3, 4, 6, 3), "width": 64, "image": 224, "classes": 1000, "batch": 32},
    "unet": {"levels": 5, "width": 64, "image": 256, "batch": 4},
}


@cache
def captured(name: str, **sizes: Any) -> tuple[nn.Module, Captured]:
    """Return a model on fake tensors, smallest except for `sizes`, and its joint graph; cached."""
    with fake_tensors():
        module, args = MODELS[name](**{**SMALLEST[name], **sizes})
    return module, capture(module, args, route="joint", costs="flops")


def step_nodes(name: str, **sizes: Any) -> list[fx.Node]:
    """Return the calls of the joint graph of :func:`captured`."""
    return [node for node in captured(name, **sizes)[1].module.graph.nodes if node.op == "call_function"]


def traced(function: Callable[..., Any], *given: Any, dtype: torch.dtype = torch.float32) -> list[fx.Node]:
    """Return the calls of a function; a tuple stands for a tensor of that shape."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        tensors = [torch.empty(each, dtype=dtype) if isinstance(each, tuple) else each for each in given]
        with mode:
            graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors).graph
    return [node for node in graph.nodes if node.op == "call_function"]
