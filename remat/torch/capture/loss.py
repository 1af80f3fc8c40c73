"""Module whose first output is the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from remat.errors import CaptureError
from remat.runtime.text import counted
from remat.torch.captured import Traced
from remat.torch.private import pytree

#: Prefix of the names of the inner module's parameters.
WITHOUT = "module"


class WithLoss(torch.nn.Module):
    """A module with a loss: an item of its return value, or a function of it.

    It returns the module's value with everything detached except the loss; with a function, the loss alone.

    Raises
    ------
    CaptureError
        On a call, if the item does not exist or is not one number.
    """

    def __init__(self, module: torch.nn.Module, loss: str | int | Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's value, or the loss; see the class."""
        outputs = self.module(*args, **kwargs)
        if callable(self.loss):
            return one_number(self.loss(outputs), "the loss function returns")
        loss = one_number(item_of(outputs, self.loss), f"the loss {self.loss!r} is")
        return pytree.tree_map_only(torch.Tensor, lambda each: each if each is loss else each.detach(), outputs)


def item_of(outputs: Any, key: str | int) -> Any:
    """Return an item of a module's return value, by its key, attribute or position."""
    if isinstance(outputs, Mapping) and key in outputs:
        return outputs[key]
    if isinstance(key, str):
        if hasattr(outputs, key):
            return getattr(outputs, key)
        raise CaptureError(
            f"the module returns a {type(outputs).__name__} without an item {key!r} to be the loss", "loss-item"
        )
    if isinstance(outputs, torch.Tensor):
        outputs = (outputs,)
    items = list(outputs.values()) if isinstance(outputs, Mapping) else list(outputs)
    if not -len(items) <= key < len(items):
        raise CaptureError(
            f"the module returns {counted(len(items), 'item')}, so item {key} cannot be the loss", "loss-item"
        )
    return items[key]


def one_number(loss: Any, what: str) -> torch.Tensor:
    """Return `loss` if it is a tensor of one number."""
    if not isinstance(loss, torch.Tensor):
        raise CaptureError(f"{what} a {type(loss).__name__}, not a tensor", "loss-value")
    if loss.numel() != 1:
        raise CaptureError(f"{what} a tensor of shape {tuple(loss.shape)}, not one number", "loss-value")
    return loss


def names_without(prefix: str, traced: Traced) -> Traced:
    """Return the traced step with the names of parameters and buffers in the inner module."""

    def short(name: str) -> str:
        return name.removeprefix(prefix + ".")

    return replace(
        traced,
        inputs=tuple(replace(each, name=short(each.name)) for each in traced.inputs),
        results=tuple(replace(each, name=short(each.name)) for each in traced.results),
    )
