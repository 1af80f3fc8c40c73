"""Module for training: like the original, but its steps follow a schedule."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from remat.errors import ExecutionError
from remat.schedule import Schedule
from remat.schedule.io import write_schedule
from remat.torch.captured import Captured
from remat.torch.execute.step import returned
from remat.torch.rematerialized.arguments import Sample
from remat.torch.rematerialized.autograd_function import Program
from remat.torch.rematerialized.report import Report

#: State of autocast of a captured step.
Autocast = tuple[tuple[str, torch.dtype], ...]


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
    """

    def __init__(self, module: nn.Module, sample: Sample, program: Program, report: Report) -> None:
        captured = program.split.captured
        self.sample, self.program, self.report = sample, program, report
        self.inputs = tuple(captured.inputs[position] for position in program.split.forward_inputs)
        self.captured = captured
        self.autocast = autocast_state()
        self.modes = tuple(each.training for each in module.modules())
        known = dict(module.named_parameters(remove_duplicate=False)) | dict(
            module.named_buffers(remove_duplicate=False)
        )
        self.kinds: dict[str, tuple[Any, ...]] = {}
        self.constants: dict[str, Constant] = {}
        for each in self.inputs:
            if each.kind != "input":
                if each.name not in known:
                    known[each.name] = captured.constants[each.name]
                    self.constants[each.name] = Constant.of(module, known[each.name])
                self.kinds[each.name] = _kind(known[each.name])
        self.trained = frozenset(name for name in self.kinds if known[name].requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self

    def run(self, module: nn.Module, leaves: list[Any]) -> Any:
        """Return the module's return value for these arguments, which are flattened like the sample's.

        Raise ExecutionError with the name of a parameter or buffer that differs from the captured one.
        """
        tensors: list[torch.Tensor] = []
        for each in self.inputs:
            if each.kind == "input":
                tensors.append(leaves[int(each.name)])
                continue
            constant = self.constants.get(each.name)
            tensor = _tensor(module, each.name) if constant is None else constant.now(module)
            if not isinstance(tensor, torch.Tensor) or _kind(tensor) != self.kinds[each.name]:
                raise ExecutionError(
                    f"{each.kind} {each.name!r} is now {_words(tensor)}; the step was captured with another: "
                    "call rematerialize(...) after such changes"
                )
            if tensor.requires_grad and each.name not in self.trained:
                raise ExecutionError(
                    f"parameter {each.name!r} requires a gradient, but did not when the step was captured: "
                    "call rematerialize(...) after such changes"
                )
            tensors.append(tensor)
        values = iter(self.program(tensors))
        return returned(
            self.captured,
            [next(values) if each.node is not None else each.value for each in self.captured.results_of("output")],
        )


class Rematerialized(nn.Module):
    """A module whose training step keeps a memory budget; made by :func:`remat.torch.rematerialize`.

    Parameters, buffers and submodules are those of the original, under the same names. In training mode with gradients
    enabled, a call runs the scheduled forward pass and ``backward`` the scheduled backward pass. Otherwise a call
    delegates to the original.

    Attributes
    ----------
    original : torch.nn.Module
    report : Report
        Prediction, certificate and verification.
    """

    original: nn.Module
    _plans: list[Plan]
    _again: Callable[..., Plan] | None

    def __init__(self, original: nn.Module, plan: Plan, again: Callable[..., Plan] | None = None) -> None:
        super().__init__()
        own = self.__dict__
        own["original"] = original
        # the same dictionaries, so that names, state_dict, .to() and optimizers see the original's parameters
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[shared] = original.__dict__[shared]
        own["_plans"], own["_again"] = [plan], again

    @property
    def report(self) -> Report:
        """Prediction, certificate and verification for the sample."""
        return self._plans[0].report

    @property
    def captured(self) -> Captured:
        """Captured step of the sample."""
        return self._plans[0].captured

    @property
    def schedule(self) -> Schedule:
        """Schedule of the sample's step."""
        return self._plans[0].program.split.schedule

    def save_schedule(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule; ``rematerialize(..., schedule=path)`` uses it instead of solving again."""
        write_schedule(self.schedule, path)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the scheduled forward pass in training with gradients, the original's otherwise.

        Raises
        ------
        ExecutionError
            With the name of the argument, parameter or mode that differs from the sample.
        """
        if not (self.training and torch.is_grad_enabled()):
            return self.original(*args, **kwargs)
        return self._scheduled(args, kwargs)

    # torch.compile would partition the copies again, merge them, and draw other numbers for rerun dropout
    @torch.compiler.disable(reason="a rematerialized step runs as it is scheduled (see engine= of rematerialize)")  # type: ignore[untyped-decorator]
    def _scheduled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        plan, leaves = self._plan_for(args, kwargs)
        return plan.run(self.original, leaves)

    def _plan_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Plan, list[Any]]:
        modes, autocast = tuple(each.training for each in self.original.modules()), autocast_state()
        wrong: ExecutionError | None = None
        for plan in self._plans:
            try:
                if plan.modes != modes:
                    raise ExecutionError(_modes_differ(self.original, plan.modes), "other-mode")
                if plan.autocast != autocast:
                    raise ExecutionError(
                        f"autocast is {_told(autocast)}, but was {_told(plan.autocast)} when the step was captured: "
                        "call rematerialize(...) in the same torch.autocast block that the training uses",
                        "other-autocast",
                    )
                return plan, plan.sample.leaves(args, kwargs)
            except ExecutionError as error:
                wrong = wrong or error
        assert wrong is not None
        if self._again is None:
            raise wrong
        made = self._again(self.original, args, kwargs)
        self._plans.append(made)
        return made, made.sample.leaves(args, kwargs)

    # -- delegation to the original --------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        """Training flag of the original, even if set without ``train()``."""
        return self.original.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "original" in self.__dict__:  # nn.Module sets the flag before `original` exists
            self.original.training = mode

    def train(self, mode: bool = True) -> Rematerialized:
        """Set the mode. Training: steps follow the schedule. Evaluation: calls delegate to the original."""
        self.original.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Rematerialized:
        self.original._apply(fn, recurse)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the original's state."""
        return self.original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the original's state."""
        return self.original.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.original._load_from_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "original" not in self.__dict__:
                raise
            return getattr(self.__dict__["original"], name)

    def __copy__(self) -> Rematerialized:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Rematerialized:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            made.__dict__[name] = value if name == "_again" else copy.deepcopy(value, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ExecutionError(
            "a rematerialized module cannot be pickled: save its state_dict() and its schedule (save_schedule), or the "
            "original module",
            "pickled",
        )

    def extra_repr(self) -> str:
        """Return the first line of the report."""
        return str(self.report).splitlines()[0]


class RematerializedSequence(Rematerialized):
    """Rematerialized module with a length and items, such as ``nn.Sequential``."""

    def __len__(self) -> int:
        return len(cast(Sized, self.original))

    def __getitem__(self, position: Any) -> Any:
        return self.original[position]

    def __iter__(self) -> Iterator[Any]:
        return iter(cast(Iterable[Any], self.original))


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


def _told(state: Autocast) -> str:
    return " and ".join(f"on for {kind} ({dtype})" for kind, dtype in state) or "off"


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _words(tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor):
        return f"a {type(tensor).__name__}"
    return f"of shape {tuple(tensor.shape)} and {tensor.dtype} on {tensor.device}"


def _modes_differ(module: nn.Module, modes: tuple[bool, ...]) -> str:
    present = list(module.named_modules())
    if len(present) != len(modes):
        return "the module has other submodules than when the step was captured: call rematerialize(...) again"
    name, each = next((n, m) for (n, m), mode in zip(present, modes, strict=True) if m.training != mode)
    words = ("training", "evaluation") if each.training else ("evaluation", "training")
    return f"submodule {name!r} is in {words[0]} mode, but was in {words[1]} mode when the step was captured"
