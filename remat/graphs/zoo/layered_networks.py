"""Image networks layer by layer: VGG, ResNet, MobileNet, FCN8, U-Net, SegNet."""

from __future__ import annotations

from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.network import Network, Shape, training_graph

VGG_WIDTHS = (64, 128, 256, 512, 512)
VGG16_DEPTHS = (2, 2, 3, 3, 3)
VGG19_DEPTHS = (2, 2, 4, 4, 4)
IMAGE: Shape = (224, 224, 3)


def vgg_blocks(net: Network, depths: tuple[int, ...]) -> list[str]:
    """Add the first ``len(depths)`` convolution blocks of VGG and return their pooling layers."""
    pools = []
    for block, (depth, width) in enumerate(zip(depths, VGG_WIDTHS, strict=False), 1):
        for number in range(1, depth + 1):
            net.conv(width, 3, name=f"block{block}_conv{number}")
        pools.append(net.pool(name=f"block{block}_pool"))
    return pools


def _vgg(name: str, depths: tuple[int, ...], batch: int, image: Shape, classes: int) -> ComputeGraph:
    net = Network(name, batch, image)
    vgg_blocks(net, depths)
    net.flatten()
    net.dense(4096, name="fc1")
    net.dense(4096, name="fc2")
    net.dense(classes, name="predictions")
    return training_graph(net)


def vgg16(batch: int = 256, image: Shape = IMAGE, classes: int = 1000) -> ComputeGraph:
    """Return the training graph of VGG16 (Simonyan and Zisserman 2015, configuration D).

    Examples
    --------
    >>> vgg16(), vgg16().reference_peak
    (ComputeGraph('vgg16-b256', 45 ops, 45 tensors, 87 edges), 15825108992)
    """
    return _vgg("vgg16", VGG16_DEPTHS, batch, image, classes)


def vgg19(batch: int = 256, image: Shape = IMAGE, classes: int = 1000) -> ComputeGraph:
    """Return the training graph of VGG19 (Simonyan and Zisserman 2015, configuration E)."""
    return _vgg("vgg19", VGG19_DEPTHS, batch, image, classes)


def resnet50(batch: int = 256, image: Shape = IMAGE, classes: int = 1000) -> ComputeGraph:
    """Return the training graph of ResNet50, version 1 (He et al. 2016), all convolutions with bias."""
    net = Network("resnet50", batch, image)
    net.pad(3, 3, name="conv1_pad")
    net.conv(64, 7, stride=2, same=False, name="conv1_conv")
    net.batch_norm(name="conv1_bn")
    net.activation(name="conv1_relu")
    net.pad(1, 1, name="pool1_pad")
    net.pool(3, 2, name="pool1_pool")
    for stage, (width, blocks, stride) in enumerate(((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)), 2):
        for block in range(1, blocks + 1):
            _bottleneck(net, f"conv{stage}_block{block}", width, stride if block == 1 else 1, project=block == 1)
    net.global_pool(name="avg_pool")
    net.dense(classes, name="predictions")
    return training_graph(net)


def _bottleneck(net: Network, name: str, width: int, stride: int, *, project: bool) -> None:
    """Add a residual block; with `project`, a 1 x 1 convolution on the shortcut comes just before the main path's."""
    shortcut = next(reversed(net.layers))
    net.conv(width, 1, stride=stride, name=f"{name}_1_conv", x=shortcut)
    net.batch_norm(name=f"{name}_1_bn")
    net.activation(name=f"{name}_1_relu")
    net.conv(width, 3, name=f"{name}_2_conv")
    net.batch_norm(name=f"{name}_2_bn")
    main = net.activation(name=f"{name}_2_relu")
    if project:
        shortcut = net.conv(4 * width, 1, stride=stride, name=f"{name}_0_conv", x=shortcut)
    main = net.conv(4 * width, 1, name=f"{name}_3_conv", x=main)
    if project:
        shortcut = net.batch_norm(name=f"{name}_0_bn", x=shortcut)
    main = net.batch_norm(name=f"{name}_3_bn", x=main)
    net.add(shortcut, main, name=f"{name}_add")
    net.activation(name=f"{name}_out")


#: Width and stride of each depthwise separable block of MobileNet.
_MOBILENET_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)


def mobilenet(batch: int = 512, image: Shape = IMAGE, classes: int = 1000) -> ComputeGraph:
    """Return the training graph of MobileNet, version 1 (Howard et al. 2017)."""
    net = Network("mobilenet", batch, image)
    net.pad(0, 1, name="conv1_pad")
    net.conv(32, 3, stride=2, same=False, bias=False, name="conv1")
    net.batch_norm(name="conv1_bn")
    net.activation(name="conv1_relu")
    for block, (width, stride) in enumerate(_MOBILENET_BLOCKS, 1):
        if stride == 2:
            net.pad(0, 1, name=f"conv_pad_{block}")
        net.depthwise(3, stride=stride, same=stride == 1, name=f"conv_dw_{block}")
        net.batch_norm(name=f"conv_dw_{block}_bn")
        net.activation(name=f"conv_dw_{block}_relu")
        net.conv(width, 1, bias=False, name=f"conv_pw_{block}")
        net.batch_norm(name=f"conv_pw_{block}_bn")
        net.activation(name=f"conv_pw_{block}_relu")
    net.global_pool()
    net.reshape(1, 1, 1024, name="reshape_1")
    net.dropout()
    net.conv(classes, 1, name="conv_preds")
    net.reshape(1, 1, classes, name="reshape_2")
    net.activation(name="predictions")
    return training_graph(net)


SCENE: Shape = (416, 608, 3)


def fcn8(batch: int = 32, image: Shape = SCENE, classes: int = 19) -> ComputeGraph:
    """Return the training graph of FCN8 on VGG16 (Long, Shelhamer and Darrell 2015)."""
    net = Network("fcn8", batch, image)
    _, _, pool3, pool4, _ = vgg_blocks(net, VGG16_DEPTHS)
    net.conv(4096, 7)
    net.dropout()
    net.conv(4096, 1)
    net.dropout()
    net.conv(classes, 1)

    up = net.conv_transpose(classes, 4, 2)
    height, width, _ = net.shape_of(pool4)
    net.crop(net.shape_of(up)[0], width)
    up = net.crop(height, width)
    net.add(up, net.conv(classes, 1, x=pool4))

    up = net.conv_transpose(classes, 4, 2)
    height, width, _ = net.shape_of(pool3)
    up = net.crop(net.shape_of(up)[0], width)
    side = net.conv(classes, 1, x=pool3)
    net.add(side, net.crop(height, width, x=up))

    return _classify_pixels(net, net.conv_transpose(classes, 16, 8))


def unet(batch: int = 32, image: Shape = SCENE, classes: int = 19) -> ComputeGraph:
    """Return the training graph of U-Net (Ronneberger, Fischer and Brox 2015) with the first four blocks of VGG16."""
    net = Network("unet", batch, image)
    pool1, pool2, pool3, _ = vgg_blocks(net, VGG16_DEPTHS[:4])
    _padded_conv(net, 512)
    for width, skip in ((256, pool3), (128, pool2), (64, pool1)):
        net.concat(net.upsample(), skip)
        _padded_conv(net, width)
    return _classify_pixels(net, net.conv(classes, 3))


def segnet(batch: int = 32, image: Shape = SCENE, classes: int = 19) -> ComputeGraph:
    """Return the training graph of SegNet (Badrinarayanan, Kendall and Cipolla 2017) with a plain encoder."""
    net = Network("segnet", batch, image)
    for width in (64, 128, 256, 256):
        _padded_conv(net, width)
        net.activation()
        net.pool()
    _padded_conv(net, 512)
    for width in (256, 128, 64):
        net.upsample()
        _padded_conv(net, width)
    return _classify_pixels(net, net.conv(classes, 3))


def _padded_conv(net: Network, width: int) -> None:
    """Add padding, a 3 x 3 convolution and a batch normalisation."""
    net.pad(1, 1)
    net.conv(width, 3, same=False)
    net.batch_norm()


def _classify_pixels(net: Network, scores: str) -> ComputeGraph:
    """Reshape to one row of scores per pixel, add a softmax layer and return the training graph."""
    height, width, classes = net.shape_of(scores)
    net.reshape(1, height * width, classes)
    net.activation()
    return training_graph(net)
