"""Real tensors of the shapes, strides and types of fake ones, with values that an op accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from remat.torch.costs.calls import Call, strides
from remat.torch.private import pytree

#: Arguments of a call that are indices, each with its exclusive upper limit.
Indices = Iterable[tuple[Any, int]]


def real_arguments(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments for a call, with random tensors instead of fake ones; a repeated tensor remains one tensor.

    Floating-point numbers lie between 0.1 and 1 (so that logarithms, roots and quotients are finite), indices within
    their range. Other integers are 1 for an elementwise op and otherwise 0, a valid index everywhere.
    """
    indices = RULES[call.key](call) if call.key in RULES else ()
    limits = {id(tensor): limit for tensor, limit in indices if isinstance(tensor, torch.Tensor)}
    integer = int(torch.Tag.pointwise in getattr(call.target, "tags", ()))
    made: dict[int, torch.Tensor] = {}

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = _tensor(leaf, limits.get(id(leaf)), integer)
        return made[id(leaf)]

    return pytree.tree_map(real, call.args), dict(pytree.tree_map(real, dict(call.kwargs)))


def _tensor(fake: torch.Tensor, limit: int | None, integer: int) -> torch.Tensor:
    """Return a tensor with one number per memory location that it reaches, so that repeated elements stay repeated."""
    steps = strides(fake)
    reach = 1 + sum((size - 1) * step for size, step in zip(fake.shape, steps, strict=True)) if fake.numel() else 0
    memory = torch.empty(reach, dtype=fake.dtype, device=fake.device)
    if fake.dtype is torch.bool:
        memory.bernoulli_(0.5)
    elif fake.dtype.is_complex:
        torch.view_as_real(memory).uniform_(0.1, 1)
    elif fake.dtype.is_floating_point and fake.dtype.itemsize > 1:
        memory.uniform_(0.1, 1)
    elif limit is not None:
        memory.random_(0, max(1, limit))
    else:
        memory.view(torch.uint8).zero_() if fake.dtype.is_floating_point else memory.fill_(integer)
    return memory.as_strided(fake.shape, steps)


def _per_dimension(call: Call) -> Indices:
    for dimension, index in enumerate(call.args[1]):
        yield index, call.args[0].shape[dimension]


def _along(call: Call) -> Indices:
    shape = call.args[0].shape
    yield call.args[2], shape[call.args[1]] if shape else 1


def _classes(position: int) -> Callable[[Call], Indices]:
    """Yield the classes of a loss, which follow its input; the input's second (or only) dimension is the limit."""

    def rule(call: Call) -> Indices:
        shape = call.args[position - 1].shape
        yield call.args[position], shape[1] if len(shape) > 1 else shape[0]

    return rule


def _places(position: int, given: int, dimensions: int) -> Callable[[Call], Indices]:
    """Yield positions in an image, as max pooling returns them."""

    def rule(call: Call) -> Indices:
        index = call.args[position] if position < len(call.args) else call.kwargs.get("indices")
        yield index, math.prod(call.args[given].shape[-dimensions:])

    return rule


#: Indices among the arguments of each op.
RULES: dict[str, Callable[[Call], Indices]] = {
    **dict.fromkeys(("embedding", "_embedding_bag"), lambda call: [(call.args[1], call.args[0].shape[0])]),
    "embedding_dense_backward": lambda call: [(call.args[1], call.args[2])],
    **dict.fromkeys(("index", "_unsafe_index", "index_put", "_unsafe_index_put", "_index_put_impl"), _per_dimension),
    **dict.fromkeys(
        (
            "gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy",
            "index_fill", "index_reduce",
        ),
        _along,
    ),
    **dict.fromkeys(("take", "put"), lambda call: [(call.args[1], call.args[0].numel())]),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _classes(1)),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _classes(2)),
    "max_pool2d_with_indices_backward": _places(7, 1, 2),
    "max_pool3d_with_indices_backward": _places(7, 1, 3),
    "adaptive_max_pool2d_backward": _places(2, 1, 2),
    "adaptive_max_pool3d_backward": _places(2, 1, 3),
}  # fmt: skip
