"""Batch norm that runs again: normalised by the batch as before, its running statistics neither read nor made anew."""

from __future__ import annotations

from dataclasses import replace

import torch

from remat.torch.execute.program import Layout, OpCall

_aten = torch.ops.aten
#: Argument of the functional form of batch norm that says whether it normalises by the batch.
_TRAINING = 5


def without_statistics(layout: Layout, call: OpCall) -> OpCall | None:
    """The call that gives the output and the saved statistics of a training-mode batch norm, but no running ones.

    None where `call` is something else. The new running statistics are results of the step that are live from the first
    run of the op to the end; they stay what that run made them.
    """
    node = call.node
    if node.target is not _aten._native_batch_norm_legit_functional.default or node.kwargs:
        return None
    if len(node.args) <= _TRAINING + 2 or node.args[_TRAINING] is not True:
        return None
    value, weight, bias = node.args[:3]
    args = (value, weight, bias, *node.args[_TRAINING:])
    read = [each for each in (value, weight, bias) if isinstance(each, torch.fx.Node)]
    return replace(
        call,
        target=_aten._native_batch_norm_legit.no_stats,
        args=args,
        arguments=layout.derivation(read),
        items=call.items[:3],
    )
