"""Fake tensors: shapes, types and strides of a module and its sample arguments, without their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from remat.errors import CaptureError
from remat.torch.distributed import (
    Spread,
    described,
    fsdp_modules,
    fsdp_parameters,
    is_distributed,
    local_part,
)
from remat.torch.private import (
    DispatchKey,
    FakeTensor,
    FakeTensorMode,
    meta_registrations,
    pytree,
    reparametrize_module,
)


def fake_tensors() -> AbstractContextManager[Any]:
    """Return a context in which new tensors have a shape, a type and a device, but no memory.

    A module built in it can be captured, whatever the size of its weights.

    Examples
    --------
    >>> with fake_tensors():
    ...     layer = torch.nn.Linear(1_000_000, 1_000_000)
    >>> layer.weight.untyped_storage().nbytes()
    4000000000000
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


def sample_tuple(sample: Any) -> tuple[Any, ...]:
    """Return the positional arguments of a sample: a tuple, a list, a single tensor, or None for no arguments.

    Raise CaptureError for anything else.
    """
    if isinstance(sample, torch.Tensor):
        return (sample,)
    if not isinstance(sample, tuple | list | None):
        raise _no_tuple(sample)
    return tuple(sample or ())


def _no_tuple(given: Any) -> CaptureError:
    named = "; arguments by name are sample_kwargs" if isinstance(given, Mapping) else ""
    return CaptureError(
        f"the sample arguments must be a tuple, not a {type(given).__name__}: (x,) for one{named}", "arguments"
    )


@contextmanager
def without_onednn() -> Iterator[None]:
    """Run the ops of an LSTM one by one: oneDNN's fused kernel does not report the memory that it keeps."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


@contextmanager
def grouped_products() -> Iterator[None]:
    """Allow grouped products (experts of a mixture) of fake tensors of 16 and 32 bits, as kernels do.

    PyTorch's fake kernel of ``aten._grouped_mm`` refuses all types except BF16; the CPU's kernel does not.
    """
    original: Any = getattr(meta_registrations, "_meta_grouped_mm_common", None)

    def product(mat_a: torch.Tensor, mat_b: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        types, scales = {mat_a.dtype, mat_b.dtype}, (kwargs.get("scale_a"), kwargs.get("scale_b"), *args)
        if types not in ({torch.float32}, {torch.float16}) or any(each is not None for each in scales):
            result: torch.Tensor = original(mat_a, mat_b, *args, **kwargs)
        else:
            made = meta_registrations._create_grouped_mm_output_tensor
            result = made(mat_a, mat_b, kwargs.get("offs"), kwargs.get("out_dtype"))
        return result

    if original is not None:
        meta_registrations._meta_grouped_mm_common = product
    try:
        yield
    finally:
        if original is not None:
            meta_registrations._meta_grouped_mm_common = original


#: Ops that run as one kernel, and that traces replace by many ops.
_WHOLE = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "hardshrink", "softshrink", "multi_margin_loss",
    "multilabel_margin_loss_forward",
)  # fmt: skip


@contextmanager
def whole_ops() -> Iterator[None]:
    """Record interpolations, shrinkages and margin losses as one op each, as they run without a compiler.

    In traces PyTorch replaces them: a bilinear interpolation by about 50 ops, of which four gather its whole result.
    """
    packets = [getattr(torch.ops.aten, name) for name in _WHOLE]
    overloads = [getattr(packet, each) for packet in packets for each in packet.overloads()]
    kernels = [(overload, dict(overload.py_kernels)) for overload in overloads]
    try:
        for overload in overloads:
            overload.py_kernels.pop(DispatchKey.Autograd, None)
            overload.py_kernels.pop(DispatchKey.CompositeImplicitAutograd, None)
            overload._dispatch_cache.clear()
        yield
    finally:
        for overload, own in kernels:
            overload.py_kernels.update(own)
            overload._dispatch_cache.clear()


@dataclass(frozen=True, eq=False)
class FakeWorld:
    """A module with its sample arguments as fake tensors."""

    module: torch.nn.Module
    mode: FakeTensorMode
    args: tuple[Any, ...]
    """Positional sample arguments; their tensors are fake."""
    kwargs: Mapping[str, Any]
    """Keyword sample arguments; their tensors are fake."""
    state: Mapping[str, torch.Tensor]
    """Fake parameters and buffers by name; a shared one has its first name only."""

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Fake parameters."""
        return {name: self.state[name] for name, _ in self.module.named_parameters()}

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """Fake buffers."""
        return {name: self.state[name] for name, _ in self.module.named_buffers()}

    @property
    def is_distributed(self) -> bool:
        """True if a parameter, buffer or argument is a distributed tensor."""
        return any(map(is_distributed, (*self.state.values(), *pytree.tree_leaves((self.args, dict(self.kwargs))))))

    def unread(self, read: Iterable[str]) -> dict[str, int]:
        """Return the bytes of parameters and of buffers whose names are not in `read`."""
        names = set(read)
        return {
            kind: sum(local_part(each).untyped_storage().nbytes() for name, each in own.items() if name not in names)
            for kind, own in (("parameter", self.parameters), ("buffer", self.buffers))
        }

    @contextmanager
    def swapped(self, state: Mapping[str, torch.Tensor] | None = None) -> Iterator[torch.nn.Module]:
        """Replace the module's parameters and buffers by fake ones; shared ones remain shared.

        Keep the context open until the backward pass ends: a module that recomputes its forward pass there would
        otherwise read its real parameters.
        """
        given = dict(self.state if state is None else state)
        # stacked: a submodule that occurs twice is swapped twice, and its own tensors are restored last
        with ExitStack() as stack:
            stack.enter_context(reparametrize_module(self.module, given, tie_weights=True, stack_weights=True))
            stack.enter_context(patch.object(torch.Tensor, "register_post_accumulate_grad_hook", _refuse_hook))
            for name in _IN_PLACE if torch.distributed.is_available() else ():
                stack.enter_context(patch.object(torch.distributed, name, partial(_refuse_collective, name)))
            yield self.module

    @classmethod
    def of(
        cls, module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any] | None, *, distributed: bool = False
    ) -> FakeWorld:
        """Make fake tensors for a module and its arguments; the module remains unchanged.

        `distributed`: True if distributed tensors are allowed. Their local parts are fake then.

        Raise CaptureError if `args` is not a tuple, or a tensor is on the meta device, of another fake mode, sharded by
        FSDP2, or distributed unevenly.
        """
        if not isinstance(args, tuple | list):
            raise _no_tuple(args)
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
        named = [(f"parameter or buffer {name!r}", tensor) for name, tensor in own.items()]
        named += [(f"sample argument {k}", leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        mode: FakeTensorMode | None = None
        gathered_later = {id(each) for each, _ in fsdp_parameters(list(fsdp_modules(module).values()))}
        for what, tensor in named:
            if id(tensor) in gathered_later:
                raise CaptureError(
                    f"{what} is sharded ({described(tensor)}): call rematerialize before fully_shard, or "
                    "rematerialize_blocks, also after it",
                    "sharded",
                )
            _check_distributed(what, tensor, distributed)
            tensor = local_part(tensor)
            if tensor.device.type == "meta":
                raise CaptureError(
                    f"{what} is on the meta device, whose kernels are no machine's; make the module under "
                    "remat.torch.fake_tensors() instead, which needs no memory either",
                    "meta-device",
                )
            if isinstance(tensor, FakeTensor):
                if mode is not None and tensor.fake_mode is not mode:
                    raise CaptureError(
                        f"{what} is a fake tensor of another FakeTensorMode than those before it", "other-fake-mode"
                    )
                mode = tensor.fake_mode
        mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [_fake(mode, leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        new_args, new_kwargs = pytree.tree_unflatten(fakes, spec)
        state = {name: _fake(mode, tensor) for name, tensor in own.items()}
        return cls(module, mode, new_args, new_kwargs, state)


def refuse_distributed(module: torch.nn.Module) -> None:
    """Raise CaptureError if a parameter or buffer of a module is a distributed tensor."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        _check_distributed(f"parameter or buffer {name!r}", tensor, allowed=False)


def _check_distributed(what: str, tensor: torch.Tensor, allowed: bool) -> None:
    """Refuse a distributed tensor that is not allowed, or whose parts differ in size."""
    spread = Spread.of(tensor)
    if spread is None:
        return
    if not allowed:
        raise CaptureError(
            f"{what} is distributed ({described(tensor)}), which only capture, rematerialize and rematerialize_blocks "
            "take",
            "distributed",
        )
    if not spread.is_even:
        raise CaptureError(
            f"{what} of shape {spread.shape} is sharded unevenly ({described(tensor)}): all processes run one "
            "schedule, so their parts must have one shape",
            "uneven-shards",
        )


#: Collectives that write into an argument.
_IN_PLACE = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "broadcast",
    "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip


def _refuse_collective(name: str, *_: Any, **__: Any) -> None:
    raise CaptureError(
        f"forward calls torch.distributed.{name}, which writes into an argument: use distributed tensors "
        "(parallelize_module), or torch.distributed._functional_collectives",
        "in-place-collective",
    )


def _refuse_hook(tensor: torch.Tensor, _: Any) -> None:
    raise CaptureError(
        f"forward registers a hook on a parameter of shape {tuple(tensor.shape)} (register_post_accumulate_grad_hook), "
        "which a captured step would not: register it outside of forward",
        "forward-hook",
    )


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    spread = Spread.of(tensor)
    if spread is not None:
        return spread.leaf(_fake(mode, local_part(tensor).detach()), requires_grad=tensor.requires_grad)
    if isinstance(tensor, FakeTensor):
        return tensor
    if not tensor.is_leaf:
        tensor = tensor.detach().requires_grad_(tensor.requires_grad)
    return mode.from_tensor(tensor, static_shapes=True)
