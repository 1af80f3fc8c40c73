"""Module for training: an instance of the original's class, whose steps follow a schedule."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn

from remat.errors import ExecutionError
from remat.experiments.frontier import frontier
from remat.experiments.frontier_result import Frontier
from remat.problem import Problem
from remat.schedule import Schedule
from remat.schedule.io import write_schedule
from remat.schedule.traces.layers import LayerTable, layer_table
from remat.solving.method import MethodLike
from remat.torch.captured import Captured
from remat.torch.modes import apart_from_step, hooks_of, no_hooks
from remat.torch.private import C, pytree
from remat.torch.rematerialized.autograd_function import no_transform
from remat.torch.rematerialized.plan import MakesPlans, Plan, modes_of
from remat.torch.rematerialized.planning import Settings, step_problem
from remat.torch.rematerialized.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_log = logging.getLogger("remat.torch")

#: Collections that a rematerialized module shares with its original, so that both always have the same tensors.
_SHARED = (
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip
#: Attributes that are set for the rematerialized module only. accelerate replaces forward, and keeps the one before.
_OWN = ("forward", "_original_forward", "_compiled_call_impl")

#: Budgets of a frontier by default.
SHARES = ("90%", "80%", "70%", "60%", "50%", "40%", "30%")


class _UnlessOriginal:
    """Method that gives way to an attribute of the same name of the original, such as a list ``layers``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        if module is None:
            return self._function
        name, original = self._function.__name__, module.__dict__.get("original")
        return getattr(original, name) if hasattr(original, name) else types.MethodType(self._function, module)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _unless_original(function: _Method) -> _Method:
    return cast("_Method", _UnlessOriginal(function))


class Rematerialized(nn.Module):
    """A module whose training step keeps a memory budget; made by :func:`remat.torch.rematerialize`.

    It is an instance of the original's class, with the same name, methods and signature of ``forward``. Parameters,
    buffers, submodules and all other attributes are those of the original, also if they are set later. Hooks registered
    here run in addition to the original's. In training mode with gradients enabled, a call runs the scheduled forward
    pass and ``backward`` the scheduled backward pass. Otherwise a call delegates to the original.

    If the original has an attribute ``layers``, ``frontier`` or ``plot``, that one applies; ``Rematerialized.layers``
    and the others then take the module as an argument.

    Attributes
    ----------
    original : torch.nn.Module
    report : Report
        Prediction, certificate and verification.
    """

    original: nn.Module
    _plans: list[Plan]
    _planner: MakesPlans | None

    @property
    def report(self) -> Report:
        """Prediction, certificate and verification for the sample.

        Raise ExecutionError if the module has neither a sample nor been called.
        """
        return self._first.report

    @property
    def reports(self) -> list[Report]:
        """Reports of all kinds of calls so far."""
        return [plan.report for plan in self._plans]

    @property
    def captured(self) -> Captured:
        """Captured step of the sample."""
        return self._first.program.split.captured

    @property
    def schedule(self) -> Schedule:
        """Schedule of the sample's step."""
        return self._first.program.split.schedule

    @property
    def _first(self) -> Plan:
        if not self._plans:
            raise ExecutionError("no step is captured yet: the first call in training mode is the sample", "no-step")
        return self._plans[0]

    @_unless_original
    def layers(self, *, depth: int | None = None, collapse: bool = True) -> LayerTable:
        """Return saved and recomputed bytes and extra cost of each layer; ``str`` shows them as a table.

        `depth` and `collapse` as in :func:`remat.schedule.traces.layer_table`.
        """
        return layer_table(self.captured.graph, self.schedule, depth=depth, collapse=collapse)

    @property
    def _problem(self) -> Problem:
        """Problem of the sample's step: its graph, budget and rules."""
        counted = "included" if self.report.constants_counted else "excluded"
        machine = self.report.certificate.rules.machine
        return step_problem(self.captured, Settings(self.report.budget, constants=counted, machine=machine))

    @_unless_original
    def frontier(
        self,
        budgets: str | int | float | Sequence[str | int | float] = SHARES,
        *,
        time_limit: float = 60.0,
        method: MethodLike = "auto",
    ) -> Frontier:
        """Solve other budgets of the sample's step; ``str`` shows them in one line: ``60 % +2.5 %, 40 % +11 %``.

        Parameters
        ----------
        budgets : str, int, float, or sequence of these
            As for :func:`~remat.torch.rematerialize`. Those below the structural bound are left out.
        time_limit : float
            Seconds for all budgets together.
        method : str, class or object
            As for :func:`remat.solve`.
        """
        problem = self._problem
        budgets = [budgets] if isinstance(budgets, str | int | float) else budgets
        asked = [each for each in budgets if not dataclasses.replace(problem, budget=each).hopeless]
        return frontier(problem, asked or [problem.reference_peak], [method], stop=time_limit / max(len(asked), 1))

    @_unless_original
    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw memory and retention intervals of the sample's step."""
        return self._problem.plot(self.schedule, ax)

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
        plain = not (self.training and torch.is_grad_enabled()) or torch.compiler.is_exporting()
        if plain or not self._has_gradient(args, kwargs):
            return self.original(*args, **kwargs)
        return self._scheduled(args, kwargs)

    def _has_gradient(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return True if a parameter or an argument requires a gradient; a frozen model has none to compute."""
        return any(each.requires_grad for each in self.original.parameters()) or any(
            isinstance(each, torch.Tensor) and each.requires_grad for each in pytree.tree_leaves((args, dict(kwargs)))
        )

    # torch.compile would partition the copies again, merge them, and draw other numbers for rerun dropout
    @torch.compiler.disable(reason="a rematerialized step runs as it is scheduled (see engine= of rematerialize)")  # type: ignore[untyped-decorator]
    def _scheduled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if C._are_functorch_transforms_active():
            raise no_transform()
        plan, state, leaves = self._plan_for(args, kwargs)
        return plan.run(state, leaves)

    def _plan_for(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Plan, dict[str, torch.Tensor], list[Any]]:
        """Return the step of a call with state and arguments; capture it if there is none.

        A step is dropped if the module is no longer as it was captured: adapters were added, or its type changed.
        """
        original, modes = self.original, modes_of(self.original)
        refused: ExecutionError | None = None
        for plan in list(self._plans):
            try:
                state = plan.state(original, modes)
            except ExecutionError as error:
                if self._planner is None:
                    raise
                expected = error.kind != "execution.python-state"
                _log.log(
                    logging.INFO if expected else logging.WARNING, "%s is captured again: %s", self._get_name(), error
                )
                self._plans.remove(plan)
                continue
            try:
                return plan, state, plan.leaves(original, modes, args, kwargs)
            except ExecutionError as error:
                if refused is None or plan.sample.has_names_of(args, kwargs):
                    refused = error
        if refused is not None and not (self._planner and (self._planner.other_calls or self._has_new(args, kwargs))):
            raise refused
        with apart_from_step():
            plan = cast("MakesPlans", self._planner)(original, args, kwargs)
        if all(each is not plan for each in self._plans):
            self._plans.append(plan)
        modes = modes_of(original)  # the first call may have added submodules
        return plan, plan.state(original, modes), plan.leaves(original, modes, args, kwargs)

    def _has_new(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return True if a call has other arguments than all calls before, such as one that a trainer adds."""
        return not any(plan.sample.has_names_of(args, kwargs) for plan in self._plans)

    # -- delegation to the original --------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        """Training flag of the original, even if set without ``train()``."""
        return self.original.training

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
        if "original" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_own(name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.original, name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            object.__delattr__(self, name)
        else:
            delattr(self.original, name)

    def _is_own(self, name: str) -> bool:
        return name.startswith("__") or name in _OWN or name in self.__dict__

    def __copy__(self) -> Rematerialized:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Rematerialized:
        made = object.__new__(type(self))
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            made.__dict__[name] = copy.deepcopy(value, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ExecutionError(
            "a rematerialized module cannot be pickled: save its state_dict() and its schedule (save_schedule), or the "
            "original module",
            "pickled",
        )

    def extra_repr(self) -> str:
        """Return the first line of the report."""
        return str(self.report).splitlines()[0] if self._plans else "not captured yet"


def rematerialized(original: nn.Module, plans: list[Plan], planner: MakesPlans | None) -> Rematerialized:
    """Return a module with the tensors and the class of `original` that runs steps made before or by `planner`."""
    made = object.__new__(_class_like(original.__class__))
    made.__dict__.update(_attributes(original, plans, planner))
    return made


def convert(module: nn.Module, planner: MakesPlans | None, plans: Sequence[Plan] = ()) -> Rematerialized:
    """Make a module rematerialized in place, for trainers that hold it already; :func:`restore` undoes it.

    Hooks of the module run around its steps, and remain if it is restored. `plans`: steps made before.
    """
    original = object.__new__(type(module))
    attributes = {**_attributes(module, list(plans), planner), **hooks_of(module), "original": original}
    _become(original, type(module), {**module.__dict__, **no_hooks()})
    _become(module, _class_like(module.__class__), attributes)
    return cast("Rematerialized", module)


def add_plans(module: Rematerialized, plans: Sequence[Plan]) -> None:
    """Add steps that were made elsewhere."""
    module._plans.extend(plans)


def restore(module: Rematerialized) -> nn.Module:
    """Undo :func:`convert`: the module has its own class and attributes again.

    Raise ExecutionError if its class was changed later, as by ``fully_shard``.
    """
    if type(module) is not _class_like(module.original.__class__):
        raise ExecutionError(
            f"module {module._get_name()!r} was converted again later (fully_shard), so it cannot be restored: "
            "build the model again",
            "not-restored",
        )
    _become_original(module)
    return cast("nn.Module", module)


@contextmanager
def as_before(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Give modules that :func:`convert` made their own classes and attributes in the block."""
    made = [(each, type(each), each.__dict__) for each in modules if isinstance(each, Rematerialized)]
    for each, *_ in made:
        _become_original(each)
    try:
        yield
    finally:
        for each, kind, own in made:
            _become(each, kind, own)


def _become_original(module: Rematerialized) -> None:
    """Set class and attributes to those of the original, with the hooks that the module has now."""
    _become(module, type(module.original), {**module.original.__dict__, **hooks_of(module)})


def _become(module: nn.Module, kind: type, attributes: Mapping[str, Any]) -> None:
    """Set class and attributes of an object without the setters of either class."""
    object.__setattr__(module, "__dict__", attributes)
    object.__setattr__(module, "__class__", kind)


def _attributes(original: nn.Module, plans: list[Plan], planner: MakesPlans | None) -> dict[str, Any]:
    own = nn.Module().__dict__
    del own["training"]
    own.update({name: original.__dict__[name] for name in _SHARED})
    own.update({"original": original, "_plans": plans, "_planner": planner})
    return own


@functools.cache
def _class_like(kind: type[nn.Module]) -> type[Rematerialized]:
    """Return a subclass of a module's class whose training steps follow a schedule.

    Trainers read the name of the class and the signature of its forward. Calling the class makes a plain module, as its
    ``from_pretrained`` and slices of ``nn.Sequential`` expect.
    """

    @functools.wraps(kind.forward)
    def forward(self: Rematerialized, *args: Any, **kwargs: Any) -> Any:
        return Rematerialized.forward(self, *args, **kwargs)

    def plain(cls: type, *args: Any, **kwargs: Any) -> nn.Module:
        return kind(*args, **kwargs)

    names = {
        "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, "__new__": plain,
        "forward": forward,
    }  # fmt: skip
    return cast(
        "type[Rematerialized]",
        types.new_class(kind.__name__, (Rematerialized, kind), exec_body=lambda space: space.update(names)),
    )
