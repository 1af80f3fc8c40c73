"""Convolutional networks as training graphs, op by op: ResNet, RegNet, U-Net."""

from __future__ import annotations

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.autograd import Accumulation, Value
from remat.graphs.zoo.blocks import classified_images, on_images
from remat.graphs.zoo.operators import ImageOperators
from remat.runtime.text import either

#: Blocks of each stage of the ResNets with bottlenecks, by depth.
RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
IMAGE = (224, 224, 3)


def resnet_ops(
    batch: int = 32,
    image: tuple[int, int, int] = IMAGE,
    *,
    depth: int = 50,
    classes: int = 1000,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of a ResNet with 50, 101 or 152 layers (He et al. 2016; stride in 3 x 3 convolutions).

    ReLUs and the sums of residual blocks are in place, as in torchvision: they and the preceding normalisation are one
    op. Running statistics of the normalisations are separate outputs, kept at the end.

    Examples
    --------
    >>> graph = resnet_ops(1, (64, 64, 3), depth=101)
    >>> sum(op.phase == "forward" for op in graph.ops), graph.meta["params"]
    (212, 44549160)
    """
    if depth not in RESNETS:
        raise GraphError(f"resnet: the depth is {either(list(map(str, RESNETS)))}, not {depth!r}", "zoo")
    net, x = on_images(f"resnet{depth}-ops", batch, image, accumulation)
    x = net.conv("conv1", x, 64, 7, stride=2, bias=False)
    x = net.max_pool("maxpool", net.batch_norm("bn1", x, then="relu"))
    for stage, blocks in enumerate(RESNETS[depth]):
        for block in range(blocks):
            with net.module(f"layer{stage + 1}.{block}"):
                x = _bottleneck(net, x, 64 << stage, stride=2 if stage and not block else 1, project=not block)
    return _classified(net, x, image, classes)


def _bottleneck(net: ImageOperators, x: Value, width: int, *, stride: int, project: bool) -> Value:
    out = net.batch_norm("bn1", net.conv("conv1", x, width, 1, bias=False), then="relu")
    out = net.batch_norm("bn2", net.conv("conv2", out, width, 3, stride=stride, bias=False), then="relu")
    out = net.conv("conv3", out, 4 * width, 1, bias=False)
    if project:
        with net.module("downsample"):
            x = net.batch_norm("bn", net.conv("conv", x, 4 * width, 1, stride=stride, bias=False))
    return net.batch_norm("bn3", out, then="relu", other=x)


def regnet(
    batch: int = 32, image: tuple[int, int, int] = IMAGE, *, classes: int = 1000, accumulation: Accumulation = "sums"
) -> ComputeGraph:
    """Return the training graph of RegNetX-32GF (Radosavovic et al. 2020); ReLUs are in place."""
    net, x = on_images("regnet-32", batch, image, accumulation)
    with net.module("stem"):
        x = net.batch_norm("bn", net.conv("conv", x, 32, 3, stride=2, bias=False), then="relu")
    for stage, (width, blocks) in enumerate(((336, 2), (672, 7), (1344, 13), (2520, 1))):
        for block in range(blocks):
            with net.module(f"stage{stage + 1}.{block}"):
                stride = 1 if block else 2
                kept = x
                if not block:
                    with net.module("proj"):
                        kept = net.batch_norm("bn", net.conv("conv", x, width, 1, stride=stride, bias=False))
                out = net.batch_norm("bn_a", net.conv("conv_a", x, width, 1, bias=False), then="relu")
                out = net.conv("conv_b", out, width, 3, stride=stride, groups=width // 168, bias=False)
                out = net.conv("conv_c", net.batch_norm("bn_b", out, then="relu"), width, 1, bias=False)
                x = net.add("add", kept, net.batch_norm("bn_c", out), relu=True)
    return _classified(net, x, image, classes)


def unet_ops(
    batch: int = 16,
    image: tuple[int, int, int] = (256, 256, 3),
    *,
    classes: int = 2,
    width: int = 64,
    levels: int = 4,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of U-Net (Ronneberger et al. 2015), with padded convolutions and no cropping.

    Raise GraphError if the image cannot be halved `levels` times.

    Examples
    --------
    >>> graph = unet_ops(1, (32, 32, 3))
    >>> sum(op.phase == "forward" for op in graph.ops), graph.meta["params"]
    (50, 31031810)
    """
    net, x = on_images("unet-ops", batch, image, accumulation)
    if any(side % 2**levels for side in image[:2]):
        raise GraphError(f"unet-ops: an image of {image[0]} x {image[1]} cannot be halved {levels} times", "zoo")
    skips = []
    for level in range(levels):
        with net.module(f"down{level + 1}"):
            x = _two_convs(net, x, width << level)
            skips.append(x)
            x = net.max_pool("pool", x)
    with net.module("bottom"):
        x = _two_convs(net, x, width << levels)
    for level in reversed(range(levels)):
        with net.module(f"up{level + 1}"):
            x = net.conv_transpose("up", x, width << level, 2, 2)
            x = _two_convs(net, net.concat("concat", skips.pop(), x), width << level)
    with net.module("head"):
        x = net.elementwise("log_softmax", "log_softmax", net.conv("conv", x, classes, 1))
    return net.build("nll_loss", x, image=list(image))


def _two_convs(net: ImageOperators, x: Value, width: int) -> Value:
    for number in (1, 2):
        x = net.elementwise("relu", f"relu{number}", net.conv(f"conv{number}", x, width, 3))
    return x


def _classified(net: ImageOperators, x: Value, image: tuple[int, int, int], classes: int) -> ComputeGraph:
    """Add pooling and the classifier, and return the training graph."""
    with net.module("head"):
        x = net.average_pool("pool", x)
    return classified_images(net, x, image, classes)
