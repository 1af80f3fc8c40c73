"""One captured step of a module, ready to run, and the conditions of its capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from remat.errors import ExecutionError
from remat.torch.distributed import Spread, described, is_distributed, with_placement
from remat.torch.execute.step import returned
from remat.torch.rematerialized.arguments import Sample
from remat.torch.rematerialized.autograd_function import Program
from remat.torch.rematerialized.python_state import PythonState
from remat.torch.rematerialized.report import Report

#: Kinds of device with autocast, and its type for each.
Autocast = tuple[tuple[str, torch.dtype], ...]
#: Training flags of a module and its submodules.
Modes = tuple[bool, ...]


@dataclass(frozen=True)
class Constant:
    """A tensor that forward reads and that is neither a parameter nor a buffer, and the attribute that holds it."""

    value: torch.Tensor
    path: str
    """Path of the submodule with the attribute; empty for the module itself."""
    attribute: str
    """Name of the attribute; empty if no attribute holds the tensor, which is then always the same."""

    @classmethod
    def of(cls, module: nn.Module, value: torch.Tensor) -> Constant:
        """Find the attribute that holds a tensor.

        Raise ExecutionError if it requires a gradient, which only a parameter can have.
        """
        found = [(p, name) for p, part in module.named_modules() for name, x in part.__dict__.items() if x is value]
        path, attribute = found[0] if found else ("", "")
        if value.requires_grad:
            place = f" {f'{path}.{attribute}'.lstrip('.')!r}" if attribute else ""
            raise ExecutionError(
                f"the module uses the tensor{place} of shape {tuple(value.shape)}, which requires a gradient and is "
                "not one of its parameters: register it (nn.Parameter as an attribute, or in an nn.ParameterList)",
                "foreign-parameter",
            )
        return cls(value, path, attribute)

    def now(self, module: nn.Module) -> Any:
        """Return the tensor that forward would now read."""
        if not self.attribute:
            return self.value
        return module.get_submodule(self.path).__dict__.get(self.attribute)


class Plan:
    """One captured step of a module, ready to run: program, report, and the conditions of its capture.

    Copies of a module share it; it has no parameters.

    `read`: attributes that forward reads. `captured_of`: the module that was captured, if it is another one that does
    the same.
    """

    def __init__(
        self,
        module: nn.Module,
        sample: Sample,
        program: Program,
        report: Report,
        *,
        read: Set[tuple[str, str]],
        captured_of: nn.Module | None = None,
    ) -> None:
        captured = program.split.captured
        self.program, self.report = program, report
        self.sample = sample
        self._inputs = tuple(captured.inputs[position] for position in program.split.forward_inputs)
        self._autocast = autocast_state()
        self._modes = modes_of(module)
        self._python = PythonState.of(module, read)
        known = dict(module.named_parameters(remove_duplicate=False)) | dict(
            module.named_buffers(remove_duplicate=False)
        )
        self._kinds: dict[str, tuple[Any, ...]] = {}
        self._constants: dict[str, Constant] = {}
        for each in self._inputs:
            if each.kind != "input":
                if each.name not in known:
                    constant = Constant.of(captured_of or module, captured.constants[each.name])
                    self._constants[each.name] = constant
                    known[each.name] = constant.now(module)
                self._kinds[each.name] = _kind(known[each.name])
        self._trained = frozenset(name for name in self._kinds if known[name].requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self

    def state(self, module: nn.Module, modes: Modes) -> dict[str, torch.Tensor]:
        """Return the parameters, buffers and constants of a module that the step reads; `modes`: of its submodules.

        Raise ExecutionError with the first one that differs from the captured one, or if submodules were added or
        removed, or attributes or hooks differ.
        """
        if len(modes) != len(self._modes):
            raise ExecutionError("the module has other submodules than when the step was captured" + _ADVICE)
        found = {}
        for each in self._inputs:
            if each.kind == "input":
                continue
            constant = self._constants.get(each.name)
            tensor = _tensor(module, each.name) if constant is None else constant.now(module)
            if is_distributed(tensor) and each.spread is None:
                raise ExecutionError(
                    f"{each.kind} {each.name!r} is sharded ({described(tensor)}), but was whole when the step was "
                    "captured: fully_shard the block itself, and call rematerialize after parallelize_module",
                )
            if not isinstance(tensor, torch.Tensor) or _kind(tensor) != self._kinds[each.name]:
                raise ExecutionError(
                    f"{each.kind} {each.name!r} is now {_words(tensor)}; the step was captured with another" + _ADVICE
                )
            if tensor.requires_grad and each.name not in self._trained:
                raise ExecutionError(
                    f"parameter {each.name!r} requires a gradient, but did not when the step was captured" + _ADVICE
                )
            found[each.name] = tensor
        if difference := self._python.difference(module):
            raise ExecutionError(difference, "python-state")
        return found

    def leaves(self, module: nn.Module, modes: Modes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the flattened arguments of a call, in the order of the sample's.

        Raise ExecutionError with the name of the argument or the mode that differs from the sample.
        """
        if modes != self._modes:
            present = zip(module.named_modules(), modes, self._modes, strict=True)
            name, is_training = next((name, now) for (name, _), now, then in present if now != then)
            words = ("training", "evaluation") if is_training else ("evaluation", "training")
            raise ExecutionError(
                f"submodule {name!r} is in {words[0]} mode, but was in {words[1]} mode when the step was captured",
                "other-mode",
            )
        if (autocast := autocast_state()) != self._autocast:
            raise ExecutionError(
                f"autocast is {_told(autocast)}, but was {_told(self._autocast)} when the step was captured: "
                "call rematerialize(...) in the same torch.autocast block that the training uses",
                "other-autocast",
            )
        return self.sample.leaves(args, kwargs)

    def run(self, state: Mapping[str, torch.Tensor], leaves: list[Any]) -> Any:
        """Return the module's return value for a state and arguments that fit this step."""
        tensors = [leaves[int(each.name)] if each.kind == "input" else state[each.name] for each in self._inputs]
        values, captured = iter(self.program(tensors)), self.program.split.captured
        return returned(
            captured,
            [
                each.value if each.node is None else with_placement(next(values), each.spread)
                for each in captured.results_of("output")
            ],
        )


class MakesPlans(Protocol):
    """Maker of the steps of a module that none of its plans fits."""

    @property
    def other_calls(self) -> bool:
        """True if a call unlike all earlier ones is captured; False if it is refused."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Plan:
        """Return the step of a module for these arguments."""


def modes_of(module: nn.Module) -> Modes:
    """Return the training flags of a module and its submodules."""
    return tuple(each.training for each in module.modules())


_ADVICE = ": call rematerialize(...) after such changes"


def _tensor(module: nn.Module, name: str) -> torch.Tensor:
    """Return a parameter or buffer as it is now: ``.to()`` and assignments replace tensors."""
    *path, last = name.split(".")
    for part in path:
        module = module._modules[part]
    found = module._parameters.get(last)
    found = module._buffers.get(last) if found is None else found
    if found is None:
        raise ExecutionError(f"the module has no parameter or buffer {name!r} any more")
    return found


def autocast_state() -> Autocast:
    """Return the kinds of device for which autocast is on, with its type for each."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind))


@contextmanager
def autocast_as(state: Autocast) -> Iterator[None]:
    """Switch autocast on for these kinds of device, and off for others."""
    with ExitStack() as stack:
        for kind, _ in (now := autocast_state()):
            if kind not in dict(state):
                stack.enter_context(torch.autocast(kind, enabled=False))
        for kind, dtype in state:
            if (kind, dtype) not in now:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
        yield


def _told(state: Autocast) -> str:
    return " and ".join(f"on for {kind} ({dtype})" for kind, dtype in state) or "off"


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, Spread.of(tensor)


def _words(tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor):
        return f"a {type(tensor).__name__}"
    return f"of shape {tuple(tensor.shape)} and {tensor.dtype} on {tensor.device}"
