"""Versions of this package, its dependencies and the available solvers."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from packaging.requirements import Requirement

from remat import registry
from remat._version import __version__
from remat.errors import RematError

NOT_INSTALLED = "not installed"


def installed_versions() -> dict[str, dict[str, str]]:
    """Return versions by part: ``system``, ``dependencies``, ``optional`` and ``solvers``.

    Imports nothing heavy; runs programs of solvers to query their versions.

    Returns
    -------
    dict of str to (dict of str to str)
        ``"not installed"`` for missing parts; the reason for unusable solvers.

    Examples
    --------
    >>> found = installed_versions()
    >>> list(found), found["dependencies"]["numpy"] == metadata.version("numpy")
    (['system', 'dependencies', 'optional', 'solvers'], True)
    """
    system = {
        "remat": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "bits": "64" if sys.maxsize > 2**32 else "32",
    }
    required: dict[str, str] = {}
    optional: dict[str, str] = {}
    for requirement in map(Requirement, _requirements()):
        part = optional if requirement.marker and "extra" in str(requirement.marker) else required
        part[requirement.name] = _version(requirement.name)
    return {"system": system, "dependencies": required, "optional": optional, "solvers": _solvers()}


def show_versions() -> None:
    """Print the installed versions, for bug reports.

    Examples
    --------
    >>> show_versions()  # doctest: +ELLIPSIS
    system
      remat ...
    """
    for part, found in installed_versions().items():
        print(part)
        width = max(map(len, found), default=0)
        for name, version in found.items():
            print(f"  {name:<{width}}  {version}")


def _requirements() -> list[str]:
    """Return the requirements of the installed package; empty if it is not installed."""
    try:
        return metadata.requires("remat") or []
    except metadata.PackageNotFoundError:
        return []


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _solvers() -> dict[str, str]:
    """Return each backend's version, or the reason why it cannot be used."""
    found = {}
    for name in registry.backends():
        try:
            kind = registry.load("backends", name)
            state = registry.attempt(kind.availability, f"backend {name!r} fails to say whether it can be used")
            found[name] = str(state.reason) if state.ready else f"{state.state}: {state.reason}"
        except (RematError, AttributeError) as error:
            found[name] = f"broken: {error}"
    return found
