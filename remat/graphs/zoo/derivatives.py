"""What the backward op of each kind of op reads."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Rule:
    """What the backward op of a kind of op reads besides the gradients of its outputs.

    Attributes
    ----------
    inputs : bool
        All inputs of the op.
    outputs : tuple of int
        Outputs of the op, by position.
    passes : bool
        There is no backward op: the gradient of the output is that of every input (a sum).
    gathers : bool
        The op reads a few of its parameters, not all (a table).
    """

    inputs: bool = False
    outputs: tuple[int, ...] = ()
    passes: bool = False
    gathers: bool = False


_NOTHING = Rule()
_INPUT = Rule(inputs=True)
_OUTPUT = Rule(outputs=(0,))
#: By the kind of op; the outputs after the first are masks, statistics or indices.
RULES = MappingProxyType(
    {
        "add": Rule(passes=True),
        "average_pool": _NOTHING,
        "batch_norm": Rule(inputs=True, outputs=(1, 2)),
        "concat": _NOTHING,
        "conv": _INPUT,
        "conv_transpose": _INPUT,
        "copy": _NOTHING,
        "crop": _NOTHING,
        "dropout": Rule(outputs=(1,)),
        "embedding": Rule(inputs=True, gathers=True),
        "fft": _NOTHING,
        "gelu": _INPUT,
        "inverse_fft": _NOTHING,
        "layer_norm": Rule(inputs=True, outputs=(1, 2)),
        "linear": _INPUT,
        "log_softmax": _OUTPUT,
        "matmul": _INPUT,
        "max_pool": Rule(inputs=True, outputs=(1,)),
        "mean": _NOTHING,
        "multiply": _INPUT,
        "pad": _NOTHING,
        "relu": _OUTPUT,
        "resize": _NOTHING,
        "scale_mask": _NOTHING,
        "sigmoid": _OUTPUT,
        "softmax": _OUTPUT,
        "spectral_conv": _INPUT,
        "split": _NOTHING,
    }
)

#: Losses, and whether they and their backward ops read all of the predictions, or one element of each row.
LOSSES = MappingProxyType({"mse_loss": True, "nll_loss": False})
