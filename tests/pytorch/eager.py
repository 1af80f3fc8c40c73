"""Records of training steps, for bitwise comparison of two modules."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

#: Values, gradients, parameters and buffers by name, and the state of the random number generator.
Record = dict[str, Tensor | None]


def record(module: nn.Module, *values: Tensor | None) -> Record:
    """Copy the state after a step; `values` are its loss, outputs and the like."""
    found: Record = {f"value {number}": value for number, value in enumerate(values)}
    found |= {f"gradient of {name}": parameter.grad for name, parameter in module.named_parameters()}
    found |= {f"state {name}": value for name, value in module.state_dict().items()}
    found["random"] = torch.get_rng_state()
    return {name: None if value is None else value.detach().clone() for name, value in found.items()}


def total(out: Any) -> Tensor:
    """Return `out` if it is a tensor, otherwise the sum of all leaves with a gradient."""
    leaves = [each for each in pytree.tree_leaves(out) if isinstance(each, Tensor) and each.requires_grad]
    return out if isinstance(out, Tensor) else sum(each.sum() for each in leaves)


def step(
    call: Callable[..., Any],
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[[Any], Tensor] = total,
    seed: int = 3,
    around: AbstractContextManager[Any] | None = None,
) -> Record:
    """Record one step of `call`, whose parameters belong to `module`, within the context `around`."""
    module.zero_grad()
    torch.manual_seed(seed)
    with around or nullcontext():
        value = loss(call(*args, **(kwargs or {})))
        value.backward()
    return record(module, value)


def eager(module: nn.Module, args: Sequence[Any], **how: Any) -> Record:
    """Record one step of a copy of a module."""
    module = copy.deepcopy(module)
    return step(module, module, args, **how)


def train(
    call: Callable[..., Any],
    module: nn.Module,
    *given: Any,
    optimizer: type = torch.optim.SGD,
    count: int = 2,
    **how: Any,
) -> list[Record]:
    """Record `count` steps with an optimizer, and the final state."""
    trainer, found = optimizer(module.parameters(), lr=1e-2), []
    for number in range(count):
        found.append(step(call, module, *given, seed=number, **how))
        trainer.step()
    return [*found, record(module)]


def different(ours: Record, theirs: Record, *, bitwise: bool = True) -> list[str]:
    """Return the names of unequal values, bitwise or up to rounding; strides must be equal."""

    def same(mine: Tensor | None, other: Tensor | None) -> bool:
        if mine is None or other is None:
            return mine is other
        equal = torch.equal(mine, other) if bitwise else torch.allclose(mine, other, atol=1e-5)
        return equal and mine.stride() == other.stride()

    return [name for name, pair in _pairs(ours, theirs) if not same(*pair)]


def greatest_difference(ours: Record, theirs: Record) -> float:
    """Return the greatest difference of a gradient, relative to the largest entry of all gradients."""
    pairs = [pair for name, pair in _pairs(ours, theirs) if name.startswith("gradient") and None not in pair]
    largest = max(float(other.abs().max()) for _, other in pairs)
    return max(float((mine - other).abs().max()) for mine, other in pairs) / (largest or 1.0)


def _pairs(ours: Record, theirs: Record) -> list[tuple[str, tuple[Any, Any]]]:
    assert ours.keys() == theirs.keys()
    return [(name, (ours[name], theirs[name])) for name in theirs]


def assert_equal(ours: Record | list[Record], theirs: Record | list[Record], *, bitwise: bool = True) -> None:
    """Assert that two records, or each pair of two lists, are equal."""
    both = ([records] if isinstance(records, dict) else records for records in (ours, theirs))
    for number, (mine, other) in enumerate(zip(*both, strict=True)):
        assert not different(mine, other, bitwise=bitwise), f"record {number}"
