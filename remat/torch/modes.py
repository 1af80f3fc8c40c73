"""What a module is besides its tensors: training or evaluation mode, and plain attributes, of all its parts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def kept_modes(module: nn.Module) -> Iterator[None]:
    """Whatever happens inside, each part of `module` is afterwards in the mode that it was in.

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


_KINDS = (list, dict, set, OrderedDict)


@contextmanager
def kept_attributes(module: nn.Module) -> Iterator[None]:
    """Whatever happens inside, each part of `module` has afterwards the attributes and buffers that it had.

    Lists, dictionaries and sets among them have the same items; so hooks are the same, too.

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
    try:
        yield
    finally:
        for own, attributes in before:
            for name in own.keys() - attributes.keys():
                del own[name]
            own.update(attributes)
        for each, items in inside:
            _refill(each, items)


def _refill(collection: Any, items: Any) -> None:
    if same_items(collection, items):
        return
    if isinstance(collection, list):
        collection[:] = items
    else:
        collection.clear()
        collection.update(items)


def same_items(one: Any, other: Any) -> bool:
    """Whether two lists, or two dictionaries, have the same objects in the same order, or two sets are equal."""
    if isinstance(one, set):
        return bool(one == other)
    flat = [
        [x for pair in each.items() for x in pair] if isinstance(each, dict) else list(each) for each in (one, other)
    ]
    return len(flat[0]) == len(flat[1]) and all(a is b for a, b in zip(*flat, strict=True))
