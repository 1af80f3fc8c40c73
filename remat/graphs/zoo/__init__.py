"""Training graphs of published networks, built layer by layer with the batch and image sizes of the publications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.classifiers import mobilenet, resnet50, vgg16, vgg19
from remat.graphs.zoo.network import Layer, Network
from remat.graphs.zoo.segmenters import fcn8, segnet, unet
from remat.graphs.zoo.training import training_graph

#: All networks by name; each takes a batch, an image shape and a number of classes, all with published defaults.
ZOO: Mapping[str, Callable[..., ComputeGraph]] = MappingProxyType(
    {maker.__name__: maker for maker in (vgg16, vgg19, fcn8, unet, segnet, mobilenet, resnet50)}
)

__all__ = [
    "ZOO",
    "Layer",
    "Network",
    "fcn8",
    "mobilenet",
    "resnet50",
    "segnet",
    "training_graph",
    "unet",
    "vgg16",
    "vgg19",
]
