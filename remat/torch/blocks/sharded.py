"""Models under FSDP2 as their steps see them: whole parameters in the type of its policy, and casts of arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from remat.torch.capture.fakes import is_sharded
from remat.torch.modes import without_hooks
from remat.torch.private import FakeTensorMode, fsdp_state, pytree, reparametrize_module


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Give a model that ``fully_shard`` wraps fake whole parameters in the block, and casts instead of its hooks.

    Nothing is communicated, and no memory is needed. Parameters that another axis of a mesh shards remain sharded.
    """
    policies = _policies(model)
    if not policies:
        yield
        return
    mode, state = FakeTensorMode(allow_non_fake_inputs=True), {}
    for name, each in model.named_parameters():
        if not is_sharded(each) or sum(placement.is_shard() for placement in each.placements) > 1:
            continue
        owner = max((path for path in policies if not path or name.startswith(path + ".")), key=len)
        dtype = policies[owner].param_dtype if each.is_floating_point() else None
        with mode:
            whole = torch.empty(each.shape, dtype=dtype or each.dtype, device=each.device)
        state[name] = whole.requires_grad_(each.requires_grad)
    with ExitStack() as stack:
        for path, policy in policies.items():
            part = model.get_submodule(path)
            stack.enter_context(without_hooks(part))
            _add_casts(part, policy)
        stack.enter_context(reparametrize_module(model, state, tie_weights=True, stack_weights=True))
        yield


def _policies(model: nn.Module) -> dict[str, Any]:
    """Return the policies of mixed precision by path."""
    if not torch.distributed.is_available():
        return {}
    kind = torch.distributed.fsdp.FSDPModule
    return {path: fsdp_state(part)._mp_policy for path, part in model.named_modules() if isinstance(part, kind)}


def _add_casts(part: nn.Module, policy: Any) -> None:
    if policy.param_dtype and policy.cast_forward_inputs:
        part.register_forward_pre_hook(
            lambda _, args, kwargs: _cast((args, kwargs), policy.param_dtype), with_kwargs=True
        )
    if policy.output_dtype:
        part.register_forward_hook(lambda _, args, output: _cast(output, policy.output_dtype))


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda each: each.to(dtype) if each.is_floating_point() else each, tree)
