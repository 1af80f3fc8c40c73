"""Small tensors with their values among fake ones, so that a model branches on them as in a real call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from remat.torch.capture.fakes import FakeWorld
from remat.torch.costs.calls import storage_key
from remat.torch.distributed import COLLECTIVES, is_distributed, local_part, plain_collectives
from remat.torch.modes import kept_attributes
from remat.torch.private import FakeTensor, FakeTensorMode, TorchDispatchMode, pytree

#: Largest tensor that keeps its values, in bytes: weights are no reason to branch.
LARGEST = 1 << 26
#: Device of a fake tensor: most of what autograd dispatches, and no work.
DEVICE = torch.ops.prim.device.default


@contextmanager
def concrete_world(world: FakeWorld, given: tuple[Any, Any] | None) -> Iterator[tuple[Concrete, Any, Any]]:
    """Swap in fake parameters; yield the mode, which is on, and positional and keyword arguments.

    `given`: real arguments. Small tensors among them and among buffers keep their values.
    """
    mode, fake = Concrete(world.mode), (world.args, world.kwargs)
    args, kwargs = fake if given is None else pytree.tree_map(concrete, given, fake)
    buffers = dict(world.module.named_buffers())
    state = {name: concrete(buffers.get(name), each) for name, each in world.state.items()}
    whole = plain_collectives() if world.is_distributed else nullcontext()
    with kept_attributes(world.module), world.swapped(state), whole, mode, torch.enable_grad():
        yield mode, args, kwargs


def concrete(real: Any, fake: Any) -> Any:
    """Return a copy of a small tensor without gradient, `fake` for anything else."""
    keeps = isinstance(real, torch.Tensor) and not is_distributed(real) and _is_small(real) and not real.requires_grad
    return real.detach().clone() if keeps else fake


def _is_small(tensor: torch.Tensor) -> bool:
    return not isinstance(local_part(tensor), FakeTensor) and tensor.untyped_storage().nbytes() <= LARGEST


class Concrete(TorchDispatchMode):
    """Run ops whose arguments all have values as they are, and all others on fake tensors.

    Masks and positions have values then. A model that makes a mask only for a batch with padding, such as those of
    transformers with ``attn_implementation="sdpa"``, decides as in a real call.

    `mode` makes the fake tensors; it must not be entered.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode
        self._lost: dict[int, torch.Tensor] = {}
        """Tensors by storage that an op on fake tensors, or a random one, changed in place."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is DEVICE:
            return args[0].device  # without a mode
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        if any(map(is_distributed, given)):
            return NotImplemented  # its ops on local parts come here in turn
        # a collective would wait for processes that capture nothing
        apart = torch.Tag.nondeterministic_seeded in func.tags or func.namespace in COLLECTIVES
        if given and not apart and all(map(self._has_values, given)):
            return self._run(func, args, kwargs)
        for declared, value in zip(func._schema.arguments, args, strict=False):
            if declared.is_write:
                self._lost.update((storage_key(each), each) for each in tensors_in(value) if self._has_values(each))
        with self._mode:
            made = func(*self.faked(args), **self.faked(dict(kwargs)))
        small = all(each.untyped_storage().nbytes() <= LARGEST for each in tensors_in(made))
        return made if given or apart or not small else self._run(func, args, kwargs)  # a factory, such as arange

    def faked(self, tree: Any) -> Any:
        """Return a nested value with fake tensors in place of all others."""
        return pytree.tree_map_only(torch.Tensor, self.fake, tree)

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor in place of one with values."""
        is_fake = isinstance(local_part(tensor), FakeTensor)
        return tensor if is_fake else self._mode.from_tensor(tensor, static_shapes=True)

    def _has_values(self, tensor: torch.Tensor) -> bool:
        return _is_small(tensor) and storage_key(tensor) not in self._lost

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map_only(
            torch.Tensor, lambda each: each if _is_small(each) else self.fake(each), func(*args, **kwargs)
        )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors among the arguments or results of an op."""
    if isinstance(value, torch.Tensor):
        return [value]
    nested = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return [tensor for each in nested for tensor in tensors_in(each)]
