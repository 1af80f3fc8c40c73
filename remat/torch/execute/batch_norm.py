"""Batch norm that runs again: normalised by the batch as before, its running statistics neither read nor made anew."""

from __future__ import annotations

from dataclasses import replace

import torch

from remat.torch.effects import without_statistics
from remat.torch.execute.program import Layout, OpCall


def again(layout: Layout, call: OpCall) -> OpCall | None:
    """The call that gives the output and the saved statistics of a training-mode batch norm, but no running ones.

    None where `call` is something else. The new running statistics are results of the step that are live from the first
    run of the op to the end; they stay what that run made them.
    """
    found = without_statistics(call.node)
    if found is None:
        return None
    target, args = found
    read = [each for each in args if isinstance(each, torch.fx.Node)]
    return replace(call, target=target, args=args, arguments=layout.derivation(read), items=call.items[:3])
