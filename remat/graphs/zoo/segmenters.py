"""Semantic segmentation: FCN8, U-Net, SegNet."""

from __future__ import annotations

from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.classifiers import VGG16_DEPTHS, vgg_blocks
from remat.graphs.zoo.network import Network, Shape
from remat.graphs.zoo.training import training_graph

IMAGE: Shape = (416, 608, 3)


def fcn8(batch: int = 32, image: Shape = IMAGE, classes: int = 19) -> ComputeGraph:
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


def unet(batch: int = 32, image: Shape = IMAGE, classes: int = 19) -> ComputeGraph:
    """Return the training graph of U-Net (Ronneberger, Fischer and Brox 2015) with the first four blocks of VGG16."""
    net = Network("unet", batch, image)
    pool1, pool2, pool3, _ = vgg_blocks(net, VGG16_DEPTHS[:4])
    _padded_conv(net, 512)
    for width, skip in ((256, pool3), (128, pool2), (64, pool1)):
        net.concat(net.upsample(), skip)
        _padded_conv(net, width)
    return _classify_pixels(net, net.conv(classes, 3))


def segnet(batch: int = 32, image: Shape = IMAGE, classes: int = 19) -> ComputeGraph:
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
