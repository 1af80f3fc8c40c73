"""States of random generators, so that an op that runs again draws the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from remat.torch.effects import random_state, set_random_state

#: The state of the generator of each device.
States = Mapping[torch.device, Any]


def devices_of(node: torch.fx.Node) -> tuple[torch.device, ...]:
    """The devices on which an fx node computes: those of its results and of what it reads."""
    found: dict[torch.device, None] = {}
    for each in (node, *node.all_input_nodes):
        for value in torch.utils._pytree.tree_leaves(each.meta.get("val")):
            if isinstance(value, torch.Tensor):
                found[value.device] = None
    return tuple(found) or (torch.device("cpu"),)


def states(devices: tuple[torch.device, ...]) -> dict[torch.device, Any]:
    """The present states (5 kB on a CPU, 16 bytes on a CUDA device)."""
    return {device: random_state(device) for device in devices}


@contextmanager
def replayed(past: States) -> Iterator[None]:
    """Inside, the generators are in `past` states; afterwards where they were."""
    present = states(tuple(past))
    _set(past)
    try:
        yield
    finally:
        _set(present)


def _set(values: States) -> None:
    for device, state in values.items():
        set_random_state(device, state)
