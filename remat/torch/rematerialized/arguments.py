"""Arguments of a call, normalised to the form of the sample's and compared with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from remat.errors import ExecutionError
from remat.runtime.text import clipped
from remat.torch.captured import Layout
from remat.torch.private import pytree


class Sample:
    """Sample arguments of a module, and differences of a call from them.

    `forward`: the module's ``forward``, which defines the names of its parameters.
    """

    def __init__(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._signature = inspect.signature(forward)
        given = self._given(args, kwargs)
        values, self._spec = pytree.tree_flatten(given)
        self._names = tuple(given)
        self._kinds = [Layout.of(each) if isinstance(each, torch.Tensor) else each for each in values]
        self._differentiable = [isinstance(each, torch.Tensor) and each.requires_grad for each in values]
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        self._leaves = [None if isinstance(each, torch.Tensor) else each for each in leaves]
        places = self._by_name(*pytree.tree_unflatten(list(range(len(leaves))), spec))
        self._places = pytree.tree_leaves({name: places[name] for name in given})

    def __deepcopy__(self, memo: dict[int, Any]) -> Sample:
        return self

    def leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the flattened arguments of a call, in the order of the sample's.

        Raise ExecutionError with the name of the first argument that differs from the sample.
        """
        given = self._given(args, kwargs)
        for name in given.keys() ^ self._names:
            which = "only the sample has" if name in self._names else "the sample does not have"
            raise ExecutionError(f"{which} argument {name!r}{_ADVICE}", "unlike-sample")
        values, spec = pytree.tree_flatten({name: given[name] for name in self._names})
        if spec != self._spec:
            raise ExecutionError("the arguments are nested in another way than those of the sample" + _ADVICE)
        leaves = list(self._leaves)
        for number, (value, kind) in enumerate(zip(values, self._kinds, strict=True)):
            wrong = self._difference(value, kind, self._differentiable[number])
            if wrong:
                raise ExecutionError(f"{self._path(number)} {wrong}{_ADVICE}", "unlike-sample")
            leaves[self._places[number]] = value
        return leaves

    def has_names_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return True if a call has the sample's arguments, of any shapes and values; defaults do not count."""
        return self._given(args, kwargs).keys() == set(self._names)

    def _difference(self, leaf: Any, kind: Any, differentiable: bool) -> str:
        if not isinstance(kind, Layout):
            same = leaf is kind or (type(leaf) is type(kind) and bool(leaf == kind))
            return "" if same else f"is {_short(leaf)}, but was {_short(kind)} in the sample"
        if not isinstance(leaf, torch.Tensor):
            return f"is a {type(leaf).__name__}, but was a tensor in the sample"
        difference = kind.difference(Layout.of(leaf))
        if difference:
            return f"has {difference} as in the sample"
        return "requires grad, but did not in the sample" if leaf.requires_grad and not differentiable else ""

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by the names of their parameters."""
        try:
            found = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ExecutionError(f"the module cannot be called so: {error}", "not-callable") from None
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                found.update(found.pop(name, {}))
        return found

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by name, without those that equal their default."""
        defaults = {name: parameter.default for name, parameter in self._signature.parameters.items()}
        return {
            name: value
            for name, value in self._by_name(args, kwargs).items()
            if name not in defaults or not (value is defaults[name] or same_number_or_text(value, defaults[name]))
        }

    def _path(self, number: int) -> str:
        """Return ``argument 'x'`` or a path to it, for messages."""
        tree = pytree.tree_unflatten(list(range(len(self._kinds))), self._spec)
        (name, *rest), _ = pytree.tree_flatten_with_path(tree)[0][number]
        return f"argument {name.key!r}" + (f" at {pytree.keystr(tuple(rest))}" if rest else "")


def same_number_or_text(one: Any, other: Any) -> bool:
    """Return True if two plain values are equal and of one type."""
    return type(one) is type(other) and isinstance(one, bool | int | float | str) and one == other


_ADVICE = "; rematerialize(...) was given another sample (other_shapes='capture' captures each new kind of call)"


def _short(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else clipped(repr(value), 40)
