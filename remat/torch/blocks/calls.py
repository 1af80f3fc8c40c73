"""Calls of blocks in one training step of a model, recorded on fake tensors, and which of them are alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from remat.errors import CaptureError
from remat.torch.capture.concrete import DEVICE, Concrete, concrete_world, tensors_in
from remat.torch.capture.explaining import explained, quiet_torch
from remat.torch.capture.fakes import FakeWorld, grouped_products, without_onednn
from remat.torch.capture.recording import differentiable
from remat.torch.costs.calls import storage_key
from remat.torch.distributed import Spread, is_distributed, local_part, tangent_of
from remat.torch.private import TorchDispatchMode, pytree
from remat.torch.rematerialized.plan import Autocast, autocast_state


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
    autocast : tuple
        State of autocast around the call.
    """

    path: str
    block: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    kind: str
    autocast: Autocast = ()


def record_calls(world: FakeWorld, blocks: Mapping[str, nn.Module], given: tuple[Any, Any] | None = None) -> list[Call]:
    """Run the forward pass of a model on fake tensors, and the backward pass of each block; return calls of the blocks.

    `given`: real positional and keyword arguments. Small tensors among them keep their values.

    Raise CaptureError if the model cannot be run so, or calls none of the blocks with a gradient to compute.
    """
    calls: list[Call] = []
    kinds: dict[str, str] = {}
    with (
        quiet_torch(), without_onednn(), grouped_products(), concrete_world(world, given) as (mode, args, kwargs),
    ):  # fmt: skip
        for path, block in blocks.items():
            block.__dict__["forward"] = _Recorded(path, block, calls, kinds, mode)
        try:
            world.module(*args, **kwargs)
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
    """Forward of a block that records the call, and cuts the model's autograd graph before it.

    `kinds`: kind of each recorded forward pass that determines its backward pass, which then runs once only.
    """

    def __init__(self, path: str, block: nn.Module, calls: list[Call], kinds: dict[str, str], mode: Concrete) -> None:
        self._path, self._block, self._forward = path, block, block.forward
        self._calls, self._kinds, self._mode = calls, kinds, mode

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given, spec = pytree.tree_flatten((args, kwargs), is_leaf=_is_size)
        leaves = [
            self._mode.fake(each).detach().requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor)
            else each
            for each in given
        ]  # fmt: skip
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        cache = next((type(each).__name__ for each in leaves if type(each).__name__.endswith("Cache")), "")
        if cache:
            raise CaptureError(
                f"block {self._path!r} is called with a {cache}, whose tensors torch cannot find: pass "
                "use_cache=False; with prefix tuning, rematerialize the whole model instead",
                "cache",
            )
        with _Ops(self._block, leaves) as ops:
            with _possible_hooks() as hooks:
                returned = self._forward(*args, **kwargs)
            outputs, out_spec = pytree.tree_flatten(returned)
            roots = differentiable(outputs)
            if roots:
                ops.note("outputs", [ops.token(each) for each in outputs], str(spec), str(out_spec))
                ops.note("backward", [ops.token(root) for root in roots])
                kind = self._kind(ops, roots, leaves, hidden=bool(hooks) or _has_python(roots))
                self._calls.append(Call(self._path, self._block, args, kwargs, kind, autocast_state()))
        places = {id(leaf): k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        return pytree.tree_unflatten([given[places[id(e)]] if id(e) in places else e for e in outputs], out_spec)

    def _kind(self, ops: _Ops, roots: list[torch.Tensor], leaves: list[Any], *, hidden: bool) -> str:
        """Return the digest of both passes; `hidden`: True if the ops of the forward one do not determine the other."""
        forward = ops.digest()
        if hidden or forward not in self._kinds:
            wanted = [*self._block.parameters(), *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))]
            wanted = [each for each in wanted if each.requires_grad]
            tangents = [tangent_of(root, torch.empty_like(local_part(root))) for root in roots]
            found = torch.autograd.grad(roots, wanted, tangents, allow_unused=True)
            ops.note("gradients", [ops.token(each) for each in found])
            if hidden:
                return ops.digest()
            self._kinds[forward] = ops.digest()
        return self._kinds[forward]


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.Size)  # pytree makes a tuple of it


@contextmanager
def _possible_hooks() -> Iterator[list[Any]]:
    """Collect hooks that run in a backward pass: of tensors, of saved tensors, and possibly of autograd nodes.

    PyTorch does not list the hooks of a node. They are set on ``grad_fn``, so each read of it counts.
    """
    found: list[Any] = []

    def noting(function: Any) -> Any:
        def noted(self: Any, *args: Any) -> Any:
            found.append(self)
            return function(self, *args)

        return noted

    grad_fn = property(noting(torch.Tensor.grad_fn.__get__))
    places = (torch.Tensor, "register_hook"), (torch.autograd.graph.saved_tensors_hooks, "__enter__")
    with ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(patch.object(owner, name, noting(getattr(owner, name))))
        stack.enter_context(patch.object(torch.Tensor, "grad_fn", grad_fn))
        yield found


def _has_python(roots: Sequence[torch.Tensor]) -> bool:
    """Return True if a backward pass runs an ``autograd.Function`` written in Python."""
    waiting: list[Any] = [root.grad_fn for root in roots]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        found = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= found
        waiting += found
    return False


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
        self.note("modes", [part.training for part in block.modules()], autocast_state())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is DEVICE:
            return func(*args)
        if any(map(is_distributed, tensors_in((args, kwargs or {})))):
            return NotImplemented  # its ops on local parts come here in turn
        read = self._described((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for each in tensors_in(result):
            if storage_key(each) not in self._numbers:
                self._named(each, f"%{len(self._held)}")
        self.note(str(func), read, self._described(result))
        return result

    def _described(self, value: Any) -> Any:
        """Describe arguments or results of an op."""
        if isinstance(value, tuple | list):
            return [self._described(each) for each in value]
        if isinstance(value, Mapping):
            return {name: self._described(each) for name, each in value.items()}
        return self.token(value)

    def token(self, leaf: Any) -> str:
        """Describe a value: a tensor by its storage and layout."""
        if not isinstance(leaf, torch.Tensor):
            return repr(leaf)
        if (spread := Spread.of(leaf)) is not None:
            return f"{spread.placements} of {self.token(local_part(leaf))}"
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
        self._numbers[storage_key(local_part(tensor))] = name
        self._held.append(local_part(tensor))  # its storage's address is not used again
        return self.token(tensor)
