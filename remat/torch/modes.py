"""State of modules besides tensors: training or evaluation mode, and plain attributes, of all submodules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def kept_modes(module: nn.Module) -> Iterator[None]:
    """Restore the mode of each submodule of `module` when the block ends, also after an exception.

    Examples
    --------
    >>> layer = nn.Dropout()
    >>> with kept_modes(layer):
    ...     _ = layer.eval()
    >>> layer.training
    True
    """
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def in_training(module: nn.Module) -> Iterator[None]:
    """Switch a module in evaluation mode to training mode; restore all modes afterwards."""
    with kept_modes(module):
        if not module.training:
            module.train()
        yield


#: Attributes of a module with the hooks that its calls run.
HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook",
)  # fmt: skip


def hooks_of(module: nn.Module) -> dict[str, Any]:
    """Return the attributes with the hooks of a module."""
    return {name: module.__dict__[name] for name in HOOKS}


def no_hooks() -> dict[str, Any]:
    """Return the attributes of a module without hooks."""
    return hooks_of(nn.Module())


@contextmanager
def without_hooks(module: nn.Module) -> Iterator[None]:
    """Call `module` without its own hooks in the block; those of its submodules run."""
    before = hooks_of(module)
    module.__dict__.update(no_hooks())
    try:
        yield
    finally:
        module.__dict__.update(before)


@contextmanager
def apart_from_step() -> Iterator[None]:
    """Keep hooks of saved tensors that surround a step, such as those of a checkpoint, from its capture."""
    with torch.autograd.graph.saved_tensors_hooks(_same, _same):
        yield


def _same(value: Any) -> Any:
    return value


#: Largest attribute that gets its values back, in bytes.
SMALL = 1 << 20
_KINDS = (list, dict, set, OrderedDict)


@contextmanager
def kept_attributes(module: nn.Module) -> Iterator[None]:
    """Restore attributes and buffers of each submodule of `module` when the block ends, also after an exception.

    Lists, dictionaries and sets among them get their items back, and so do hooks. Tensors among them of at most
    `SMALL` bytes get their values back, such as counters.

    Examples
    --------
    >>> layer = nn.Identity()
    >>> with kept_attributes(layer):
    ...     layer.seen = 1
    >>> hasattr(layer, "seen")
    False
    """
    before = [(part.__dict__, dict(part.__dict__)) for part in module.modules()]
    inside = [(each, each.copy()) for own, _ in before for each in own.values() if type(each) in _KINDS]
    tensors = [
        (each, each._version, each.detach().clone()) for own, _ in before for each in own.values()
        if type(each) is torch.Tensor and each.untyped_storage().nbytes() <= SMALL
    ]  # fmt: skip
    try:
        yield
    finally:
        for own, attributes in before:
            for name in own.keys() - attributes.keys():
                del own[name]
            own.update(attributes)
        for each, items in inside:
            _refill(each, items)
        for tensor, version, values in tensors:
            if tensor._version != version:
                tensor.detach().copy_(values)


def _refill(collection: Any, items: Any) -> None:
    if same_items(collection, items):
        return
    if isinstance(collection, list):
        collection[:] = items
    else:
        collection.clear()
        collection.update(items)


def same_items(one: Any, other: Any) -> bool:
    """Return True if two lists or dictionaries have identical objects in the same order, or two sets are equal."""
    if isinstance(one, set):
        return bool(one == other)
    flat = [
        [x for pair in each.items() for x in pair] if isinstance(each, dict) else list(each) for each in (one, other)
    ]
    return len(flat[0]) == len(flat[1]) and all(a is b for a, b in zip(*flat, strict=True))
