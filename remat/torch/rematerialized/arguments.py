"""The arguments of a call: brought into the form of the sample's, and compared with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from remat.errors import ExecutionError
from remat.torch.layout import Layout


class Sample:
    """The sample arguments of a module, and how a call differs from them.

    Parameters
    ----------
    forward : callable
        The module's ``forward``, for the names of its parameters.
    args, kwargs : tuple, dict
    """

    def __init__(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._signature = inspect.signature(forward)
        self._num_args, self._names = len(args), tuple(kwargs)
        self._given = self._bound(args, kwargs)
        leaves, self._spec = pytree.tree_flatten((args, dict(kwargs)))
        self._kinds = [Layout.of(each) if isinstance(each, torch.Tensor) else each for each in leaves]
        self._differentiable = [isinstance(each, torch.Tensor) and each.requires_grad for each in leaves]
        self.tensors = tuple(i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor))

    def __deepcopy__(self, memo: dict[int, Any]) -> Sample:
        return self

    def leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The flattened arguments of a call, in the order of the sample's.

        Raises
        ------
        ExecutionError
            Naming the first argument that is not as in the sample.
        """
        if len(args) != self._num_args or tuple(kwargs) != self._names:
            args, kwargs = self._in_form(args, kwargs)
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        if spec != self._spec:
            raise ExecutionError("the arguments are nested in another way than those of the sample" + _ADVICE)
        for position, (leaf, kind) in enumerate(zip(leaves, self._kinds, strict=True)):
            wrong = self._difference(leaf, kind, self._differentiable[position])
            if wrong:
                raise ExecutionError(f"{self._name(position)} {wrong}{_ADVICE}", "unlike-sample")
        return leaves

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

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name; those that are the default are left out."""
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ExecutionError(f"the module cannot be called so: {error}", "not-callable") from None
        found: dict[str, Any] = {}
        for name, value in bound.items():
            parameter = self._signature.parameters[name]
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            elif value is not parameter.default and not same_number_or_text(value, parameter.default):
                found[name] = value
        return found

    def _in_form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same arguments, positional and by name as in the sample."""
        given = self._bound(args, kwargs)
        for name in self._given.keys() ^ given.keys():
            which = "only the sample has" if name in self._given else "the sample does not have"
            raise ExecutionError(f"{which} argument {name!r}{_ADVICE}", "unlike-sample")
        positional: list[Any] = []
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional += given.get(name, ())
            elif len(positional) < self._num_args and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                positional.append(given.get(name, parameter.default))
        return tuple(positional), {name: given.get(name, self._default(name)) for name in self._names}

    def _default(self, name: str) -> Any:
        return self._signature.parameters[name].default

    def _name(self, position: int) -> str:
        """``argument 'x'`` or a path to it, for messages."""
        tree = pytree.tree_unflatten(list(range(len(self._kinds))), self._spec)
        path = next(path for path, leaf in pytree.tree_flatten_with_path(tree)[0] if leaf == position)
        side, key, *rest = path
        names = list(self._signature.parameters)
        first = key.idx if isinstance(key, pytree.SequenceKey) else key.key
        if isinstance(side, pytree.SequenceKey) and side.idx == 0:
            first = names[first] if first < len(names) else f"#{first}"
        return f"argument {first!r}" + (f" at {pytree.keystr(tuple(rest))}" if rest else "")


def same_number_or_text(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal and of one type."""
    return type(one) is type(other) and isinstance(one, bool | int | float | str) and one == other


_ADVICE = "; rematerialize(...) was given another sample (other_shapes='capture' captures each new kind of call)"


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
