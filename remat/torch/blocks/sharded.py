"""Models under FSDP2 as their steps see them: whole parameters in the type of its policy, and casts of arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from remat.torch.distributed import fsdp_modules, fsdp_parameters
from remat.torch.modes import HOOKS, hooks_of
from remat.torch.private import FakeTensorMode, pytree, reparametrize_module


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Give a model that ``fully_shard`` wraps fake gathered parameters in the block, and casts instead of its hooks.

    Nothing is communicated, and no memory is needed. Parameters of tensor parallelism remain distributed over its mesh.
    """
    states = fsdp_modules(model)
    if not states:
        yield
        return
    mode, state = FakeTensorMode(allow_non_fake_inputs=True), {}
    known = {id(each): spread for each, spread in fsdp_parameters(list(states.values()))}
    for name, each in model.named_parameters():
        if id(each) not in known:
            continue
        spread = known[id(each)]
        owner = max((path for path in states if not path or name.startswith(path + ".")), key=len)
        dtype = states[owner]._mp_policy.param_dtype if each.is_floating_point() else None
        shape = each.shape if spread is None else spread.part_shape
        with mode:
            part = torch.empty(shape, dtype=dtype or each.dtype, device=each.device)
        whole = part if spread is None else spread.leaf(part, requires_grad=False)
        state[name] = whole.requires_grad_(each.requires_grad)
    with ExitStack() as stack:
        for path, own in states.items():
            part = model.get_submodule(path)
            stack.enter_context(_without_hooks_of(own, part))
            _add_casts(part, own._mp_policy)
        stack.enter_context(reparametrize_module(model, state, tie_weights=True, stack_weights=True))
        yield


@contextmanager
def _without_hooks_of(state: Any, part: nn.Module) -> Iterator[None]:
    """Call a module without the hooks of FSDP2 in the block; all others run."""
    before = hooks_of(part)
    for name in HOOKS:
        if isinstance(before[name], dict):
            kept = {k: each for k, each in before[name].items() if getattr(each, "__self__", None) is not state}
            part.__dict__[name] = type(before[name])(kept)
    try:
        yield
    finally:
        part.__dict__.update(before)


def _add_casts(part: nn.Module, policy: Any) -> None:
    if policy.param_dtype and policy.cast_forward_inputs:
        part.register_forward_pre_hook(
            lambda _, args, kwargs: _cast((args, kwargs), policy.param_dtype), with_kwargs=True
        )
    if policy.output_dtype:
        part.register_forward_hook(lambda _, args, output: _cast(output, policy.output_dtype))


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda each: each.to(dtype) if each.is_floating_point() else each, tree)
