"""Operations of every op; an op without a formula never counts as zero."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from remat.torch.costs.base import CostModel, CostRemark
from remat.torch.costs.calls import Call, call_of
from remat.torch.costs.elementwise import NOTHING, PER_INPUT, PER_OUTPUT, PER_TRAFFIC
from remat.torch.costs.matrix import product_flops

#: Operations per element of the result, by the number of neighbours that an interpolation reads.
TAPS = {
    "upsample_nearest1d": 1, "upsample_nearest2d": 1, "upsample_nearest3d": 1, "_upsample_nearest_exact1d": 1,
    "_upsample_nearest_exact2d": 1, "_upsample_nearest_exact3d": 1, "upsample_linear1d": 2, "upsample_bilinear2d": 4,
    "upsample_trilinear3d": 8, "upsample_bicubic2d": 16, "_upsample_bilinear2d_aa": 4, "_upsample_bicubic2d_aa": 16,
    "grid_sampler_2d": 4, "grid_sampler_3d": 8, "_grid_sampler_2d_cpu_fallback": 4,
}  # fmt: skip
#: Pooling with a window: position of the window's size among the arguments.
WINDOWS = {
    "max_pool2d_with_indices": 1, "max_pool3d_with_indices": 1, "avg_pool1d": 1, "avg_pool2d": 1, "avg_pool3d": 1,
    "avg_pool2d_backward": 2, "avg_pool3d_backward": 2,
}  # fmt: skip
SORTS = {"sort", "argsort", "msort", "topk", "kthvalue", "median", "nanmedian", "bucketize", "searchsorted"}


class Flops(CostModel):
    """Operations, counted from shapes.

    Products (matrix products, convolutions, attention) count as in PyTorch's own counters, and likewise if those lack a
    formula. Other ops count their operations per element, moves and fills one per element. Views cost nothing. An
    unknown op costs one per element that it reads and writes, with a :class:`CostRemark` that names it.

    Examples
    --------
    >>> import torch
    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> graph = make_fx(lambda x, w: (x @ w).relu(), tracing_mode="fake")(torch.ones(2, 3), torch.ones(3, 4)).graph
    >>> nodes = [node for node in graph.nodes if node.op == "call_function"]
    >>> Flops().costs(nodes)
    [48, 8]
    """

    name = "flops"
    unit = "flop"

    def costs(self, nodes: Sequence[torch.fx.Node]) -> list[int]:
        calls = [call_of(node) for node in nodes]
        remark_unknown(calls)
        return [flops_or_elements(call) for call in calls]


def remark_unknown(calls: Iterable[Call]) -> None:
    """Warn of all ops without a formula in one remark."""
    unknown = sorted({str(call.target) for call in calls if count_flops(call) is None})
    if unknown:
        warnings.warn(
            CostRemark(f"no formula for {', '.join(unknown)}: counted one operation per element read or written"),
            stacklevel=3,
        )


def flops_or_elements(call: Call) -> int:
    """Return the operations of a call; without a formula, one per element read and written, at least one."""
    known = count_flops(call)
    return known if known is not None else max(1, _elements(call))


def count_flops(call: Call) -> int | None:
    """Return the operations of a call; None if its op has no formula."""
    if call.free or call.key in NOTHING:
        return 0
    products = product_flops(call)
    if products is not None:
        return products
    key, outputs, inputs = call.key, call.outputs, call.inputs
    written = outputs[0].numel() if outputs else inputs[0].numel() if inputs else 1
    read = inputs[0].numel() if inputs else written
    if key in PER_TRAFFIC:
        return _elements(call)
    if key in PER_INPUT:
        return read * PER_INPUT[key]
    if key in PER_OUTPUT:
        return written * PER_OUTPUT[key]
    base = key.removesuffix("_backward")
    if key in WINDOWS:
        return (read if key != base else written) * _window(call.args[WINDOWS[key]], key)
    if base in TAPS:
        return 2 * TAPS[base] * (read if key != base else written)
    if key in SORTS:
        length = max(2, max(inputs[0].shape, default=2))
        return math.ceil(read * math.log2(length))
    tags: Any = getattr(call.target, "tags", ())
    if torch.Tag.reduction in tags:
        return read
    if torch.Tag.pointwise in tags or call.op.startswith("prims."):
        return written
    return None


def _elements(call: Call) -> int:
    return sum(tensor.numel() for tensor in (*call.inputs, *call.outputs))


def _window(sizes: Sequence[int] | int, key: str) -> int:
    """Return the elements of a window; a single number applies to each dimension."""
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    dimensions = next(number for number in (1, 2, 3) if f"{number}d" in key)
    return math.prod(sizes) if len(sizes) > 1 else sizes[0] ** dimensions
