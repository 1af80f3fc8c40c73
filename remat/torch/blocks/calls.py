"""Calls of blocks in one training step of a model, recorded on fake tensors, and which of them are alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from remat.errors import CaptureError
from remat.torch.capture.explaining import explained, quiet_torch
from remat.torch.capture.fakes import FakeWorld, grouped_products, without_onednn
from remat.torch.capture.recording import differentiable
from remat.torch.costs.calls import storage_key
from remat.torch.modes import kept_attributes
from remat.torch.private import TorchDispatchMode, pytree


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a block in a training step.

    Attributes
    ----------
    path : str
        Path of the block in the model.
    block : torch.nn.Module
    args, kwargs
        Arguments; their tensors are fake.
    kind : str
        Digest of the ops of forward and backward pass with all arguments and all reads and writes of tensors. Calls of
        one kind have the same graph.
    """

    path: str
    block: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    kind: str


def record_calls(world: FakeWorld, blocks: Mapping[str, nn.Module]) -> list[Call]:
    """Run the forward pass of a model on fake tensors, and the backward pass of each block; return calls of the blocks.

    Raise CaptureError if the model cannot be run so, or calls none of the blocks with a gradient to compute.
    """
    calls: list[Call] = []
    with (
        kept_attributes(world.module), quiet_torch(), without_onednn(), grouped_products(), world.swapped(), world.mode,
        torch.enable_grad(),
    ):  # fmt: skip
        for path, block in blocks.items():
            block.__dict__["forward"] = _Recorded(path, block, calls)
        try:
            world.module(*world.args, **world.kwargs)
        except Exception as error:
            raise explained(world.module, error) from error
        finally:
            torch.clear_autocast_cache()
    if not calls:
        raise CaptureError(
            f"model {type(world.module).__name__!r} calls none of its blocks ({', '.join(list(blocks)[:3])}, ...) "
            "with a gradient to compute",
            "no-call",
        )
    return calls


class _Recorded:
    """Forward of a block that records the call, and cuts the model's autograd graph behind it."""

    def __init__(self, path: str, block: nn.Module, calls: list[Call]) -> None:
        self._path, self._block, self._forward, self._calls = path, block, block.forward, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given, spec = pytree.tree_flatten((args, kwargs))
        leaves = [
            leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in given
        ]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with _Ops(self._block, leaves) as ops:
            returned = self._forward(*args, **kwargs)
            outputs, out_spec = pytree.tree_flatten(returned)
            roots = differentiable(outputs)
            if roots:
                ops.note("backward", [ops.token(root) for root in roots])
                wanted = [*self._block.parameters(), *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))]
                wanted = [each for each in wanted if each.requires_grad]
                tangents = [torch.empty_like(root) for root in roots]
                found = torch.autograd.grad(roots, wanted, tangents, allow_unused=True)
                ops.note("results", [ops.token(each) for each in (*outputs, *found)])
        if roots:
            ops.note("structure", str(spec), str(out_spec))
            self._calls.append(Call(self._path, self._block, args, kwargs, ops.digest()))
        places = {id(leaf): k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        return pytree.tree_unflatten(
            [
                given[places[id(each)]] if id(each) in places
                else each.detach().requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor)
                else each
                for each in outputs
            ],
            out_spec,
        )  # fmt: skip


class _Ops(TorchDispatchMode):
    """Record of ops with numbered storages, equal for calls that do the same."""

    def __init__(self, block: nn.Module, leaves: Sequence[Any]) -> None:
        super().__init__()
        self._numbers: dict[int, str] = {}
        self._held: list[torch.Tensor] = []
        self._digest = hashlib.sha256()
        self._attributes = {
            id(value): f"{path}.{name}"
            for path, part in block.named_modules()
            for name, value in part.__dict__.items()
            if isinstance(value, torch.Tensor)
        }
        for kind, tensors in (("parameter", block.named_parameters()), ("buffer", block.named_buffers())):
            for name, tensor in tensors:
                self.note(kind, self._named(tensor, name), tensor.requires_grad, type(tensor).__name__)
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                self.note("input", self._named(leaf, str(number)), leaf.requires_grad)
        self.note("modes", [part.training for part in block.modules()])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        read = [self.token(leaf) for leaf in pytree.tree_leaves((args, kwargs or {}))]
        result = func(*args, **(kwargs or {}))
        written = []
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and storage_key(leaf) not in self._numbers:
                self._named(leaf, f"%{len(self._held)}")
            written.append(self.token(leaf))
        self.note(str(func), read, written)
        return result

    def token(self, leaf: Any) -> str:
        """Describe a value: a tensor by its storage and layout."""
        if not isinstance(leaf, torch.Tensor):
            return repr(leaf)
        key = storage_key(leaf)
        if key not in self._numbers:  # read by the block, and neither its own nor an argument
            self._named(leaf, self._attributes.get(id(leaf), f"tensor at {id(leaf)}"))
        layout = tuple(leaf.shape), leaf.stride(), leaf.storage_offset(), leaf.dtype, leaf.device
        return f"{self._numbers[key]} {layout}"

    def note(self, *what: Any) -> None:
        """Add a line to the record."""
        self._digest.update(repr(what).encode())

    def digest(self) -> str:
        """Return the digest of the record."""
        return self._digest.hexdigest()

    def _named(self, tensor: torch.Tensor, name: str) -> str:
        self._numbers[storage_key(tensor)] = name
        self._held.append(tensor)  # its storage's address is not used again
        return self.token(tensor)
