"""``remat backends``: available backends, methods and formats, with reasons for unavailable ones."""

from __future__ import annotations

import inspect
import re
from typing import Any

from remat.cli.common import print_json, print_table
from remat.cli.options import Json
from remat.errors import RematError


def command(as_json: Json = False) -> None:
    """List backends with their state, formulations, heuristics and other methods, and file formats.

    Examples
    --------
    remat backends
    """
    facts = installed()
    if as_json:
        print_json(facts)
        return
    for group, members in facts.items():
        print(f"{group}:")
        if members:
            print_table([(name, *map(_plain, about.values())) for name, about in members.items()], indent="  ")
        else:
            print("  none")


def _plain(text: str) -> str:
    """Return a summary without the mark-up of docstrings.

    Examples
    --------
    >>> _plain("*Moccasin*, ``torch.compile``, :mod:`remat.ordering`")
    'Moccasin, torch.compile, remat.ordering'
    """
    return re.sub(r"(?::\w+:)?(`{1,2}|(?<!\w)\*(?=\w))([^`*]+?)(\1|(?<=\w)\*(?!\w))", r"\2", text)


def installed() -> dict[str, dict[str, dict[str, str]]]:
    """Return all registered objects: backends with state and reason, others with a description or a fault."""
    from remat import registry

    return {
        "backends": {name: _state(name) for name in registry.backends()},
        **{
            group: {name: _about(group, name) for name in registry.Registered(group)}
            for group in ("formulations", "heuristics", "methods", "allocators")
        },
        "formats": _formats(),
    }


def _state(name: str) -> dict[str, str]:
    """Return the state of a backend. This creates the backend, since its constructor may fail."""
    from remat import registry

    try:
        kind = registry.load("backends", name)
        found = registry.attempt(kind.availability, f"backend {name!r} fails to say whether it can be used")
        state = {"state": str(found.state), "reason": str(found.reason)}
        registry.make_backend(name)
    except (RematError, AttributeError) as error:
        return {"state": "broken", "reason": str(error)}
    return state


def _about(group: str, name: str) -> dict[str, str]:
    from remat import registry

    try:
        member = registry.load(group, name)
        about = (inspect.getdoc(member) or "").partition("\n")[0]
        if group == "heuristics":
            registry.make(group, name)
        if group == "allocators":
            made = registry.make(group, name, None)
            if reason := registry.attempt(made.unavailable, f"allocator {name!r} fails to say whether it can be used"):
                about = f"cannot be used: {reason}"
    except RematError as error:
        return {"about": f"broken: {error}"}
    return {"about": about}


def _formats() -> dict[str, dict[str, str]]:
    """Return the file formats; broken ones have the name that they are registered under."""
    from remat import registry
    from remat.graphs.formats.base import graph_formats
    from remat.schedule.formats.base import schedule_formats

    found: dict[str, dict[str, str]] = {}
    kinds: tuple[Any, ...] = (graph_formats, schedule_formats)
    for formats in kinds:
        group, built_in = formats.group, formats.built_in
        for entry in [*registry.own(group, built_in), *registry.others(group, built_in)]:
            try:
                about = registry.load_entry(entry, group, formats.kind).description
            except RematError as error:
                about = f"broken: {error}"
            found[f"{entry.name} ({formats.what}s)"] = {"about": about}
    return found
