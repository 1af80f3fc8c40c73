"""``remat backends``: what can be used here, and if not, why."""

from __future__ import annotations

import inspect
from typing import Any

from remat.cli.common import Json, print_json, print_table
from remat.errors import RematError


def command(as_json: Json = False) -> None:
    """List backends with their state, formulations and heuristics."""
    facts = installed()
    if as_json:
        print_json(facts)
        return
    for group, members in facts.items():
        print(f"{group}:")
        if members:
            print_table([(name, *about.values()) for name, about in members.items()], indent="  ")
        else:
            print("  none")


def installed() -> dict[str, dict[str, dict[str, str]]]:
    """Everything registered: state and reason of backends, what the others are in words."""
    from remat import registry

    return {
        "backends": {name: _state(name) for name in registry.backends()},
        "formulations": {name: _about("formulations", name) for name in registry.formulations()},
        "heuristics": {name: _about("heuristics", name) for name in registry.heuristics()},
    }


def _state(name: str) -> dict[str, str]:
    from remat import registry

    try:
        availability = registry.load("backends", name).availability()
    except RematError as error:
        return {"state": "broken", "reason": str(error)}
    return {"state": str(availability.state), "reason": availability.reason}


def _about(group: str, name: str) -> dict[str, str]:
    from remat import registry

    try:
        member: Any = registry.load(group, name)
    except RematError as error:
        return {"about": f"broken: {error}"}
    return {"about": (inspect.getdoc(member) or "").partition("\n")[0]}
