"""Registry of installed formulations, backends, heuristics and formats, built-in ones included.

A package adds its own by entry points in its ``pyproject.toml``::

    [project.entry-points."remat.backends"]
    my-solver = "my_package.backend:MySolver"

A class is imported when it is looked up by name. A faulty plug-in raises an error that names it and affects nothing
else.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError, distribution, entry_points
from typing import Any, TypeVar

from remat.errors import BackendError, FormatError, RematError

#: Entry-point groups ``remat.<key>``, with the singular for messages.
GROUPS = {
    "formulations": "formulation", "backends": "backend", "heuristics": "heuristic", "methods": "method",
    "allocators": "allocator", "partitioners": "partitioner",
}  # fmt: skip
#: Solvers by the names under which people know them, with the backends that reach them.
SOLVERS = {
    **{name: f"pyomo:{name}" for name in ("gurobi", "cplex", "scip", "cbc", "glpk", "xpress", "mosek", "copt")},
    **{name: f"minizinc:{name}" for name in ("gecode", "chuffed", "coin-bc")},
    **dict.fromkeys(("ortools", "or-tools", "cpsat", "cp_sat", "sat"), "cp-sat"),
}
#: Attributes that a class of each group must have; "or" separates alternatives.
PARTS = {
    "formulations": ("options_type", "build", "encode", "decode"),
    "backends": ("availability", "variants", "solve"),
    "heuristics": ("options_type", "run"),
    "methods": ("options_type", "run or search"),
    "allocators": ("options_type", "allocate"),
    "partitioners": ("options_type", "partition"),
}

T = TypeVar("T")


def _entries(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group in all packages."""
    return _cached(entry_points).get(group, ())


def _own_entries(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group in this package; empty if its metadata is not installed."""
    return _cached(_own_entry_points).get(group, ())


def _own_entry_points() -> EntryPoints:
    try:
        return distribution("remat").entry_points
    except PackageNotFoundError:
        return EntryPoints()


def _cached(reader: Callable[[], EntryPoints]) -> dict[str, tuple[EntryPoint, ...]]:
    """Return entry points by group, cached until a folder of packages changes.

    Reading those of a hundred packages takes 15 ms, those of one package 2 ms, and a solve needs them dozens of times.
    """
    return _read(reader, tuple((path, _changed(path)) for path in sys.path))


@lru_cache(maxsize=8)
def _read(reader: Callable[[], EntryPoints], _: object) -> dict[str, tuple[EntryPoint, ...]]:
    found = reader()
    return {group: tuple(found.select(group=group)) for group in found.groups if group.startswith("remat.")}


def _changed(path: str) -> int:
    try:
        return os.stat(path or os.curdir).st_mtime_ns  # noqa: PTH116  (a Path for each of them takes longer)
    except OSError:
        return 0


class Registered(Mapping[str, type[Any]]):
    """Classes by name, each imported on lookup, so that a broken plug-in affects nothing else.

    Other packages are read only for a name that this package lacks, and for the list of all names.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self._own = {entry.name: entry for entry in _own_entries(f"remat.{group}")}

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        # sorted so that a class of this package wins over one of the same name from elsewhere
        for entry in sorted(_entries(f"remat.{self.group}"), key=lambda e: (e.name, not _is_ours(e), e.value)):
            found.setdefault(entry.name, entry)
        return found

    def __getitem__(self, name: str) -> type[Any]:
        entry = self._own.get(name) or self._entries[name]
        found = load_entry(entry, f"remat.{self.group}", type)
        parts = PARTS.get(self.group, ())
        lacking = [part for part in parts if not any(hasattr(found, name) for name in part.split(" or "))]
        if lacking:
            label = _label(entry, f"remat.{self.group}")
            raise _error(
                f"remat.{self.group}", f"{label} has no {' and no '.join(lacking)}", "incomplete-plug-in", name
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:  # without importing it
        return name in self._own or name in self._entries

    def usable(self) -> dict[str, type[Any]]:
        """Return the classes that can be imported, sorted by name; ``remat backends`` reports faults of the others."""
        found = {}
        for name in sorted(self._entries):
            try:
                found[name] = self[name]
            except RematError:
                continue
        return found

    def unknown(self, name: str) -> RematError:
        """Return the error for an unknown name; it lists the registered names, nearest first."""
        near = difflib.get_close_matches(name.lower(), self._entries, n=len(self._entries) or 1, cutoff=0.6)
        names = [*near, *(other for other in self._entries if other not in near)]
        known = f"known are {', '.join(names)}" if names else "none is installed"
        known = self._other_kind(name) or known
        return _error(
            f"remat.{self.group}", f"there is no {GROUPS[self.group]} {name!r}; {known}", "unknown-name", name
        )

    def _other_kind(self, name: str) -> str:
        """Return what an unknown backend is instead: a solver of another name, or a method; else ""."""
        if self.group != "backends":
            return ""
        if solver := SOLVERS.get(name.lower()):
            return f"write {solver}"
        kinds = [GROUPS[group] for group in ("formulations", "heuristics", "methods") if name in Registered(group)]
        return f"that is a {kinds[0]}: give it as the method" if kinds else ""


def load_entry(entry: EntryPoint, group: str, kind: type[T]) -> T:
    """Load an entry point of `group`, which must name a `kind`.

    Raise RematError naming the entry, if the import fails in any way (an exit included) or yields anything else; a
    BackendError for backends, a FormatError for formats.
    """
    found = attempt(entry.load, f"{_label(entry, group)} cannot be loaded", group)
    if not isinstance(found, kind):
        wanted = "class" if kind is type else kind.__name__
        raise _error(group, f"{_label(entry, group)} is not a {wanted}", "wrong-kind")
    return found


def attempt(call: Callable[[], T], fault: str, group: str = "") -> T:
    """Call into a plug-in and return the result.

    Raise RematError for any other exception or exit, with a message that begins with `fault`; of the class that suits
    `group`.
    """
    try:
        return call()
    except RematError:
        raise
    except (Exception, SystemExit) as error:
        raise _error(group, f"{fault}: {type(error).__name__}: {error}", "plug-in-fails") from error


def import_class(text: str, group: str) -> type[Any]:
    """Import the class that ``module:Class`` names, registered or not; this runs the module.

    Pass only text that the user typed: a configuration that came with a graph must not import anything
    (:meth:`remat.config.Config.from_file`).

    Raise RematError if the text is not a module and a class, the import fails in any way (an exit included), or the
    object is not a class; a BackendError for backends.

    Parameters
    ----------
    group : {"formulations", "backends", "heuristics", "methods", "allocators", "partitioners"}
        Group of the class, for errors.

    Examples
    --------
    >>> import_class("remat.heuristics.greedy:Greedy", "methods").__name__
    'Greedy'
    """
    module, _, name = text.partition(":")
    kind, group_name = GROUPS[group], f"remat.{group}"
    if name in Registered("backends") and any(module in Registered(each) for each in ("formulations", group)):
        raise _error(group_name, f"{kind} {text!r}: write {module}/{name}", "no-class-name", text)
    if not all(part.isidentifier() for path in (module, name) for part in path.split(".")):
        raise _error(
            group_name, f"{kind} {text!r} is neither a name that is registered nor MODULE:CLASS", "no-class-name", text
        )
    found = attempt(EntryPoint(text, text, group_name).load, f"{kind} {text!r} cannot be loaded", group_name)
    if not isinstance(found, type):
        raise _error(group_name, f"{kind} {text!r} is not a class", "wrong-kind", text)
    return found


def own(group: str, built_in: Mapping[str, str]) -> list[EntryPoint]:
    """Return entry points of this package by name and ``module:attribute``; its metadata need not be installed."""
    return [EntryPoint(name, value, group) for name, value in built_in.items()]


def others(group: str, names: Iterable[str]) -> list[EntryPoint]:
    """Return entry points of `group` other than `names`, sorted by name; takes some milliseconds."""
    return sorted((entry for entry in _entries(group) if entry.name not in names), key=lambda e: e.name)


def _label(entry: EntryPoint, group: str) -> str:
    kind = group.removeprefix("remat.").replace("_", " ").removesuffix("s")
    return f"{kind} {entry.name!r} ({entry.value})"


def _error(group: str, message: str, kind: str, culprit: str = "") -> RematError:
    kinds = {"remat.backends": BackendError, "remat.graph_formats": FormatError, "remat.schedule_formats": FormatError}
    return kinds.get(group, RematError)(" ".join(message.split()), kind, culprit)


def _is_ours(entry: EntryPoint) -> bool:
    return entry.value.startswith("remat.")


def formulations() -> Registered:
    """Return formulations by name."""
    return Registered("formulations")


def backends() -> Registered:
    """Return backends by name."""
    return Registered("backends")


def heuristics() -> Registered:
    """Return heuristics by name."""
    return Registered("heuristics")


def methods() -> Registered:
    """Return methods by name that are neither formulations nor heuristics, such as ``auto``."""
    return Registered("methods")


def allocators() -> Registered:
    """Return allocators of addresses by name."""
    return Registered("allocators")


def partitioners() -> Registered:
    """Return partitioners of graphs into hierarchies of groups by name."""
    return Registered("partitioners")


def load(group: str, name: str) -> type[Any]:
    """Return the class registered under `name`.

    Parameters
    ----------
    group : {"formulations", "backends", "heuristics", "methods", "allocators", "partitioners"}

    Raises
    ------
    RematError
        If there is none (the message lists the known names) or it cannot be imported; a BackendError for backends.

    Examples
    --------
    >>> load("backends", "highs").__name__
    'Highs'
    >>> load("backends", "higs")
    Traceback (most recent call last):
    remat.errors.BackendError: there is no backend 'higs'; known are highs, ...
    """
    if group not in GROUPS:
        raise RematError(
            f"there is no group {group!r} of plug-ins; known are {', '.join(GROUPS)}", "unknown-group", group
        )
    registered = Registered(group)
    if name not in registered:
        raise registered.unknown(name)
    return registered[name]


def names_class(text: str, group: str) -> bool:
    """Return True if a word is ``module:Class`` (:func:`import_class`) rather than a backend with its variant.

    Examples
    --------
    >>> names_class("checkmate", "methods"), names_class("minizinc:org.gecode.gecode", "backends")
    (False, False)
    >>> names_class("my_package.solver:MySolver", "backends")
    True
    """
    return ":" in text and text.partition(":")[0] not in Registered(group)


def make(group: str, name: str, *arguments: Any) -> Any:
    """Construct the class registered under `name` with `arguments`.

    Raises
    ------
    RematError
        As :func:`load`; also if the constructor fails or takes other arguments.
    """
    kind = load(group, name)
    fault = f"{GROUPS[group]} {name!r} ({kind.__module__}:{kind.__qualname__}) cannot be made"
    return attempt(lambda: kind(*arguments), fault, f"remat.{group}")


def make_backend(name: str) -> Any:
    """Construct a backend by its full name, ``name`` or ``name:variant``.

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
    return make("backends", family, variant)
