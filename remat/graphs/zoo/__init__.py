"""Graphs of published networks, built layer by layer.

Training graphs have the batch and image sizes of the Checkmate paper. Training steps come from automatic
differentiation, op by op at the granularity of the HiRemate paper. Inference graphs are networks with irregular wiring,
for one sample, op by op as published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.autograd import Tape
from remat.graphs.zoo.convolutional import regnet, resnet_ops, unet_ops
from remat.graphs.zoo.darts import darts_cell, genotype_network
from remat.graphs.zoo.fourier import fno, u_fno, uno
from remat.graphs.zoo.inference import InferenceNetwork
from remat.graphs.zoo.language_models import GEMMA, QWEN, QWEN_MOE, bert, decoder, mamba, t5
from remat.graphs.zoo.layered_networks import fcn8, mobilenet, resnet50, segnet, unet, vgg16, vgg19
from remat.graphs.zoo.nasnet import MOBILE, cell_network
from remat.graphs.zoo.network import Layer, Network, training_graph
from remat.graphs.zoo.randwire import REGIMES, randwire, watts_strogatz
from remat.graphs.zoo.swiftnet import swiftnet, swiftnet_cell, swiftnet_cells
from remat.graphs.zoo.transformers import gpt, mlp_mixer, transformer
from remat.graphs.zoo.vision_models import convnext, diffusion_unet, dit, sd3, vit, whisper

#: Training graphs by name; each takes a batch, an image shape and a number of classes, with published defaults.
TRAINING: Mapping[str, Callable[..., ComputeGraph]] = MappingProxyType(
    {maker.__name__: maker for maker in (vgg16, vgg19, fcn8, unet, segnet, mobilenet, resnet50)}
)

#: Training graphs op by op, by name; each takes a batch. Presets fix the sizes of a network.
TRAINING_STEPS: Mapping[str, Callable[..., ComputeGraph]] = MappingProxyType(
    {
        "gpt": gpt,
        "gpt-medium": partial(gpt, name="gpt-medium", layers=24, width=1024, heads=16),
        "gpt-large": partial(gpt, name="gpt-large", layers=36, width=1280, heads=20),
        "gpt-largest": partial(gpt, name="gpt-largest", layers=96, width=1024, heads=16),
        "transformer": transformer,
        "transformer-36": partial(transformer, name="transformer-36", layers=36),
        "mlp-mixer": mlp_mixer,
        "unet-ops": unet_ops,
        "resnet50-ops": resnet_ops,
        "resnet101-ops": partial(resnet_ops, depth=101),
        "resnet152-ops": partial(resnet_ops, depth=152),
        "regnet-32": regnet,
        "fno-1d": partial(fno, name="fno-1d"),
        "fno-3d": partial(
            fno, name="fno-3d", sides=(64, 64, 40), modes=8, width=20, features=10, padding=6, project=80
        ),
        "u-fno": u_fno,
        "uno": uno,
        "llama": decoder,
        "gemma": partial(
            decoder,
            name="gemma",
            style=GEMMA,
            layers=26,
            width=2304,
            heads=8,
            groups=4,
            head_width=256,
            hidden=9216,
            vocabulary=256000,
        ),
        "qwen": partial(
            decoder,
            name="qwen",
            style=QWEN,
            layers=28,
            width=1024,
            heads=16,
            groups=8,
            head_width=128,
            hidden=3072,
            vocabulary=151936,
        ),
        "qwen-moe": partial(
            decoder,
            name="qwen-moe",
            style=QWEN_MOE,
            layers=12,
            width=1024,
            heads=16,
            groups=4,
            hidden=512,
            vocabulary=151936,
        ),
        "mamba": mamba,
        "bert": bert,
        "t5": t5,
        "whisper": whisper,
        "vit": vit,
        "convnext": convnext,
        "dit": dit,
        "sd3": sd3,
        "diffusion-unet": diffusion_unet,
    }
)

_MOBILE: dict[str, Any] = {"image": MOBILE, "cells": 12}
_WITH_CONCATS: dict[str, Callable[..., ComputeGraph]] = {
    "swiftnet-a": partial(swiftnet_cell, cell="a"),
    "swiftnet-b": partial(swiftnet_cell, cell="b"),
    "swiftnet-c": partial(swiftnet_cell, cell="c"),
    "swiftnet-cells": swiftnet_cells,
    "swiftnet": swiftnet,
    "darts-cell-coarse": partial(darts_cell, coarse=True),
    "darts-cell": darts_cell,
    "darts": genotype_network,
    "nasnet-a-mobile": partial(cell_network, **_MOBILE, network="nasnet-a-mobile", filters=44, stem_filters=32),
    "nasnet-a-large": partial(cell_network, network="nasnet-a-large"),
    "amoebanet-a-mobile": partial(cell_network, **_MOBILE, network="amoebanet-a-mobile", filters=50, stem_filters=32),
    "amoebanet-a": partial(cell_network, network="amoebanet-a", filters=190, stem_filters=32),
}
#: Inference graphs by name; each takes a batch. Names with ``-folded`` have no concatenations: readers read the parts
#: instead. In names with ``-coarse`` a separable convolution is one op.
INFERENCE: Mapping[str, Callable[..., ComputeGraph]] = MappingProxyType(
    {
        name + suffix: partial(maker, fold_concats=True) if suffix else maker
        for name, maker in _WITH_CONCATS.items()
        for suffix in ("", "-folded")
    }
    | {
        f"randwire-{regime}{suffix}": partial(randwire, regime=regime, coarse=bool(suffix))
        for regime in REGIMES
        for suffix in ("", "-coarse")
    }
)

#: Suffixes of the names of variants of a network.
VARIANTS = ("-folded", "-coarse")
#: All networks by name.
ZOO: Mapping[str, Callable[..., ComputeGraph]] = MappingProxyType({**TRAINING, **TRAINING_STEPS, **INFERENCE})

__all__ = [
    "INFERENCE",
    "TRAINING",
    "TRAINING_STEPS",
    "VARIANTS",
    "ZOO",
    "InferenceNetwork",
    "Layer",
    "Network",
    "Tape",
    "bert",
    "cell_network",
    "convnext",
    "darts_cell",
    "decoder",
    "diffusion_unet",
    "dit",
    "fcn8",
    "fno",
    "genotype_network",
    "gpt",
    "mamba",
    "mlp_mixer",
    "mobilenet",
    "randwire",
    "regnet",
    "resnet50",
    "resnet_ops",
    "sd3",
    "segnet",
    "swiftnet",
    "swiftnet_cell",
    "swiftnet_cells",
    "t5",
    "training_graph",
    "transformer",
    "u_fno",
    "unet",
    "unet_ops",
    "uno",
    "vgg16",
    "vgg19",
    "vit",
    "watts_strogatz",
    "whisper",
]
