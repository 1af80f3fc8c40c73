"""Operations of products: matrix products, convolutions, attention, recurrent layers, decompositions.

PyTorch's own counters (``torch.utils.flop_counter``) count the ops that they know: two operations per multiplication
and addition, without biases; attention without its softmax and with all pairs of positions, whatever the mask. Other
ops count in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from remat.torch.costs.calls import Call

Formula = Callable[[Call], int]


def product_flops(call: Call) -> int | None:
    """Return the operations of a call that consists of products; None for other ops."""
    if call.key in OWN:
        return OWN[call.key](call)
    if call.packet in flop_registry:
        return int(flop_registry[call.packet](*call.args, **call.kwargs, out_val=call.out))
    return None


def is_product(call: Call) -> bool:
    """Return True if a call runs on a device's units for matrix products, if it has any."""
    return (call.key in OWN or call.packet in flop_registry) and not call.key.startswith("linalg_")


def _convolution(shape: Sequence[int], weight: torch.Tensor, out: Sequence[int], transposed: bool) -> int:
    return 2 * shape[0] * math.prod((shape if transposed else out)[2:]) * weight.numel()


def _convolution_backward(call: Call) -> int:
    """Count each gradient as a convolution with as many products; PyTorch counts those of each group in every group."""
    gradient, given, weight, *_, transposed, _, _, mask = call.args
    forward = _convolution(given.shape, weight, gradient.shape, transposed)
    return forward * (bool(mask[0]) + bool(mask[1])) + gradient.numel() * bool(mask[2])


def _attention(call: Call) -> int:
    query, key, value = (tensor.shape for tensor in call.args[:3])
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(call: Call) -> int:
    gradient, query, key, value = (tensor.shape for tensor in call.args[:4])
    return int(sdpa_backward_flop_count(gradient, query, key, value))


def _grouped(call: Call) -> int:
    """Count a product ``(a, b)``; groups are the first of a factor's three dimensions, or follow each other in two."""
    a, b = call.args[:2]
    rows = a.numel() if a.dim() <= b.dim() else a.shape[-2] * a.shape[-1]
    return 2 * rows * int(b.shape[-1])


def _linear_backward(call: Call) -> int:
    """Count the gradients of ``(input, gradient, weight, output_mask)``."""
    given, _, weight, mask = call.args[:4]
    return 2 * (given.numel() // max(1, given.shape[-1])) * weight.numel() * (bool(mask[0]) + bool(mask[1]))


def _trilinear(call: Call) -> int:
    return 3 * math.prod(torch.broadcast_shapes(*(_expanded(call, place) for place in range(3))))


def _expanded(call: Call, place: int) -> list[int]:
    shape = list(call.args[place].shape)
    for dimension in sorted(call.args[3 + place]):
        shape.insert(dimension, 1)
    return shape


def _recurrent(call: Call) -> int:
    """Count products of inputs and states with all weights: ``(input, weights, ...)``, steps × batch rows."""
    given, weights = call.args[0], [tensor for tensor in call.inputs[1:] if tensor.dim() == 2]
    rows = given.numel() // max(1, given.shape[-1])
    backward = 2 if call.key.endswith("_backward") else 1
    return 2 * rows * sum(tensor.numel() for tensor in weights) * backward


def _transform(call: Call) -> int:
    """Count a fast Fourier transform: 5 N log2 N."""
    given = max(call.args[0].numel(), call.outputs[0].numel())
    length = math.prod(call.args[0].shape[axis] for axis in call.args[1])
    return math.ceil(5 * given * max(1.0, math.log2(max(2, length))))


def _cubic(factor: float) -> Formula:
    """Return a formula: `factor` · n³ per matrix of a batch; with m rows and n columns, m · n · min(m, n)."""

    def count(call: Call) -> int:
        *batch, rows, columns = call.args[0].shape
        return math.ceil(factor * math.prod(batch) * rows * columns * min(rows, columns))

    return count


#: Ops that PyTorch's counters miss or miscount.
OWN: dict[str, Formula] = {
    **dict.fromkeys(("convolution_backward", "convolution_backward_overrideable"), _convolution_backward),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_fused_attention_overrideable",
            "_scaled_dot_product_attention_math_for_mps",
        ),
        _attention,
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    **dict.fromkeys(
        (
            "linear", "mv", "dot", "vdot", "_int_mm", "_weight_int8pack_mm",
            "linalg_solve_triangular", "triangular_solve", "cholesky_solve",
        ),
        lambda call: 2 * call.outputs[0].numel() * call.args[0].shape[-1],  # sums over the factor's last dimension
    ),
    "linear_backward": _linear_backward,
    **dict.fromkeys(
        ("addmv", "_addmm_activation"), lambda call: 2 * call.outputs[0].numel() * call.args[1].shape[-1]
    ),
    "addbmm": lambda call: 2 * call.outputs[0].numel() * call.args[1].shape[-1] * call.args[1].shape[0],
    "_grouped_mm": _grouped,
    "addr": lambda call: 2 * call.outputs[0].numel(),
    "_trilinear": _trilinear,
    **dict.fromkeys(("_cudnn_rnn", "_cudnn_rnn_backward"), _recurrent),
    "_cdist_forward": lambda call: 3 * call.outputs[0].numel() * call.args[0].shape[-1],
    **dict.fromkeys(("_fft_c2c", "_fft_c2r", "_fft_r2c"), _transform),
    # Golub and Van Loan, Matrix Computations: orders of n cubed
    "linalg_cholesky_ex": _cubic(1 / 3),
    **dict.fromkeys(
        ("linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex"), _cubic(2 / 3)
    ),
    "linalg_householder_product": _cubic(4 / 3),
    **dict.fromkeys(("linalg_inv_ex", "linalg_qr"), _cubic(2)),
    "_linalg_eigh": _cubic(9),
    "_linalg_svd": _cubic(20),
}  # fmt: skip
