"""Optimizers over fake parameters, by name, by factory, or like an existing one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import optim

from remat.errors import ProblemError
from remat.runtime.text import nearest

#: Name, class, factory of parameters, or optimizer of the module; None for none.
OptimizerLike: TypeAlias = str | Callable[[Iterable[torch.Tensor]], optim.Optimizer] | optim.Optimizer | None

#: Optimizers of torch by lower-case name; LBFGS calls the model itself, SparseAdam needs sparse gradients.
NAMES: Mapping[str, Callable[..., optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer)
    if name not in {"Optimizer", "LBFGS", "SparseAdam"}
} | {"momentum": partial(optim.SGD, momentum=0.9), "sgd": partial(optim.SGD, lr=0.01)}


def optimizer_name(given: OptimizerLike) -> str:
    """Return the name of an optimizer for reports."""
    if given is None or isinstance(given, str):
        return given or "none"
    kind = given if isinstance(given, type) else type(given)
    return kind.__name__ if issubclass(kind, optim.Optimizer) else getattr(given, "__name__", kind.__name__)


def optimizer_of(
    given: OptimizerLike, names: Mapping[int, str], fakes: Mapping[str, torch.Tensor]
) -> optim.Optimizer | None:
    """Return an optimizer over fake parameters.

    Parameters
    ----------
    given : str, callable, Optimizer or None
        Lower-case name of a class of ``torch.optim`` with its defaults, ``"momentum"`` (SGD), ``"none"``; a function of
        the trained parameters; or an optimizer of the module, of which the groups and settings apply.
    names : mapping of int to str
        Names of the module's parameters by their ``id``.
    fakes : mapping of str to Tensor
        Fake parameters by name.

    Raises
    ------
    ProblemError
        If the name is unknown, the factory returns something else, or the optimizer has tensors of another module.
    """
    if given is None or given == "none":
        return None
    if isinstance(given, optim.Optimizer):
        return _like(given, names, fakes)
    if isinstance(given, str):
        if given.lower() not in NAMES:
            or_function = "; a function of the parameters that returns one also works"
            raise ProblemError(
                f"torch.optim has no optimizer {given!r}{nearest(given.lower(), NAMES) or or_function}",
                "optimizer",
            )
        given = NAMES[given.lower()]
    if not callable(given):
        raise ProblemError(
            f"an optimizer is a name, a function or an optimizer, not a {type(given).__name__}", "optimizer"
        )
    made = given([fake for fake in fakes.values() if fake.requires_grad])
    if not isinstance(made, optim.Optimizer):
        raise ProblemError(
            f"the function of the optimizer returns a {type(made).__name__}, not an optimizer", "optimizer"
        )
    return made


def _like(given: optim.Optimizer, names: Mapping[int, str], fakes: Mapping[str, torch.Tensor]) -> optim.Optimizer:
    """Return a fresh optimizer with the class, groups and settings of `given`."""
    groups: list[dict[str, Any]] = []
    for group in given.param_groups:
        if any(id(parameter) not in names for parameter in group["params"]):
            raise ProblemError("the optimizer has parameters that the module does not have", "optimizer")
        groups.append({**group, "params": [fakes[names[id(parameter)]] for parameter in group["params"]]})
    made = object.__new__(type(given))
    made.__dict__.update(given.__dict__)  # its constructor may not take what it stores
    made.__dict__.pop("step", None)  # schedulers and `offload_optimizer` put one there that updates `given`
    made.state, made.param_groups = defaultdict(dict), groups
    return made
