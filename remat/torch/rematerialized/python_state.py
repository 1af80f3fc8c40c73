"""State of modules in Python: side effects of forward, which a step does not repeat, and attributes that it reads."""

from __future__ import annotations

import copy
import random
import types
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from remat.errors import ExecutionError
from remat.runtime.text import clipped
from remat.torch.capture.explaining import quiet_torch
from remat.torch.capture.fakes import FakeWorld
from remat.torch.modes import kept_attributes, same_items
from remat.torch.rematerialized.arguments import same_number_or_text

#: Modules whose own attributes forward may change without effect.
_KNOWN = "torch.nn."
#: Prefix of an LSTM's lists of its weights.
_WEIGHTS = "_flat_weight"


#: Path of a submodule and name of its attribute.
_Place = tuple[str, str]


class Attributes(NamedTuple):
    """Attributes that forward uses.

    Attributes
    ----------
    unset : tuple of str
        Those that it sets and never reads, such as the last attention weights; steps do not set them.
    read : set
        Path of the submodule and name of each that it reads.
    """

    unset: tuple[str, ...] = ()
    read: Set[_Place] = frozenset()


def check_python_state(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Attributes:
    """Run forward once or more on fake tensors, check its side effects and return its attributes; restore all state.

    Raise ExecutionError if forward draws random numbers of Python or NumPy, or reads an attribute that it changes: a
    step would draw no new numbers and always find the old value.
    """
    name = type(module).__name__
    world = FakeWorld.of(module, args, kwargs, distributed=True)
    state = random.getstate(), _numpy_state()
    changed: dict[_Place, Any] = {}
    try:
        with quiet_torch(), torch.enable_grad():
            with kept_attributes(module), _reads(module) as read:
                changed, once = _two_runs(world)
            if random.getstate() != state[0] or not all(map(np.array_equal, _numpy_state(), state[1])):
                raise ExecutionError(
                    f"module {name!r} draws random numbers of Python or NumPy in forward, which a captured step would "
                    "not draw again; use torch.rand",
                    "python-random",
                )
            if once:
                _first_run(world, changed)
            if changed:
                _check_unread(world, changed)
    except ExecutionError:
        raise
    except Exception:  # capture reports errors of the module
        return Attributes()
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])  # noqa: NPY002 (the module's generator)
        torch.clear_autocast_cache()
    return Attributes(tuple(f"{path}.{name}".lstrip(".") for path, name in changed), read - changed.keys())


@contextmanager
def _reads(module: nn.Module) -> Iterator[set[_Place]]:
    """Collect the attributes of a module and its submodules that are read in the block."""
    paths = {id(part): path for path, part in module.named_modules()}
    found: set[_Place] = set()

    def reading(part: nn.Module, name: str) -> Any:
        if id(part) in paths:
            found.add((paths[id(part)], name))
        return object.__getattribute__(part, name)

    with patch.object(nn.Module, "__getattribute__", reading, create=True):
        yield found
    internal = nn.Module().__dict__.keys() | {"__dict__"}
    found -= {place for place in found if place[1] in internal}


#: Values of attributes that a step depends on. Others may be copied with the module, or have no equality.
_COMPARED = bool | int | float | complex | str | bytes | None | torch.dtype | Enum | types.FunctionType | type
#: Collections of hooks that a captured step contains.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True)
class PythonState:
    """Attributes that forward read, and the hooks of submodules, when a step was captured.

    Attributes
    ----------
    attributes : tuple of (int, str, value)
        Number of the submodule in ``modules()``, name, and value.
    hooks : tuple
        Number of each submodule with hooks, and their handles.
    """

    attributes: tuple[tuple[int, str, Any], ...]
    hooks: tuple[Any, ...]

    @classmethod
    def of(cls, module: nn.Module, read: Set[_Place]) -> PythonState:
        """Return the present state of a module; `read`: path and name of each attribute that it reads."""
        found = []
        for number, (path, part) in enumerate(module.named_modules()):
            found += [
                (number, name, copy.copy(value)) for name, value in part.__dict__.items()
                if (path, name) in read and _compared(value)
            ]  # fmt: skip
        return cls(tuple(found), _hooks_of(list(module.modules())))

    def difference(self, module: nn.Module) -> str:
        """Return the first difference of a module with as many submodules from this state; empty if there is none."""
        parts = list(module.modules())
        for number, name, then in self.attributes:
            now = parts[number].__dict__.get(name, _NOTHING)
            if now is not then and (type(now) is not type(then) or now != then):
                path = next(path for path, part in module.named_modules() if part is parts[number])
                return (
                    f"attribute {f'{path}.{name}'.lstrip('.')!r} is {_told(now)}, but was {_told(then)} when the step "
                    "was captured: register it as a buffer if it changes often"
                )
        if _hooks_of(parts) != self.hooks:
            return "a submodule has other hooks than when the step was captured: register them before"
        return ""


def _compared(value: Any) -> bool:
    if isinstance(value, tuple | list | set):
        return all(map(_compared, value))
    if isinstance(value, dict):
        return all(_compared(each) for pair in value.items() for each in pair)
    return isinstance(value, _COMPARED)


def _hooks_of(parts: list[nn.Module]) -> tuple[Any, ...]:
    """Return the handles of all hooks but the first module's, which run around its step."""
    return tuple(
        (number, *(tuple(part.__dict__[name]) for name in _HOOKS))
        for number, part in enumerate(parts[1:], 1)
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
    )


def _told(value: Any) -> str:
    return "missing" if value is _NOTHING else clipped(repr(value), 40)


class _Unread:
    """Placeholder for a value that must not be read."""

    def __bool__(self) -> bool:
        raise TypeError

    __eq__ = __ne__ = __iter__ = __len__ = __bool__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def _two_runs(world: FakeWorld) -> tuple[dict[_Place, Any], bool]:
    """Return attributes that each run changes, with old values, and whether only the first run changes others."""
    with world.mode, world.swapped():
        first = _changed_by_a_run(world)
        second = _changed_by_a_run(world) if first else {}
    lasting = {
        place: old for place, (old, new) in first.items() if place in second or isinstance(new, torch.Tensor | list)
    }
    return lasting, len(lasting) < len(first)


def _first_run(world: FakeWorld, lasting: Mapping[_Place, Any]) -> None:
    """Run a module's first-call initialisation now, so that steps are like all later calls."""
    parts = dict(world.module.named_modules())
    with world.mode, world.swapped():
        world.module(*world.args, **world.kwargs)
    for (path, name), old in lasting.items():
        if old is _NOTHING:
            parts[path].__dict__.pop(name, None)
        else:
            parts[path].__dict__[name] = old


#: Placeholder for a missing attribute.
_NOTHING = object()


def _changed_by_a_run(world: FakeWorld) -> dict[_Place, tuple[Any, Any]]:
    """Run forward; return the attributes that it changes, with their values before and after."""
    parts = dict(world.module.named_modules())
    before = {path: dict(part.__dict__) for path, part in parts.items()}
    items = {
        id(each): each.copy() for own in before.values() for each in own.values() if type(each) in (list, dict, set)
    }
    world.module(*world.args, **world.kwargs)
    found: dict[_Place, tuple[Any, Any]] = {}
    for path, part in parts.items():
        for name in part.__dict__.keys() | before[path].keys():
            old, new = before[path].get(name, _NOTHING), part.__dict__.get(name, _NOTHING)
            if old is new and (id(old) not in items or same_items(old, items[id(old)])):
                continue
            if name == "_buffers":
                _refuse_assigned(world, path, items[id(old)], part._buffers)
            elif not (
                type(part).__module__.startswith(_KNOWN) or name.startswith(_WEIGHTS) or same_number_or_text(old, new)
            ):
                found[path, name] = old, new
    return found


def _refuse_assigned(world: FakeWorld, path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    name = next(each for each in new if new[each] is not old.get(each))
    raise ExecutionError(
        f"module {type(world.module).__name__!r} puts another tensor in the place of its buffer "
        f"{f'{path}.{name}'.lstrip('.')!r} in forward, which a captured step would not; change it in place (copy_)",
        "assigned-buffer",
    )


def _check_unread(world: FakeWorld, changed: Mapping[_Place, Any]) -> None:
    """Run forward again without the attributes that it changes; if that fails, it reads them: refuse the module."""
    parts = dict(world.module.named_modules())
    try:
        with kept_attributes(world.module), world.mode, world.swapped():
            for path, name in changed:
                parts[path].__dict__[name] = _Unread()
            world.module(*world.args, **world.kwargs)
    except Exception:
        path, name = next(iter(changed))
        raise ExecutionError(
            f"module {type(world.module).__name__!r} changes its attribute {f'{path}.{name}'.lstrip('.')!r} in forward "
            "and reads it there; a captured step would always find the old value: make it a buffer (register_buffer) "
            "and change it in place",
            "changed-attribute",
        ) from None


def _numpy_state() -> Any:
    return np.random.get_state()  # noqa: NPY002 (the module's generator)
