"""State of modules in Python: side effects of forward, which a step does not repeat, and attributes that it reads."""

from __future__ import annotations

import copy
import random
import types
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
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
        Path of the submodule and name of each that it reads. Of plain objects in attributes, such as a configuration,
        also the names that it reads there: ``config.dropout``.
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
    """Collect the attributes of a module and its submodules, and of plain objects in them, that the block reads."""
    paths = {id(part): path for path, part in module.named_modules()}
    objects = _objects_in(module)
    found: set[_Place] = set()

    def reading(part: nn.Module, name: str) -> Any:
        if id(part) in paths:
            found.add((paths[id(part)], name))
        return object.__getattribute__(part, name)

    with ExitStack() as stack:
        stack.enter_context(patch.object(nn.Module, "__getattribute__", reading, create=True))
        within = [stack.enter_context(_reads_of(kind)) for kind in {type(each) for each, _ in objects.values()}]
        yield found
    internal = nn.Module().__dict__.keys() | {"__dict__"}
    found -= {place for place in found if place[1] in internal}
    for number, name in set().union(*within):
        for path, place in objects[number][1] if number in objects else ():
            if (path, place.partition(".")[0]) in found:
                found.add((path, f"{place}.{name}"))


@contextmanager
def _reads_of(kind: type) -> Iterator[set[tuple[int, str]]]:
    """Collect the attributes of objects of a class that are read in the block: ``id`` and name."""
    found: set[tuple[int, str]] = set()
    original: Any = kind.__getattribute__

    def reading(value: Any, name: str) -> Any:
        own = getattr(kind, name, None)
        if not name.startswith("__") and not callable(own) and not isinstance(own, property):  # which reads others
            found.add((id(value), name))
        return original(value, name)

    with patch.object(kind, "__getattribute__", reading, create=True):
        yield found


#: Flag of classes that are made at run time, whose methods can be replaced (``Py_TPFLAGS_HEAPTYPE``).
_HEAP_TYPE = 1 << 9
#: Depth of objects in objects that are compared, such as ``config.text_config``.
_DEPTH = 2


def _objects_in(module: nn.Module) -> dict[int, tuple[Any, list[_Place]]]:
    """Return plain objects that attributes of submodules hold, by ``id``, with path and name of each place."""
    found: dict[int, tuple[Any, list[_Place]]] = {}
    for path, part in module.named_modules():
        waiting = [(name, value, 1) for name, value in part.__dict__.items()]
        while waiting:
            name, value, depth = waiting.pop()
            if _is_plain_object(value):
                found.setdefault(id(value), (value, []))[1].append((path, name))
                if depth < _DEPTH:
                    waiting += [(f"{name}.{key}", each, depth + 1) for key, each in value.__dict__.items()]
    return found


def _is_plain_object(value: Any) -> bool:
    """Return True for an instance of a class written in Python, outside of PyTorch, whose reads can be observed."""
    kind = type(value)
    is_python = bool(kind.__flags__ & _HEAP_TYPE) and hasattr(value, "__dict__")
    other = isinstance(value, nn.Module | torch.Tensor | type | Enum) or kind.__module__.partition(".")[0] == "torch"
    return is_python and not other


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
    objects : tuple
        For each plain object: the places that hold it, as number of the submodule and names, and names and values of
        its attributes.
    """

    attributes: tuple[tuple[int, str, Any], ...]
    hooks: tuple[Any, ...]
    objects: tuple[tuple[list[tuple[int, list[str]]], list[tuple[str, Any]]], ...] = ()

    @classmethod
    def of(cls, module: nn.Module, read: Set[_Place]) -> PythonState:
        """Return the present state of a module; `read`: path and name of each attribute that it reads."""
        found = []
        inside: dict[int, tuple[dict[tuple[int, str], None], dict[str, Any]]] = {}
        parts = list(module.modules())
        numbers = {path: number for number, (path, _) in enumerate(module.named_modules())}
        for path, name in sorted(place for place in read if "." in place[1]):
            place, _, last = name.rpartition(".")
            number = numbers[path]
            owner = _held(parts, number, place.split("."))
            value = getattr(owner, last, _NOTHING)
            if value is not _NOTHING and _compared(value):
                places, values = inside.setdefault(id(owner), ({}, {}))
                places[number, place] = None
                values[last] = copy.copy(value)
        objects = [([(k, place.split(".")) for k, place in held], list(of.items())) for held, of in inside.values()]
        for number, (path, part) in enumerate(module.named_modules()):
            found += [
                (number, name, copy.copy(value)) for name, value in part.__dict__.items()
                if (path, name) in read and _compared(value)
            ]  # fmt: skip
        return cls(tuple(found), _hooks_of(parts), tuple(objects))

    def difference(self, module: nn.Module) -> str:
        """Return the first difference of a module with as many submodules from this state; empty if there is none."""
        parts = list(module.modules())
        for number, name, then in self.attributes:
            now = parts[number].__dict__.get(name, _NOTHING)
            if _differs(now, then):
                return _difference(module, number, name, now, then)
        for places, values in self.objects:
            number, names = places[0]
            owner = _held(parts, number, names)
            for other, path in places[1:]:
                if (now := _held(parts, other, path)) is not owner:
                    return _difference(module, other, ".".join(path), now, owner)
            for name, then in values:
                now = getattr(owner, name, _NOTHING)
                if _differs(now, then):
                    return _difference(module, number, ".".join([*names, name]), now, then)
        if _hooks_of(parts) != self.hooks:
            return "a submodule has other hooks than when the step was captured: register them before"
        return ""


def _differs(now: Any, then: Any) -> bool:
    return now is not then and (type(now) is not type(then) or now != then)


def _difference(module: nn.Module, number: int, name: str, now: Any, then: Any) -> str:
    path = next(path for place, (path, _) in enumerate(module.named_modules()) if place == number)
    return (
        f"attribute {f'{path}.{name}'.lstrip('.')!r} is {_told(now)}, but was {_told(then)} when the step was "
        "captured: register it as a buffer if it changes often"
    )


def _held(parts: list[nn.Module], number: int, names: list[str]) -> Any:
    """Return the object that an attribute of a submodule, or an object in it, holds."""
    value: Any = parts[number]
    for name in names:
        value = value.__dict__.get(name, _NOTHING) if hasattr(value, "__dict__") else _NOTHING
    return value


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
