"""Programs of solvers, found only in trusted folders, never where a graph or a configuration was unpacked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remat.errors import BackendError

#: Parts of names of solver options that take a file or a folder.
FILE_WORDS = ("file", "dir", "path", "dll", "write", "export", "save", "output", "dump", "log", "import", "read")
#: The same for solvers behind Pyomo: whole names, or prefixes that a solver accepts as abbreviations.
PYOMO_OPTIONS = (
    "solu", "gsolu", "basis", "csv", "restore", "mips", "priori", "next", "debug", "o", "wlp", "wmps", "wfreemps",
    "wglp", "wcpxlp", "ranges", "display", "wbas", "ini",
)  # fmt: skip


def find_program(name: str) -> str | None:
    """Return the absolute path of a program, or None.

    Searches the absolute folders of ``PATH`` except the current one: names in a configuration must not run a program
    that came with it.
    """
    return shutil.which(name, path=os.pathsep.join(trusted_folders())) if Path(name).name == name else None


def trusted_folders() -> list[str]:
    """Return the folders of ``PATH`` that are absolute and not the current one."""
    here = Path.cwd()
    folders = map(Path, filter(None, os.environ.get("PATH", os.defpath).split(os.pathsep)))
    return [str(folder) for folder in folders if folder.is_absolute() and folder.resolve() != here]


def check_trusted(backend: str, where: str) -> None:
    """Require that a backend named in a file has a plain name.

    Raise BackendError if its variant is a path, which only the command line may give; the message begins with `where`.
    """
    variant = backend.partition(":")[2]
    if Path(variant).name != variant or variant.startswith((".", "-", "~")) or "\\" in variant:
        raise BackendError(f"{where}backend {backend!r} names a file, which only the command line may (--backend)")


def check_solver_options(backend: str, options: Mapping[str, Any], where: str) -> None:
    """Require that solver options from a file name no files.

    Raise BackendError beginning with `where` and naming the option.
    """
    special = PYOMO_OPTIONS if backend.partition(":")[0] == "pyomo" else ()
    for name, value in options.items():
        if _names_a_file(str(name), value, special):
            raise BackendError(
                f"{where}option {name!r} of backend {backend!r} may name a file to read or write, which a "
                "configuration may only with --allow-solver-files on the command line",
                "option-names-file",
            )


def _names_a_file(name: str, value: Any, special: tuple[str, ...]) -> bool:
    plain = name.lower().lstrip("-").replace("_", "")
    if any(character.isspace() or not character.isprintable() for character in name):
        return True  # several words for a solver that reads lines
    if plain.endswith(("tofile", "solfiles")) or plain == "record":
        return value not in (False, 0, None)
    if isinstance(value, bool | int | float) or value is None:
        return False
    if isinstance(value, str):
        if any(not character.isprintable() for character in value) or "/" in value or "\\" in value:
            return True
        if value.lower() in {"on", "off", "yes", "no", "choose", "auto", "true", "false"}:
            return False
        return any(word in plain for word in FILE_WORDS) or plain.startswith(special)
    return any(word in plain for word in FILE_WORDS)
