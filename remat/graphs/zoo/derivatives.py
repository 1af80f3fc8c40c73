"""Derivative rules: the inputs of the backward op of each kind of op."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Rule:
    """Inputs of the backward op of a kind of op, in addition to the gradients of its outputs."""

    inputs: tuple[int, ...] = ()
    """Positions of inputs of the op; those that an op lacks are skipped."""
    outputs: tuple[int, ...] = ()
    passes: bool = False
    """True if there is no backward op: the gradient of the output is that of every input (a sum)."""
    gathers: bool = False
    """True if the op reads only some of its parameters (a table)."""
    flops: Fraction | None = None
    """Ratio of backward to forward FLOPs; default: 1 for each input with a gradient, plus 1 for parameters."""


_NOTHING = Rule()
_INPUTS = Rule(inputs=(0, 1))
_OUTPUT = Rule(outputs=(0,))
_STATISTICS = Rule(inputs=(0,), outputs=(1, 2))
#: Normalisation with in-place activation: the activation's gradient follows from its output, the other from the input.
_STATISTICS_IN_PLACE = Rule(inputs=(0,), outputs=(0, 1, 2))
#: Rules by kind of op; the outputs after the first are masks, statistics, indices or parts.
RULES = MappingProxyType(
    {
        "add": Rule(passes=True),
        "add_relu": _OUTPUT,
        "attention": Rule(inputs=(0, 1, 2), outputs=(0, 1), flops=Fraction(5, 2)),  # it recomputes the weights
        "average_pool": _NOTHING,
        "batch_norm": _STATISTICS,
        "batch_norm_add_relu": _STATISTICS_IN_PLACE,
        "batch_norm_leaky_relu": _STATISTICS_IN_PLACE,
        "batch_norm_relu": _STATISTICS_IN_PLACE,
        "concat": _NOTHING,
        "constant": _NOTHING,
        "conv": _INPUTS,
        "conv_transpose": _INPUTS,
        "conv_transpose_leaky_relu": Rule(inputs=(0,), outputs=(0,)),
        "crop": _NOTHING,
        "dropout": Rule(outputs=(1,)),
        "embedding": Rule(inputs=(0,), gathers=True),
        "fft": _NOTHING,
        "gather": Rule(inputs=(1,)),
        "gelu": _INPUTS,
        "group_norm": _STATISTICS,
        "instance_norm": _STATISTICS,
        "inverse_fft": _NOTHING,
        "layer_norm": _STATISTICS,
        "linear": _INPUTS,
        "log_softmax": _OUTPUT,
        "matmul": _INPUTS,
        "max_pool": Rule(inputs=(0,), outputs=(1,)),
        "mean": _NOTHING,
        "modulate": _INPUTS,
        "multiply": _INPUTS,
        "pad": _NOTHING,
        "relu": _OUTPUT,
        "resize": _NOTHING,
        "rms_norm": Rule(inputs=(0,), outputs=(1,)),
        "rotary": _NOTHING,
        "scale": _INPUTS,
        "scale_mask": _NOTHING,
        "scan": Rule(inputs=(0, 1, 2, 3), flops=Fraction(2)),  # it computes the states again
        "silu": _INPUTS,
        "softmax": _OUTPUT,
        "softplus": _INPUTS,
        "spectral_product": _INPUTS,
        "split": _NOTHING,
        "top_k": Rule(outputs=(1,)),
        "weighted_scatter": Rule(inputs=(0, 1, 2)),
        "write_corners": _NOTHING,
    }
)
#: Losses; true if the loss and its backward op read all predictions, false if they read one element of each row.
LOSSES = MappingProxyType({"mse_loss": True, "nll_loss": False})
#: Kinds of op that draw random numbers.
RANDOM = frozenset({"attention", "dropout"})
