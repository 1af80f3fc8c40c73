"""Record of the calls that torch dispatches in each checkpointed region, and of the tensors that autograd saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import torch
from torch.utils.checkpoint import SAC_IGNORED_OPS

from remat.torch.capture.concrete import concrete_world
from remat.torch.capture.fakes import FakeWorld
from remat.torch.costs.calls import storage_key
from remat.torch.modes import kept_attributes
from remat.torch.private import TorchDispatchMode, enable_python_dispatcher, pytree


@dataclass(eq=False)
class Call:
    """One dispatched call.

    Attributes
    ----------
    function : torch._ops.OpOverload
    key : tuple
        Kind of op, shape and type of its first result: equal for the same call in another trace.
    fresh : bool
        True if it allocates a result; false for views and changes in place.
    changed : bool
        True if a later call changes its result in place, so that it cannot be saved.
    """

    function: Any
    key: tuple[Any, ...]
    fresh: bool
    changed: bool = False


@dataclass(eq=False)
class Run:
    """One run of a region: the calls that a policy sees, and how many of them precede the last saved tensor."""

    path: str
    calls: list[Call] = field(default_factory=list)
    packed: int = 0


def is_free(function: Any) -> bool:
    """Return True for views and for calls that policies never see: autograd adds views after changes in place."""
    return function in SAC_IGNORED_OPS or getattr(function, "is_view", False)


def kind_of(name: str) -> str:
    """Return one name for ops that are the same in eager and in captured graphs.

    Examples
    --------
    >>> kind_of("aten._native_batch_norm_legit_functional.default"), kind_of("aten.mm.default")
    ('batch_norm', 'aten.mm.default')
    """
    return "batch_norm" if "batch_norm" in name else name


def key_of(name: str, value: Any) -> tuple[Any, ...]:
    """Return the key of a call from the name of its op and its results."""
    first = next((leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)), None)
    return (kind_of(name), None if first is None else (tuple(first.shape), first.dtype))


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self.current: Run | None = None
        self._makers: dict[int, Call] = {}
        self._alive: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.current is None or is_free(func):
            return out
        given = {storage_key(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        made = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        schema = getattr(func, "_schema", None)
        mutable = schema is not None and schema.is_mutable
        fresh = not mutable and any(storage_key(leaf) not in given for leaf in made)
        call = Call(func, key_of(str(func), out), fresh)
        self.current.calls.append(call)
        if schema is not None and mutable:
            for formal, value in zip(schema.arguments, args, strict=False):
                if formal.alias_info is not None and formal.alias_info.is_write and isinstance(value, torch.Tensor):
                    maker = self._makers.get(storage_key(value))
                    if maker is not None:
                        maker.changed = True
        for leaf in made:
            if storage_key(leaf) not in given:
                self._makers[storage_key(leaf)] = call
                self._alive.append(leaf.detach())  # a freed storage's key could return
        return out

    def enter(self, path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if self.current is None:
                self.current = Run(path)
                self.runs.append(self.current)

        return hook

    def leave(self, path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if self.current is not None and self.current.path == path:
                self.current = None

        return hook

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.current is not None:
            self.current.packed = len(self.current.calls)
        return tensor


def recorded(world: FakeWorld, paths: Sequence[str], given: tuple[Any, Any] | None, *, traced: bool) -> list[Run]:
    """Run the forward pass of a module on fake tensors; return each run of the submodules at `paths`, in order.

    With `traced`, ops decompose as in a trace of ``torch.compile``: dropout is one op there, and four in eager mode on
    a CPU. Otherwise small tensors among the real arguments `given` keep their values: models of transformers make a
    mask in traces, and in eager mode only for a batch with padding.
    """
    recorder = _Recorder()
    parts = dict(world.module.named_modules(remove_duplicate=False))
    with ExitStack() as stack:
        stack.enter_context(_hooked([(parts[path], path) for path in paths], recorder))
        if traced:
            args, kwargs = world.args, world.kwargs
            stack.enter_context(kept_attributes(world.module))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(world.mode)
            stack.enter_context(world.swapped())
            stack.enter_context(enable_python_dispatcher())
        else:
            _, args, kwargs = stack.enter_context(concrete_world(world, given))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor))
        stack.enter_context(recorder)
        world.module(*args, **kwargs)
    return recorder.runs


@contextmanager
def _hooked(parts: Sequence[tuple[torch.nn.Module, str]], recorder: _Recorder) -> Iterator[None]:
    with ExitStack() as handles:
        for part, path in parts:
            handles.callback(part.register_forward_pre_hook(recorder.enter(path), prepend=True).remove)
            handles.callback(part.register_forward_hook(recorder.leave(path)).remove)
        yield


def matched(runs: Sequence[Run], keys: Sequence[tuple[Any, ...]]) -> list[tuple[int, int] | None]:
    """Return the run and the position within it of the call that matches each key; None without one.

    Calls that allocate are matched with the keys in order, as a text is compared with another.
    """
    places = [(k, i) for k, run in enumerate(runs) for i, call in enumerate(run.calls) if call.fresh]
    calls = [runs[k].calls[i].key for k, i in places]
    found: list[tuple[int, int] | None] = [None] * len(keys)
    for a, b, size in SequenceMatcher(None, calls, list(keys), autojunk=False).get_matching_blocks():
        for offset in range(size):
            found[b + offset] = places[a + offset]
    return found
