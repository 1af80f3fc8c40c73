"""Integers and booleans with their values among fake tensors, so that a model branches on them as in a real call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from remat.torch.private import FakeTensor, FakeTensorMode, TorchDispatchMode, pytree

#: Largest argument or buffer that keeps its values, in bytes: packed weights are no reason to branch.
LARGEST = 1 << 26
#: Device of a fake tensor: most of what autograd dispatches, and no work.
DEVICE = torch.ops.prim.device.default
#: Ops that give values to fake tensors of constants.
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


def concrete(real: Any, fake: Any) -> Any:
    """Return a copy of a small tensor of integers or booleans, `fake` for anything else."""
    keeps = isinstance(real, torch.Tensor) and _has_values(real) and real.untyped_storage().nbytes() <= LARGEST
    return real.detach().clone() if keeps else fake


def _has_values(tensor: torch.Tensor) -> bool:
    return not (isinstance(tensor, FakeTensor) or tensor.is_floating_point() or tensor.is_complex())


class Concrete(TorchDispatchMode):
    """Run ops on integers and booleans with values as they are, and all others on fake tensors.

    Masks and positions have values then. A model that makes a mask only for a batch with padding, such as those of
    transformers with ``attn_implementation="sdpa"``, decides as in a real call.

    `mode` makes the fake tensors; it must not be entered.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is DEVICE:
            return args[0].device  # without a mode
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        random = torch.Tag.nondeterministic_seeded in func.tags
        if given and not random and all(map(_has_values, given)):
            return self._run(func, args, kwargs)
        if func not in _LIFTS and not all(isinstance(each, FakeTensor) for each in given):
            args, kwargs = self.faked((args, dict(kwargs)))
        with self._mode:
            made = func(*args, **kwargs)
        found = [] if given or random else tensors_in(made)
        if found and not any(each.is_floating_point() or each.is_complex() for each in found):
            return self._run(func, args, kwargs)  # a factory of integers, such as arange
        return made

    def faked(self, tree: Any) -> Any:
        """Return a nested value with fake tensors in place of all others."""
        return pytree.tree_map_only(torch.Tensor, self._fake, tree)

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self._mode.from_tensor(tensor, static_shapes=True)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map_only(
            torch.Tensor, lambda each: each if _has_values(each) else self._fake(each), func(*args, **kwargs)
        )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors among the arguments or results of an op."""
    if isinstance(value, torch.Tensor):
        return [value]
    nested = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return [tensor for each in nested for tensor in tensors_in(each)]
