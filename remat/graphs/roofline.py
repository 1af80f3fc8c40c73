"""Times of training steps of the zoo on a device, by its data sheet."""

from __future__ import annotations

from dataclasses import replace

from remat.errors import GraphError
from remat.graphs.devices import DEVICES
from remat.graphs.graph import ComputeGraph
from remat.runtime.text import nearest

#: Devices of the zoo's training steps.
NAMES = ("A100", "H100", "H200")


def with_times(graph: ComputeGraph, device: str) -> ComputeGraph:
    """Return a training step of the zoo with costs in ns: time of its FLOPs or its bytes, whichever is longer.

    FLOPs have the rate of products of 32-bit numbers rounded to TF32. No op takes less than the launch of a kernel.
    Source: Williams, Waterman and Patterson, *Roofline* (2009).

    Parameters
    ----------
    device : str
        A name in :data:`NAMES`.

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
    if device not in NAMES:
        raise GraphError(
            f"device {device!r} is not one of {', '.join(NAMES)}{nearest(device, NAMES)}", "device", device
        )
    if "flops" not in graph.meta:
        raise GraphError(
            f"graph {graph.name!r} does not name the FLOPs of its ops, so it has no times; training steps of the zoo, "
            "such as gpt, have them",
            "no-flops",
            graph.name,
        )
    at = DEVICES[device]
    products, bandwidth = at.product_rate("fp32", tf32=True) / 1e9, at.bandwidth / 1e9
    size = {tensor.name: tensor.size for tensor in graph.tensors}
    ops = []
    for op, flops in zip(graph.ops, graph.meta["flops"], strict=True):
        moved = sum(size[name] for name in (*op.inputs, *op.outputs))
        ops.append(replace(op, cost=max(at.launch, round(flops / products), round(moved / bandwidth))))
    return replace(graph, ops=ops, cost_unit="ns")
