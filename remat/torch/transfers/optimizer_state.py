"""State of an optimizer on the host, brought to the device in parts for the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import MethodType
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import nn, optim

from remat.errors import ExecutionError, ProblemError
from remat.runtime.sizes import memory_bytes
from remat.runtime.text import counted
from remat.torch.capture.fakes import fake_tensors
from remat.torch.fit.eager_step import AnyNumber
from remat.torch.fit.optimizers import NAMES, OptimizerLike, optimizer_name, optimizer_of
from remat.torch.transfers.host_memory import HostMemory, HostSpace
from remat.torch.transfers.moves import Arriving, HostCopy, arrive, fetch, offload, settle

#: Classes that update each parameter for itself.
SEPARATE = {torch.optim.SGD, *(kind for kind in NAMES.values() if isinstance(kind, type))}
#: Optimizers whose state is on the host.
_MOVED: WeakSet[optim.Optimizer] = WeakSet()


class StateBytes(NamedTuple):
    """Bytes of an optimizer's state between its steps, on the device and on the host."""

    device: int
    host: int


def state_bytes(optimizer: OptimizerLike, module: nn.Module) -> StateBytes:
    """Return the bytes of the state that an optimizer of a module has after its first step.

    They are computed on fake tensors, also if the state is there already. Counters do not count.

    Raises
    ------
    ProblemError
        As :func:`~remat.torch.fit.optimizers.optimizer_of`; or if a step cannot run on fake tensors.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    with fake_tensors() as mode:
        fakes = {name: mode.from_tensor(parameter) for name, parameter in module.named_parameters()}
        like = optimizer_of(optimizer, names, fakes)
        if like is None:
            return StateBytes(0, 0)
        for fake in fakes.values():
            fake.grad = torch.empty_like(fake) if fake.requires_grad else None
        try:
            with AnyNumber():
                like.step()
        except Exception as error:
            raise ProblemError(
                f"the size of the state of {optimizer_name(optimizer)} is unknown, since its step does not run on fake "
                f"tensors: {error}",
                "optimizer",
            ) from error
        size = sum(
            value.nbytes
            for parameter, values in like.state.items()
            for value in values.values()
            if torch.is_tensor(value) and value.dim() > 0 and value.device == parameter.device
        )
    return StateBytes(0, size) if optimizer in _MOVED else StateBytes(size, 0)


def offload_optimizer(optimizer: optim.Optimizer, most: str | int = "256MiB") -> HostState:
    """Keep the state of an optimizer on the host; each `step` brings it to the device in parts.

    While a part is written back, the next one is read: both are on the device then, and take at most `most` bytes, or
    the state of one parameter and its successor if that is more. The optimizer computes what it computed before, bit
    by bit. Its first step, which creates the state, updates one parameter after the other.

    `state_dict`, `load_state_dict`, schedulers of the learning rate and gradient scalers work as before. Between steps
    the state is in pinned host memory; loading a checkpoint has it on the device for a moment.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Of a class in ``torch.optim`` that updates each parameter for itself: not LBFGS or SparseAdam.
    most : str or int
        Bytes of state on the device at a time.

    Returns
    -------
    HostState
        Bytes on device and host. The optimizer refers to it.

    Raises
    ------
    ProblemError
        If the optimizer is of another class, or `most` is no size.
    ExecutionError
        In `step`: if the optimizer has hooks of steps, which would run once for each part; or if the host memory cannot
        be pinned.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    >>> adam = torch.optim.Adam(model.parameters())
    >>> state = offload_optimizer(adam, "80KiB")
    >>> for _ in range(2):
    ...     model(torch.ones(1, 64)).sum().backward()
    ...     adam.step()
    >>> state
    HostState(266,240 bytes on the host, at most 66,560 on the device)
    """
    if type(optimizer) not in SEPARATE:
        names = ", ".join(sorted(kind.__name__ for kind in SEPARATE))
        raise ProblemError(
            f"the state of {type(optimizer).__name__} cannot move in parts; it can with {names} of torch.optim",
            "optimizer-parts",
            type(optimizer).__name__,
        )
    return HostState(optimizer, memory_bytes(most))


@dataclass(eq=False)
class _State:
    """State of one parameter on the host by name: memory, copies, and the tensors that show them to the optimizer."""

    memory: dict[str, HostSpace] = field(default_factory=dict)
    copies: dict[str, HostCopy] = field(default_factory=dict)
    shown: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the copies."""
        return sum(copy.size for copy in self.copies.values())


class HostState:
    """State of an optimizer on the host.

    Attributes
    ----------
    most : int
        Bytes of state wanted on the device at a time.
    peak : int
        Largest number of bytes of state that have been on the device at a time.
    """

    def __init__(self, optimizer: optim.Optimizer, most: int) -> None:
        self.most, self.peak = most, 0
        self._states: dict[torch.Tensor, _State] = {}
        self._on_device: dict[torch.Tensor, int] = {}
        self._update: Callable[[optim.Optimizer], Any] = type(optimizer).step

        def step(optimizer: optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self._step(optimizer, closure)

        optimizer.step = MethodType(step, optimizer)
        _MOVED.add(optimizer)
        optimizer.register_load_state_dict_post_hook(self._write_all)
        self._write_all(optimizer)

    def __repr__(self) -> str:
        return f"HostState({self.size:,} bytes on the host, at most {self.peak:,} on the device)"

    @property
    def size(self) -> int:
        """Bytes on the host."""
        return sum(state.size for state in self._states.values())

    def _step(self, optimizer: optim.Optimizer, closure: Callable[[], Any] | None) -> Any:
        hooks = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
        if hooks:
            raise ExecutionError(
                f"the optimizer has {counted(hooks, 'hook')} of steps, to run once for each part of its state: remove "
                "them, or do not move its state",
                "step-hooks",
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        arriving: dict[torch.Tensor, dict[str, Arriving]] = {}
        parts = self._parts(optimizer)
        for part, following in pairwise([[], *parts, []]):
            self._arrive(optimizer, arriving)
            if part:
                with _only(optimizer, part):
                    self._update(optimizer)
            left = self._write(optimizer, part)
            arriving = self._fetch(following)
            self._release(part, left)
        optimizer._opt_called = True  # schedulers warn without it
        return loss

    def _parts(self, optimizer: optim.Optimizer) -> list[list[torch.Tensor]]:
        """Return the parameters with gradients, in parts of half of `most`; one without a state is alone."""
        parts: list[list[torch.Tensor]] = []
        room = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                known = self._states.get(parameter)
                size = self.most if known is None else known.size
                if not parts or size > room:
                    parts.append([])
                    room = self.most // 2
                parts[-1].append(parameter)
                room -= size
        return parts

    def _fetch(self, part: list[torch.Tensor]) -> dict[torch.Tensor, dict[str, Arriving]]:
        """Begin to read the states of some parameters."""
        known = {parameter: self._states[parameter] for parameter in part if parameter in self._states}
        for parameter, state in known.items():
            self._count(parameter, state.size)
        return {
            parameter: {name: fetch(copy) for name, copy in state.copies.items()} for parameter, state in known.items()
        }

    def _arrive(self, optimizer: optim.Optimizer, arriving: dict[torch.Tensor, dict[str, Arriving]]) -> None:
        """Give the optimizer the states that have been read."""
        for parameter, reads in arriving.items():
            for name, read in reads.items():
                (optimizer.state[parameter][name],) = arrive(read, self._states[parameter].copies[name])

    def _write(self, optimizer: optim.Optimizer, part: list[torch.Tensor]) -> list[torch.Tensor]:
        """Begin to write the states of some parameters, and give the optimizer those on the host.

        Return the tensors on the device, which must live until the writes have ended.
        """
        left: list[torch.Tensor] = []
        for parameter in part:
            values = optimizer.state[parameter]
            moved = {name: value for name, value in values.items() if _moves(value, parameter)}
            if not moved:
                continue
            state = self._states.setdefault(parameter, _State())
            self._count(parameter, sum(value.nbytes for value in moved.values()))
            for name, given in moved.items():
                # loaded tensors may share a storage
                value = given if given.untyped_storage().nbytes() == given.nbytes else given.clone()
                old = state.copies.pop(name, None)
                if old is None or old.size != value.nbytes:  # storages of their own: files have no more than the state
                    state.memory[name] = HostMemory(value.nbytes, parameter.device).space()
                copy = state.copies[name] = offload(state.memory[name], 0, value)
                state.shown[name] = values[name] = _on_host(copy)
                left.append(value)
        return left

    def _release(self, part: list[torch.Tensor], left: list[torch.Tensor]) -> None:
        """Let the device wait for the writes of some parameters; their memory on it is free then."""
        for parameter in part:
            state = self._states.get(parameter)
            for copy in () if state is None else state.copies.values():
                settle(copy)
            self._on_device.pop(parameter, None)
        left.clear()

    def _write_all(self, optimizer: optim.Optimizer) -> None:
        """Write all states that are on the device, one parameter after the other."""
        for parameter, values in optimizer.state.items():
            state = self._states.get(parameter)
            shown = {} if state is None else state.shown
            if any(_moves(value, parameter) and shown.get(name) is not value for name, value in values.items()):
                self._release([parameter], self._write(optimizer, [parameter]))

    def _count(self, parameter: torch.Tensor, size: int) -> None:
        self._on_device[parameter] = size
        self.peak = max(self.peak, sum(self._on_device.values()))


@contextmanager
def _only(optimizer: optim.Optimizer, part: list[torch.Tensor]) -> Iterator[None]:
    """Let the optimizer have these parameters alone, in their groups."""
    whole, wanted = optimizer.param_groups, set(part)
    chosen = [{**group, "params": [each for each in group["params"] if each in wanted]} for group in whole]
    optimizer.param_groups = [group for group in chosen if group["params"]]
    try:
        yield
    finally:
        optimizer.param_groups = whole


def _moves(value: Any, parameter: torch.Tensor) -> bool:
    """Return True for a tensor of the state that moves: not a counter, nor one that is sharded or elsewhere."""
    return type(value) is torch.Tensor and value.dim() > 0 and value.device == parameter.device


def _on_host(copy: HostCopy) -> torch.Tensor:
    """Return the tensor that a copy on the host shows."""
    (seen,) = copy.views
    return torch.empty(0, dtype=seen.dtype).set_(copy.bytes.untyped_storage(), seen.offset, seen.shape, seen.strides)
