"""Short descriptions of the networks of the zoo."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from remat.graphs.zoo import VARIANTS

#: Networks without the suffixes of their variants. Training graphs have forward and backward ops.
_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "vgg16": "image classifier, training",
        "vgg19": "image classifier, training",
        "fcn8": "segmentation on VGG16, training",
        "unet": "segmentation, training",
        "segnet": "segmentation, training",
        "mobilenet": "image classifier, training",
        "resnet50": "image classifier, training",
        "gpt": "language model, 12 layers, training",
        "gpt-medium": "language model, 24 layers, training",
        "gpt-large": "language model, 36 layers, training",
        "gpt-largest": "language model, 96 layers, training",
        "transformer": "encoder and decoder, training",
        "transformer-36": "encoder and decoder, 36 layers, training",
        "mlp-mixer": "image classifier of perceptrons, training",
        "unet-ops": "segmentation, training, op by op",
        "resnet50-ops": "image classifier, training, op by op",
        "resnet101-ops": "image classifier, training, op by op",
        "resnet152-ops": "image classifier, training, op by op",
        "regnet-32": "image classifier, training",
        "fno-1d": "Fourier operator on a line, training",
        "fno-3d": "Fourier operator in space, training",
        "u-fno": "Fourier operator with U-Net, training",
        "uno": "U-shaped Fourier operator, training",
        "llama": "language model, training",
        "gemma": "language model, training",
        "qwen": "language model, training",
        "qwen-moe": "language model with experts, training",
        "mamba": "state-space language model, training",
        "bert": "language encoder, training",
        "t5": "text to text, training",
        "whisper": "speech to text, training",
        "vit": "vision transformer, training",
        "convnext": "image classifier, training",
        "dit": "diffusion transformer, training",
        "sd3": "diffusion transformer of image and text, training",
        "diffusion-unet": "diffusion U-Net, training",
        "swiftnet": "network for microcontrollers, inference",
        "swiftnet-a": "cell A of SwiftNet, inference",
        "swiftnet-b": "cell B of SwiftNet, inference",
        "swiftnet-c": "cell C of SwiftNet, inference",
        "swiftnet-cells": "three cells of SwiftNet, inference",
        "darts": "searched network, inference",
        "darts-cell": "first cell of DARTS, inference",
        "nasnet-a-mobile": "searched network, small, inference",
        "nasnet-a-large": "searched network, inference",
        "amoebanet-a-mobile": "searched network, small, inference",
        "amoebanet-a": "searched network, inference",
        "randwire-small": "randomly wired network, inference",
        "randwire-regular": "randomly wired network, inference",
        "randwire-cifar10": "randomly wired network, inference",
        "randwire-cifar100": "randomly wired network, inference",
    }
)
_VARIANTS = dict(zip(VARIANTS, ("without concatenations", "separable convolutions as one op"), strict=True))


def title_of(name: str) -> str:
    """Return what a network of the zoo is.

    Examples
    --------
    >>> title_of("unet"), title_of("swiftnet-a-folded")
    ('segmentation, training', 'cell A of SwiftNet, inference, without concatenations')
    """
    variants = [suffix for suffix in VARIANTS if suffix in name]
    base = name
    for suffix in variants:
        base = base.replace(suffix, "")
    return ", ".join([_TITLES[base], *(_VARIANTS[suffix] for suffix in variants)])
