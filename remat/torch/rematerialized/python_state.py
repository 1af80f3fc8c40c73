"""Check of forward for side effects in Python, which a captured step does not repeat."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from remat.errors import ExecutionError
from remat.torch.capture.explaining import quiet_torch
from remat.torch.capture.fakes import FakeWorld
from remat.torch.modes import kept_attributes, same_items
from remat.torch.rematerialized.arguments import same_number_or_text

#: Modules whose own attributes forward may change without effect.
_KNOWN = "torch.nn."
#: Prefix of an LSTM's lists of its weights.
_WEIGHTS = "_flat_weight"


def check_python_state(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Run forward once or more on fake tensors and check its side effects; restore all state.

    Return attributes that forward sets and never reads, such as the last attention weights; steps do not set them.
    Raise ExecutionError if forward draws random numbers of Python or NumPy, or reads an attribute that it changes: a
    step would draw no new numbers and always find the old value.
    """
    name = type(module).__name__
    world = FakeWorld.of(module, args, kwargs)
    state = random.getstate(), _numpy_state()
    changed: dict[_Place, Any] = {}
    try:
        with quiet_torch(), torch.enable_grad():
            with kept_attributes(module):
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
        return ()
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])  # noqa: NPY002 (the module's generator)
        torch.clear_autocast_cache()
    return tuple(f"{path}.{attribute}".lstrip(".") for path, attribute in changed)


#: Path of a submodule and name of its attribute.
_Place = tuple[str, str]


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
