"""Distributed tensors (DTensor): local parts, over which a step is captured, and their layout on a mesh."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from remat.torch import private
from remat.torch.private import disable_current_modes

#: Namespaces of ops that communicate.
COLLECTIVES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional"})


def is_distributed(tensor: Any) -> bool:
    """Return True for a distributed tensor, of which this process has a part."""
    return type(tensor).__name__ == "DTensor"


def is_wait(node: torch.fx.Node) -> bool:
    """Return True if a node waits for a collective; it returns its argument."""
    return str(node.target) == "_c10d_functional.wait_tensor.default"


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a distributed tensor in this process, without autograd; any other tensor as it is."""
    return tensor._local_tensor if is_distributed(tensor) else tensor


def described(tensor: Any) -> str:
    """Describe the placement of a distributed tensor."""
    names = ", ".join(repr(each) for each in tensor.placements)
    return f"DTensor, {names} on {tensor.device_mesh.size()} devices"


class Spread(NamedTuple):
    """Placement of a distributed tensor on a mesh, with shape and strides of the whole."""

    mesh: Any
    placements: tuple[Any, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Any) -> Spread | None:
        """Return the placement of a distributed tensor; None for others."""
        if not is_distributed(tensor):
            return None
        return cls(tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape), tuple(tensor.stride()))

    def tensor(self, part: torch.Tensor) -> Any:
        """Return the distributed tensor of a local part, which receives its gradient.

        The gradient of a pending sum (``Partial``) is reduced before it reaches the part.
        """
        return torch.distributed.tensor.DTensor.from_local(
            part, self.mesh, self.placements, run_check=False, shape=torch.Size(self.shape), stride=self.strides
        )

    def leaf(self, part: torch.Tensor, *, requires_grad: bool) -> Any:
        """Return a distributed tensor without a history in autograd."""
        return self.tensor(part.detach()).detach().requires_grad_(requires_grad)

    def tangent(self, part: torch.Tensor) -> Any:
        """Return the gradient of a tensor of this placement, from its local part."""
        whole = torch.distributed.tensor.Replicate()
        placements = tuple(whole if each.is_partial() else each for each in self.placements)
        return self._replace(placements=placements).leaf(part, requires_grad=False)

    @property
    def is_even(self) -> bool:
        """True if all processes have parts of one shape."""
        return all(
            self.shape[each.dim] % self.mesh.size(axis) == 0
            for axis, each in enumerate(self.placements)
            if _splits(each)
        )

    @property
    def part_shape(self) -> tuple[int, ...]:
        """Shape of each local part of an even placement."""
        shape = list(self.shape)
        for axis, each in enumerate(self.placements):
            if _splits(each):
                shape[each.dim] //= self.mesh.size(axis)
        return tuple(shape)


def with_placement(part: torch.Tensor, spread: Spread | None) -> torch.Tensor:
    """Return the distributed tensor of a local part; without a placement the part is the tensor."""
    return part if spread is None else spread.tensor(part)


def _splits(placement: Any) -> bool:
    """Return True for a placement that divides a dimension, in one piece or in several."""
    return getattr(placement, "dim", None) is not None


def to_local(tensor: torch.Tensor, gradient: Spread | None) -> torch.Tensor:
    """Return the local part of a tensor; `gradient`: placement that the gradient of a distributed one has."""
    if not is_distributed(tensor):
        return tensor
    return tensor.to_local(grad_placements=None if gradient is None else gradient.placements)


def tangent_of(output: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return the gradient of an output, from its local part if the output is distributed."""
    spread = Spread.of(output)
    return part if spread is None else spread.tangent(part)


@contextmanager
def plain_collectives() -> Iterator[None]:
    """Let user modes see the ops of distributed tensors as in a trace: each collective, then its wait, and no more.

    PyTorch finds out the shapes of results once for each op, by ops of its own; these run without modes.
    """
    propagator = private.ShardingPropagator
    original = propagator._propagate_tensor_meta_non_cached

    def apart(*args: Any) -> Any:
        with disable_current_modes():
            return original(*args)

    with (
        patch.object(private.functional_collectives, "_are_we_tracing", lambda: True),
        patch.object(propagator, "_propagate_tensor_meta_non_cached", apart),
    ):
        yield


def fsdp_modules(module: nn.Module) -> dict[str, Any]:
    """Return the state of FSDP2 of each submodule that ``fully_shard`` wraps, by path."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # PyTorch does not import it; without it nothing is wrapped
    if fsdp is None:
        return {}
    kind = fsdp.FSDPModule
    return {path: private.fsdp_state(part) for path, part in module.named_modules() if isinstance(part, kind)}


def fsdp_parameters(states: Sequence[Any]) -> Iterator[tuple[torch.Tensor, Spread | None]]:
    """Yield each parameter that FSDP2 shards, and the placement that it has when gathered; None for a whole one."""
    for state in states:
        for group in state._fsdp_param_groups:
            for each in group.fsdp_params:
                spec = each._unsharded_dtensor_spec
                whole = None
                if spec is not None:
                    whole = Spread(spec.mesh, tuple(spec.placements), tuple(spec.shape), tuple(spec.stride))
                yield each.sharded_param, whole
