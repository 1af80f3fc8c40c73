"""The formulations, backends and heuristics that are installed; the built-in ones come through the same door.

A package adds its own by entry points in its ``pyproject.toml``::

    [project.entry-points."remat.backends"]
    my-solver = "my_package.backend:MySolver"
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from remat.errors import BackendError, RematError

#: What is registered in the entry-point group ``remat.<key>``, in the singular.
GROUPS = {"formulations": "formulation", "backends": "backend", "heuristics": "heuristic"}


class Registered(Mapping[str, type[Any]]):
    """Classes by name; one is imported only when it is looked up, so that a broken plug-in breaks nothing else."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._entries: dict[str, EntryPoint] = {}
        # sorted so that a class of this package wins over one of the same name from elsewhere
        for entry in sorted(entry_points(group=f"remat.{group}"), key=lambda e: (e.name, not _is_ours(e), e.value)):
            self._entries.setdefault(entry.name, entry)

    def __getitem__(self, name: str) -> type[Any]:
        entry = self._entries[name]
        try:
            found = entry.load()
        except Exception as error:
            raise self._error(f"{self._label(entry)} cannot be imported: {type(error).__name__}: {error}") from error
        if not isinstance(found, type):
            raise self._error(f"{self._label(entry)} is not a class")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:  # without importing it
        return name in self._entries

    def unknown(self, name: str) -> RematError:
        """The error for a name that is not registered; the names that are come nearest first."""
        near = difflib.get_close_matches(name, self._entries, n=len(self._entries) or 1, cutoff=0.6)
        names = [*near, *(other for other in self._entries if other not in near)]
        known = f"known are {', '.join(names)}" if names else "none is installed"
        return self._error(f"there is no {GROUPS[self.group]} {name!r}; {known}")

    def _label(self, entry: EntryPoint) -> str:
        return f"{GROUPS[self.group]} {entry.name!r} ({entry.value})"

    def _error(self, message: str) -> RematError:
        line = " ".join(message.split())
        return BackendError(line) if self.group == "backends" else RematError(line)


def _is_ours(entry: EntryPoint) -> bool:
    return entry.value.startswith("remat.")


def formulations() -> Mapping[str, type[Any]]:
    """Formulations by name."""
    return Registered("formulations")


def backends() -> Mapping[str, type[Any]]:
    """Backends by name."""
    return Registered("backends")


def heuristics() -> Mapping[str, type[Any]]:
    """Heuristics by name."""
    return Registered("heuristics")


def load(group: str, name: str) -> type[Any]:
    """The class registered under `name`.

    Parameters
    ----------
    group : {"formulations", "backends", "heuristics"}

    Raises
    ------
    RematError
        If there is none, with the names there are, or if it cannot be imported; a BackendError for backends.

    Examples
    --------
    >>> load("backends", "highs").__name__
    'Highs'
    >>> load("backends", "higs")
    Traceback (most recent call last):
    remat.errors.BackendError: there is no backend 'higs'; known are highs, ...
    """
    if group not in GROUPS:
        raise RematError(f"there is no group {group!r} of plug-ins; known are {', '.join(GROUPS)}")
    registered = Registered(group)
    if name not in registered:
        raise registered.unknown(name)
    return registered[name]


def make_backend(name: str) -> Any:
    """A backend by its full name, ``name`` or ``name:variant``.

    Raises
    ------
    BackendError
        If there is none of that name, or the family has no such variant.

    Examples
    --------
    >>> make_backend("highs").full_name
    'highs'
    """
    family, _, variant = name.partition(":")
    return load("backends", family)(variant)
