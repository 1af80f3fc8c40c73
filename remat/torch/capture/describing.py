"""Descriptions of simple fx nodes for rewriting; see ``docs/rewriting.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from remat.graphs import Op
from remat.graphs.rewriting.annotations import Shape
from remat.graphs.rewriting.descriptions import (
    Description,
    Site,
    Window,
    concatenation,
    convolution,
    described,
    elementwise,
    global_pooling,
    is_usable,
    linear,
    pooling,
    product,
    softmax,
)

Homes = Mapping[torch.fx.Node, tuple[str | None, ...]]

_ATEN = torch.ops.aten


def description(ops: Sequence[Op], nodes: Sequence[torch.fx.Node | None], homes: Homes) -> dict[str, Any]:
    """Return shapes of tensors and descriptions of ops, for the ``meta`` of a graph.

    `nodes`: the node of each op. `homes`: the tensor in whose storage each value of a node lives.
    """
    values: dict[str, torch.Tensor] = {}
    for node, tensors in homes.items():  # the first value of a storage is its writer's
        val = node.meta.get("val")
        for value, tensor in zip(val if isinstance(val, tuple | list) else (val,), tensors, strict=True):
            if tensor is not None:
                values.setdefault(tensor, value)
    found: dict[str, Description] = {}
    for op, each in zip(ops, nodes, strict=True):
        describer = None if each is None or len(op.outputs) != 1 else _NODES.get(each.target)
        if each is None or describer is None or not _is_plain(each.meta["val"], values[op.outputs[0]]):
            continue
        what = describer(_Arguments(each, homes, values))
        if what is not None:
            found[op.name] = what
    shapes = {tensor: tuple(int(n) for n in value.shape) for tensor, value in values.items()}
    return described(shapes, found)


def _is_plain(value: Any, home: torch.Tensor) -> bool:
    """Return True if a value fills its storage row by row, as its writer wrote it."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype == home.dtype
        and value.dtype.is_floating_point
        and value.shape == home.shape
        and value.is_contiguous()
        and home.is_contiguous()
        and value.storage_offset() == home.storage_offset() == 0
        and is_usable(tuple(value.shape))
    )


class _Arguments:
    """Arguments of a node, and the tensors that it reads."""

    def __init__(self, node: torch.fx.Node, homes: Homes, values: Mapping[str, torch.Tensor]) -> None:
        self._node, self._homes, self._values = node, homes, values
        self.dtype = node.meta["val"].dtype

    def __call__(self, position: int, default: Any = None) -> Any:
        """Return an argument by position, or the default; keyword arguments are ignored."""
        return self._node.args[position] if position < len(self._node.args) else default

    @property
    def names(self) -> set[str]:
        """Keyword arguments that are not None."""
        return {name for name, value in self._node.kwargs.items() if value is not None}

    def named(self, name: str, default: Any) -> Any:
        """Return a keyword argument."""
        return self._node.kwargs.get(name, default)

    def site(self, *inputs: Any) -> Site | None:
        """Return arguments as inputs of an op; None unless all are plain tensors, constants or numbers of one type."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        found = [self._input(each) for each in inputs]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        shapes, tensors = tuple(shape for shape, _ in known), tuple(tensor for _, tensor in known)
        return Site(shapes, tensors, tuple(self._node.meta["val"].shape))

    def _input(self, given: Any) -> tuple[Shape, str | None] | None:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return (), None
        value = given.meta.get("val") if isinstance(given, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.dtype != self.dtype:
            return None
        (home,) = self._homes[given] if len(self._homes[given]) == 1 else (given.name,)
        if home is None:
            return tuple(value.shape), None
        return (tuple(value.shape), home) if home in self._values and _is_plain(value, self._values[home]) else None


Describer = Callable[[_Arguments], Description | None]


def _conv(given: _Arguments) -> Description | None:
    site = given.site(given(0), given(1), given(2))
    if site is None or given.names or given(6, False) or any(given(7, [0])):
        return None
    weights = site.constant(1)
    if weights is None:
        return None
    kernel = list(weights[2:])
    stride, pads, dilation = (_each(given(place), len(kernel)) for place in (3, 4, 5))
    x = site.data(0)
    if x is None or x[1] != weights[1] * given(8, 1):
        return None
    window = Window(kernel, stride, dilation, [(n, n) for n in pads])
    return convolution(site, window, layout="NCHW", axes=(0, 1))


def _each(value: Sequence[int], count: int) -> list[int]:
    """Return one number per axis; a single number applies to all axes."""
    return list(value) * count if len(value) == 1 else list(value)


def _cat(given: _Arguments) -> Description | None:
    site = given.site(*given(0))
    return None if site is None or given.names else concatenation(site, given(1, 0))


def _addmm(given: _Arguments) -> Description | None:
    site = given.site(given(1), given(2), given(0))
    return None if site is None or given.names else linear(site, axes=(1, 0))


def _mm(given: _Arguments) -> Description | None:
    site = given.site(given(0), given(1))
    if site is None or given.names:
        return None
    return linear(site, axes=(1, 0)) if site.constant(1) is not None else product(site)


def _average_pool(given: _Arguments) -> Description | None:
    site, kernel = given.site(given(0)), given(1)
    if site is None or given.names or given(4, False) or given(6) is not None or len(site.output) != 4:
        return None
    kernel = _each(kernel, 2)
    stride, pads = _each(given(2) or kernel, 2), _each(given(3, [0]), 2)
    window = Window(kernel, stride, [1, 1], [(n, n) for n in pads])
    return pooling(site, "average", window, layout="NCHW", count_include_pad=given(5, True))


def _mean(given: _Arguments) -> Description | None:
    site = given.site(given(0))
    if site is None or given.names or not given(2, False) or given(1) is None:
        return None
    rank = len(site.output)
    is_global = {axis % rank for axis in given(1)} == set(range(2, rank))
    return global_pooling(site, "average", layout="NCHW") if is_global else None


def _softmax(given: _Arguments) -> Description | None:
    site = given.site(given(0))
    return None if site is None or given.names or given(2) else softmax(site, given(1))


def _sum(function: str) -> Describer:
    def describe_sum(given: _Arguments) -> Description | None:
        site = given.site(given(0), given(1))
        plain = site is not None and not given.names - {"alpha"} and given.named("alpha", 1) == 1
        return elementwise(site, function) if plain and site is not None else None

    return describe_sum


def _function(function: str, **defaults: float | str) -> Describer:
    """Describe a function of one tensor; parameters are positional and in order, except the approximation of GELU."""

    def describe_function(given: _Arguments) -> Description | None:
        site = given.site(given(0))
        if site is None or given.names - {"approximate"}:
            return None
        parameters = {name: given(place, default) for place, (name, default) in enumerate(defaults.items(), start=1)}
        if function == "gelu":
            parameters = {"approximate": given.named("approximate", "none")}
        if len(given._node.args) > 1 + len(parameters) or None in parameters.values():
            return None
        return elementwise(site, function, parameters)

    return describe_function


_NODES: Mapping[Any, Describer] = {
    _ATEN.convolution.default: _conv,
    _ATEN.cat.default: _cat,
    _ATEN.mm.default: _mm,
    _ATEN.bmm.default: _mm,
    _ATEN.addmm.default: _addmm,
    _ATEN.avg_pool2d.default: _average_pool,
    _ATEN.mean.dim: _mean,
    _ATEN._softmax.default: _softmax,
    _ATEN.add.Tensor: _sum("add"),
    _ATEN.sub.Tensor: _sum("sub"),
    _ATEN.mul.Tensor: _sum("mul"),
    _ATEN.div.Tensor: _sum("div"),
    _ATEN.maximum.default: _sum("maximum"),
    _ATEN.minimum.default: _sum("minimum"),
    _ATEN.relu.default: _function("relu"),
    _ATEN.sigmoid.default: _function("sigmoid"),
    _ATEN.tanh.default: _function("tanh"),
    _ATEN.silu.default: _function("silu"),
    _ATEN.hardswish.default: _function("hard_swish"),
    _ATEN.gelu.default: _function("gelu"),
    _ATEN.leaky_relu.default: _function("leaky_relu", alpha=0.01),
    _ATEN.elu.default: _function("elu", alpha=1.0),
    _ATEN.hardtanh.default: _function("clip", min=-1.0, max=1.0),
    _ATEN.neg.default: _function("neg"),
    _ATEN.abs.default: _function("abs"),
    _ATEN.exp.default: _function("exp"),
    _ATEN.clone.default: _function("identity"),
}
