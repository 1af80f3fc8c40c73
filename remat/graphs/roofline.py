"""Times of training steps of the zoo on a device, by its data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.runtime.text import nearest


@dataclass(frozen=True)
class Rates:
    """Rates of a device."""

    products: float
    """FLOPs per ns of matrix products and convolutions."""
    bandwidth: float
    """Bytes per ns."""
    launch: int = 5_000
    """Least time of an op in ns: that of starting a kernel from eager PyTorch."""


#: Dense rates of NVIDIA's data sheets, SXM, with products of 32-bit numbers rounded to TF32.
RATES: Mapping[str, Rates] = MappingProxyType(
    {"A100": Rates(156e3, 2039), "H100": Rates(494.5e3, 3350), "H200": Rates(494.5e3, 4800)}
)


def with_times(graph: ComputeGraph, device: str) -> ComputeGraph:
    """Return a training step of the zoo with costs in ns: time of its FLOPs or its bytes, whichever is longer.

    Source: Williams, Waterman and Patterson, *Roofline* (2009).

    Parameters
    ----------
    device : str
        A name in :data:`RATES`.

    Raises
    ------
    GraphError
        If the device is unknown, or the graph does not name the FLOPs of its ops.

    Examples
    --------
    >>> from remat.graphs.zoo.transformers import gpt
    >>> step = with_times(gpt(layers=2), "A100")
    >>> step.cost_unit, min(op.cost for op in step.ops)
    ('ns', 5000)
    """
    if device not in RATES:
        raise GraphError(
            f"device {device!r} is not one of {', '.join(RATES)}{nearest(device, RATES)}", "device", device
        )
    if "flops" not in graph.meta:
        raise GraphError(
            f"graph {graph.name!r} does not name the FLOPs of its ops, so it has no times; training steps of the zoo, "
            "such as gpt, have them",
            "no-flops",
            graph.name,
        )
    rates = RATES[device]
    size = {tensor.name: tensor.size for tensor in graph.tensors}
    ops = []
    for op, flops in zip(graph.ops, graph.meta["flops"], strict=True):
        moved = sum(size[name] for name in (*op.inputs, *op.outputs))
        ops.append(replace(op, cost=max(rates.launch, round(flops / rates.products), round(moved / rates.bandwidth))))
    return replace(graph, ops=ops, cost_unit="ns")
