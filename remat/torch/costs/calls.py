"""Calls of fx nodes, with fake tensors instead of nodes as arguments and results."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from remat.errors import MeasurementError
from remat.torch.distributed import COLLECTIVES
from remat.torch.private import OpOverload, pytree


@dataclass(frozen=True, eq=False)
class Call:
    """A call of an op."""

    name: str
    """Name of the node."""
    target: Any
    args: tuple[Any, ...]
    """Positional arguments, with fake tensors."""
    kwargs: Mapping[str, Any]
    """Keyword arguments, with fake tensors."""
    out: Any
    """Result, with fake tensors."""

    @cached_property
    def packet(self) -> Any:
        """Op without its overload: ``aten.add`` for ``aten.add.Tensor``; the target if it has no overload."""
        return getattr(self.target, "overloadpacket", self.target)

    @cached_property
    def op(self) -> str:
        """Qualified name of the op without its overload, as ``aten.add``; of an op in place, with its ``_``."""
        if isinstance(self.target, OpOverload):
            return self.target._schema.name.replace("::", ".")
        return str(getattr(self.target, "__name__", self.target))

    @property
    def key(self) -> str:
        """Name in the tables of formulas: the out-of-place op's; without the namespace if it is PyTorch's."""
        space, dot, base = self.op.rpartition(".")
        return base.removesuffix("_") or base if space in {"aten", "prims", ""} else space + dot + base

    @cached_property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Tensors among the arguments, each once."""
        return tuple({id(tensor): tensor for tensor in tensors((self.args, self.kwargs))}.values())

    @cached_property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Tensors among the results."""
        return tuple(tensors(self.out))

    @cached_property
    def mutates(self) -> bool:
        """True if it writes into an argument."""
        return isinstance(self.target, OpOverload) and self.target._schema.is_mutable

    @cached_property
    def communicates(self) -> bool:
        """True for a collective: other processes take part."""
        return isinstance(self.target, OpOverload) and self.target.namespace in COLLECTIVES

    @cached_property
    def free(self) -> bool:
        """True if it computes nothing: a view, an element of a tuple, a size.

        Storages decide this, not schemas: ``aten._unsafe_view`` is a view, and its schema does not say so.
        """
        if getattr(self.target, "__module__", "") in {"_operator", "operator", "math"} and not self.inputs:
            return True
        if not isinstance(self.target, OpOverload):
            return getattr(self.target, "__name__", "") == "getitem"
        if not self.outputs:
            return not self.mutates and self.key.startswith("sym_")
        given = {storage_key(tensor) for tensor in self.inputs}
        return not self.mutates and all(storage_key(tensor) in given for tensor in self.outputs)


def call_of(node: torch.fx.Node) -> Call:
    """Return the call of a node.

    Raise MeasurementError if a value that it reads or writes is unknown, or one of its sizes is a symbol.
    """
    if node.op != "call_function":
        raise MeasurementError(f"node {node.name!r} is a {node.op}, which has no cost of its own", "no-cost")
    args = torch.fx.node.map_arg(node.args, lambda argument: _value(argument, node))
    kwargs = torch.fx.node.map_arg(node.kwargs, lambda argument: _value(argument, node))
    out = _value(node, node)
    for tensor in tensors((args, kwargs, out)):
        if any(not isinstance(size, int) for size in (*tensor.shape, *strides(tensor))):
            raise MeasurementError(
                f"node {node.name!r}: a tensor of shape {tuple(tensor.shape)} has no cost before its sizes are numbers",
                "symbolic-size",
            )
    return Call(node.name, node.target, tuple(args), kwargs, out)


def _value(node: torch.fx.Node, reader: torch.fx.Node) -> Any:
    if "val" in node.meta:
        return node.meta["val"]
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    if node is reader and not list(node.users):
        return None
    raise MeasurementError(f"node {reader.name!r}: the value of {node.name!r} is not known (no meta['val'])", "value")


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Return all tensors of a tree in order."""
    return (leaf for leaf in pytree.tree_iter(tree) if isinstance(leaf, torch.Tensor))


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a strided tensor; empty for others."""
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that is equal for tensors that share memory."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def size_in_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that a reader of the whole tensor touches: repeated elements (stride 0) count once."""
    count = 1
    steps = strides(tensor) or (1,) * tensor.dim()
    for size, step in zip(tensor.shape, steps, strict=True):
        count *= size if step else min(size, 1)
    return count * tensor.element_size()
