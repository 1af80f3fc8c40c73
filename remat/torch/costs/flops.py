"""Operations of every op; an op without a formula never counts as zero.

Each addition, multiplication, comparison, division and elementary function (exp, log, tanh, erf, sqrt) is one
operation, as in XLA's ``HloCostAnalysis``. Moving data or filling memory counts one per element, since it takes time
too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from remat.torch.costs.base import CostModel, CostRemark
from remat.torch.costs.calls import Call, call_of
from remat.torch.costs.products import product_flops

#: About ten per random number of a counter-based generator (Philox 4x32 with 10 rounds returns four of them).
RANDOM = 10

#: Operations per random number.
RANDOM_NUMBERS = {
    "bernoulli": RANDOM, "exponential": RANDOM + 2, "native_dropout": RANDOM + 2, "_fused_dropout": RANDOM + 2,
    "normal": RANDOM + 4, "normal_functional": RANDOM + 4, "rand": RANDOM, "rand_like": RANDOM, "randint": RANDOM,
    "randint_like": RANDOM, "randn": RANDOM + 4, "randn_like": RANDOM + 4, "randperm": RANDOM, "uniform": RANDOM,
    "rrelu_with_noise": RANDOM + 2,
}  # fmt: skip

#: Per element of the (first) output; other ops with PyTorch's tag ``pointwise`` count 1.
PER_OUTPUT = {
    # activations, forward and backward
    "celu": 4, "elu": 4, "elu_backward": 4, "gelu": 5, "gelu_backward": 11, "glu": 4, "glu_backward": 8,
    "hardsigmoid": 4, "hardsigmoid_backward": 3, "hardswish": 5, "hardswish_backward": 6, "hardtanh": 2,
    "hardtanh_backward": 3, "leaky_relu": 2, "leaky_relu_backward": 2, "log_sigmoid_forward": 5,
    "log_sigmoid_backward": 6, "logit": 3, "logit_backward": 4, "mish": 5, "mish_backward": 10, "selu": 4,
    "sigmoid": 3, "sigmoid_backward": 3, "silu": 4, "silu_backward": 8, "softplus": 4, "softplus_backward": 4,
    "tanh_backward": 3, "threshold_backward": 1, "prelu": 2, "_prelu_kernel": 2,
    "_prelu_kernel_backward": 4, "hardshrink_backward": 3, "softshrink_backward": 3,
    # arithmetic of several steps
    "addcdiv": 3, "addcmul": 3, "lerp": 3, "logaddexp": 4, "xlogy": 2, "clamp": 2, "hypot": 4, "remainder": 3,
    "floor_divide": 2,
    **RANDOM_NUMBERS,
    "native_dropout_backward": 2, "_masked_scale": 2,
    # losses without reduction of their own
    "mse_loss_backward": 3, "smooth_l1_loss_backward": 4, "huber_loss_backward": 4,
    "binary_cross_entropy_backward": 6, "nll_loss_backward": 1, "nll_loss2d_backward": 1,
    "multi_margin_loss_backward": 4, "multilabel_margin_loss_backward": 4,
    # moved and filled
    **dict.fromkeys(
        (
            "_pad_enum", "_to_copy", "_unsafe_index", "arange", "as_strided_scatter", "cat", "clone", "complex",
            "constant_pad_nd", "contiguous", "convert_element_type", "copy", "device_put", "diag_embed",
            "diagonal_copy", "diagonal_scatter", "embedding", "expand_copy", "eye", "fill", "flip", "full", "full_like",
            "gather", "index", "index_select", "iota", "lift_fresh_copy", "linspace", "logspace", "masked_fill",
            "masked_select", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "permute_copy",
            "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "repeat",
            "repeat_interleave", "replication_pad1d", "replication_pad2d", "replication_pad3d", "roll", "scalar_tensor",
            "select_backward", "select_scatter", "slice_backward", "slice_scatter", "stack", "take", "to", "tril",
            "tril_indices", "triu", "triu_indices", "unfold_backward", "unfold_copy", "view_copy", "where", "zero",
            "zeros", "zeros_like", "_local_scalar_dense", "item", "channel_shuffle", "rot90", "col2im", "im2col",
            "_to_dense", "one_hot", "_unsafe_masked_index", "split_with_sizes_copy", "_reshape_copy", "lift_fresh",
        ),
        1,
    ),
}  # fmt: skip

#: Per element of the first tensor that is read; other ops with PyTorch's tag ``reduction`` count 1.
PER_INPUT = {
    # normalised exponentials: maximum, difference, exp, sum, quotient
    "_softmax": 5, "_safe_softmax": 6, "_log_softmax": 5, "_softmax_backward_data": 4, "_log_softmax_backward_data": 4,
    "logsumexp": 4, "logcumsumexp": 4, "_masked_softmax": 6, "_masked_softmax_backward": 5,
    # mean, variance, normalised, scaled and shifted
    "native_batch_norm": 8, "_native_batch_norm_legit": 8, "_native_batch_norm_legit_functional": 8,
    "_native_batch_norm_legit_no_training": 4, "_batch_norm_with_update": 8,
    "_batch_norm_with_update_functional": 8, "_batch_norm_no_update": 4, "cudnn_batch_norm": 8, "miopen_batch_norm": 8,
    "native_layer_norm": 8, "native_group_norm": 8, "_fused_rms_norm": 5, "batch_norm_stats": 4, "rms_norm": 5,
    # normalised once more, two sums for the input, two for weight and bias, combined
    "native_batch_norm_backward": 14, "batch_norm_backward": 14, "cudnn_batch_norm_backward": 14,
    "miopen_batch_norm_backward": 14, "native_layer_norm_backward": 14, "native_group_norm_backward": 14,
    "_fused_rms_norm_backward": 11,
    # reductions of several steps
    "var": 4, "var_mean": 4, "std": 4, "std_mean": 4, "linalg_vector_norm": 2, "norm": 2, "dist": 3, "aminmax": 2,
    "mse_loss": 3, "smooth_l1_loss": 5, "huber_loss": 5, "l1_loss": 3, "binary_cross_entropy": 8, "kl_div": 4,
    "binary_cross_entropy_with_logits": 10, "cosine_similarity": 6, "multi_margin_loss": 4,
    "multilabel_margin_loss_forward": 4, "cross_entropy_loss": 6, "renorm": 4,
    "_weight_norm_interface": 4, "_weight_norm_interface_backward": 8,
    # scans, and ops that read each element once
    **dict.fromkeys(
        (
            "cumsum", "cumprod", "cummax", "cummin", "_cummax_helper", "nonzero", "trace", "unique_dim", "_unique2",
            "bincount", "histc", "mode", "equal", "is_nonzero", "_assert_async", "isin", "nonzero_static",
            "_amp_foreach_non_finite_check_and_unscale", "_adaptive_avg_pool2d",
            "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d", "_embedding_bag", "segment_reduce",
            "mean", "sum", "amax", "amin", "all", "any", "argmax", "argmin", "prod",
        ),
        1,
    ),
}  # fmt: skip

#: One per element of all tensors read and written together: a scatter touches both what it copies and what it adds.
PER_TRAFFIC = {
    "embedding_dense_backward", "_unsafe_index_put", "index_put", "_index_put_impl", "index_add", "index_copy",
    "index_fill", "index_reduce", "masked_scatter", "put", "scatter", "scatter_add", "scatter_reduce",
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
    "max_unpool2d", "max_unpool3d", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "reflection_pad3d_backward", "replication_pad1d_backward", "replication_pad2d_backward",
    "replication_pad3d_backward", "nll_loss_forward", "nll_loss2d_forward", "_embedding_bag_backward",
    "_embedding_bag_dense_backward", "embedding_renorm", "_chunk_cat", "_unsafe_masked_index_put_accumulate",
    "value_selecting_reduction_backward", "masked_scatter_backward",
}  # fmt: skip

#: Ops that allocate tensors without writing to them, or write none.
NOTHING = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "empty_quantized",
    "set", "resize", "_assert_tensor_metadata", "_assert_scalar", "_fused_sdp_choice",
}  # fmt: skip


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
    if key in PER_TRAFFIC or call.communicates:
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
