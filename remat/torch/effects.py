"""What must not happen twice when an op is computed again: random numbers drawn anew, statistics updated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


def random_state(device: str) -> torch.Tensor:
    """The state of the random number generator of a device (a copy)."""
    if device == "cpu":
        return torch.get_rng_state()
    state: torch.Tensor = torch.get_device_module(torch.device(device).type).get_rng_state(device)
    return state


def run_and_save_state(device: str, op: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """The state before `op`, and what `op` returns."""
    state = random_state(device)
    return state, op(*args, **kwargs)


def run_with_state(device: str, state: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `op` returns from `state` on; the generator then goes on as if nothing had happened."""
    kind = torch.device(device).type
    with torch.random.fork_rng([] if kind == "cpu" else [device], device_type=kind):
        if kind == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(kind).set_rng_state(state, device)
        return op(*args, **kwargs)


def device_of(node: fx.Node) -> str:
    """Return the device that a node computes on."""
    return str(next(each.device for each in tree_leaves(node.meta["val"]) if isinstance(each, torch.Tensor)))


def state_bytes(device: str) -> int:
    """Bytes of a saved state in main memory."""
    return random_state(device).untyped_storage().nbytes() if device == "cpu" else 16


#: In training mode: the batch normalisation that also returns new statistics, and its number of results without them.
_WITH_STATISTICS = {aten._native_batch_norm_legit_functional.default: aten._native_batch_norm_legit.no_stats}
_TRAINING = 5  # position of the argument `training`; running mean and variance stand before it


def without_statistics(node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
    """Target and arguments of a batch normalisation that is computed again: with the batch's statistics, updating none.

    The statistics that the module keeps have changed since the first run, and must not change again.

    Returns
    -------
    (target, args) or None
        None for any other node, and for a batch normalisation by kept statistics (evaluation). The first three results
        are the same.
    """
    target = _WITH_STATISTICS.get(node.target)
    if target is None or node.kwargs or len(node.args) < 8 or node.args[_TRAINING] is not True:
        return None
    x, weight, bias, _, _, training, momentum, eps = node.args
    return target, (x, weight, bias, training, momentum, eps)


def read_arguments(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a node, without those that its kernel takes but never reads.

    Autograd hands the new running statistics to the backward pass of a batch normalisation; in training mode it works
    by the batch's alone, so that nobody has to keep the others until then.
    """
    args = tuple(node.args)
    if node.target is aten.native_batch_norm_backward.default and args[7] is True:  # `train`
        return (*args[:3], None, None, *args[5:])  # running mean and variance
    return args
