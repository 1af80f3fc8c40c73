"""The cost model of a capture, by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class _Flops:
    """Floating-point operations of matrix products and convolutions; one per number for all else."""

    name = "flops"
    unit = "flop"

    def costs(self, nodes: Sequence[torch.fx.Node]) -> list[int]:
        """One cost for each node."""
        from torch.utils import _pytree as pytree
        from torch.utils.flop_counter import flop_registry

        def amount(node: torch.fx.Node) -> int:
            packet = getattr(node.target, "overloadpacket", None)
            if packet in flop_registry:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
                return int(flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))
            leaves = pytree.tree_leaves(node.meta.get("val"))
            return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))

        return [amount(node) for node in nodes]


def costs_by_name(model: Any) -> Any:
    """A cost model (see :mod:`remat.torch.costs`) for its name, or the model itself."""
    return _Flops() if isinstance(model, str) else model
