"""Ops that need care in recomputations: they draw random numbers or update statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from remat.torch.private import FakeTensor, pytree

aten = torch.ops.aten


def random_state(device: str) -> torch.Tensor:
    """Return a copy of the state of a device's random number generator."""
    if device == "cpu":
        return torch.get_rng_state()
    state: torch.Tensor = torch.get_device_module(torch.device(device).type).get_rng_state(device)
    return state


def run_and_save_state(device: str, op: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """Run `op`; return the generator's state before it, and the result of `op`."""
    state = random_state(device)
    return state, op(*args, **kwargs)


def run_with_state(device: str, state: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run `op` from a generator state; restore the generator afterwards."""
    kind = torch.device(device).type
    with torch.random.fork_rng([] if kind == "cpu" else [device], device_type=kind):
        if kind == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(kind).set_rng_state(state, device)
        return op(*args, **kwargs)


def device_of(node: fx.Node) -> str:
    """Return the device that a node computes on."""
    return str(_value(node).device)


def state_value(node: fx.Node) -> torch.Tensor:
    """Return a fake tensor of the saved state of a random op's generator."""
    with _value(node).fake_mode:
        return torch.empty(state_bytes(device_of(node)), dtype=torch.uint8, device="cpu")


def _value(node: fx.Node) -> FakeTensor:
    return next(each for each in pytree.tree_leaves(node.meta["val"]) if isinstance(each, FakeTensor))


def state_bytes(device: str) -> int:
    """Return the bytes of a saved state in main memory."""
    return random_state(device).untyped_storage().nbytes() if device == "cpu" else 16


#: Batch normalisation that returns updated statistics, and its equivalent that neither reads nor updates them.
_WITH_STATISTICS = {aten._native_batch_norm_legit_functional.default: aten._native_batch_norm_legit.no_stats}
_TRAINING = 5  # position of the argument `training`; running mean and variance stand before it


def without_statistics(node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
    """Return target and arguments for recomputing a batch normalisation, which then updates no statistics.

    The first run has already updated the module's running statistics; they must not change twice.

    None for any other node, and for a batch normalisation by running statistics (evaluation). The target's three
    results equal the node's first three.
    """
    target = _WITH_STATISTICS.get(node.target)
    if target is None or node.kwargs or len(node.args) < 8 or node.args[_TRAINING] is not True:
        return None
    x, weight, bias, _, _, training, momentum, eps = node.args
    return target, (x, weight, bias, training, momentum, eps)


def read_arguments(node: fx.Node) -> tuple[Any, ...]:
    """Return the arguments of a node, with None for those that its kernel never reads.

    Autograd passes the new running statistics to the backward pass of a batch normalisation. In training mode the
    kernel uses the batch's statistics alone, so the running ones need not be retained.
    """
    args = tuple(node.args)
    if node.target is aten.native_batch_norm_backward.default and args[7] is True:  # `train`
        return (*args[:3], None, None, *args[5:])  # running mean and variance
    return args
