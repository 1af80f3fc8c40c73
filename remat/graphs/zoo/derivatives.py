"""What the backward op of each kind of op reads."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Rule:
    """What the backward op of a kind of op reads besides the gradients of its outputs.

    Attributes
    ----------
    inputs, outputs : tuple of int
        Inputs and outputs of the op, by position; those that an op does not have are left out.
    passes : bool
        There is no backward op: the gradient of the output is that of every input (a sum).
    gathers : bool
        The op reads a few of its parameters, not all (a table).
    flops : Fraction, optional
        FLOPs of the backward op by FLOPs of the op; default: once for each input with a gradient, once for parameters.
    """

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    passes: bool = False
    gathers: bool = False
    flops: Fraction | None = None


_NOTHING = Rule()
_INPUTS = Rule(inputs=(0, 1))
_OUTPUT = Rule(outputs=(0,))
_STATISTICS = Rule(inputs=(0,), outputs=(1, 2))
#: The activation is done in place: its gradient is found from its output, that of the normalisation from its input.
_STATISTICS_IN_PLACE = Rule(inputs=(0,), outputs=(0, 1, 2))
#: By the kind of op; the outputs after the first are masks, statistics, indices or parts.
RULES = MappingProxyType(
    {
        "add": Rule(passes=True),
        "add_relu": _OUTPUT,
        "attention": Rule(inputs=(0, 1, 2), outputs=(0, 1), flops=Fraction(5, 2)),  # the weights are computed again
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
        "gelu": _INPUTS,
        "instance_norm": _STATISTICS,
        "inverse_fft": _NOTHING,
        "layer_norm": _STATISTICS,
        "linear": _INPUTS,
        "log_softmax": _OUTPUT,
        "matmul": _INPUTS,
        "max_pool": Rule(inputs=(0,), outputs=(1,)),
        "mean": _NOTHING,
        "multiply": _INPUTS,
        "pad": _NOTHING,
        "relu": _OUTPUT,
        "resize": _NOTHING,
        "scale_mask": _NOTHING,
        "softmax": _OUTPUT,
        "spectral_product": _INPUTS,
        "split": _NOTHING,
        "write_corners": _NOTHING,
    }
)
#: Losses, and whether they and their backward ops read all of the predictions, or one element of each row.
LOSSES = MappingProxyType({"mse_loss": True, "nll_loss": False})
#: Kinds of op that draw random numbers.
RANDOM = frozenset({"attention", "dropout"})
