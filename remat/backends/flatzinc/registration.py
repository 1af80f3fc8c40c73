"""Making MiniZinc find the programs of this package."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path

from remat.errors import BackendError, FormatError
from remat.io.files import read_json, write_atomic

SHARE = Path(__file__).resolve().parent / "share"
#: Configuration file of each program, the module that it runs, and its folder of MiniZinc predicates, if any.
PROGRAMS = {
    "cp-sat.msc": ("fzn-cpsat", "remat.backends.flatzinc.cpsat", "cpsat"),
    "highs.msc": ("fzn-highs", "remat.backends.flatzinc.highs", None),
}


@cache
def solver_path() -> Path:
    """A folder for MiniZinc's variable ``MZN_SOLVER_PATH``: there it finds ``remat-cp-sat`` and ``remat-highs``.

    The folder is the user's own, or a temporary one where there is no home. Its programs run the Python of the caller.
    It is made once and is the same in every process with the same Python and the same ``remat``.

    Raises
    ------
    BackendError
        If no folder can be written.

    Examples
    --------
    >>> sorted(path.name for path in solver_path().glob("*.msc"))
    ['remat-cp-sat.msc', 'remat-highs.msc']
    """
    files = _programs()
    key = hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=8).hexdigest()
    problem = ""
    for parent in (_cache_folder(), Path(tempfile.gettempdir()) / f"remat-{_user()}"):
        try:
            return _filled(parent / f"minizinc-{key}", files)
        except (OSError, FormatError) as error:
            problem = str(error)
    raise BackendError(f"the solver configurations for MiniZinc cannot be written: {problem}")


def _programs() -> dict[str, str]:
    """Wrapper scripts, by name."""
    return {
        program: f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {module} "$@"\n'
        for program, module, _ in PROGRAMS.values()
    }


def _configurations(folder: Path) -> dict[str, str]:
    """MiniZinc's configuration files, by name; a name of less than three letters would escape MiniZinc 2.6."""
    from remat import __version__

    files = {}
    for name, (program, _, library) in PROGRAMS.items():
        configuration = read_json(SHARE / name)
        configuration["version"] = __version__
        configuration["executable"] = str(folder / program)
        if library:
            configuration["mznlib"] = str(SHARE / library)
        files[f"remat-{name}"] = json.dumps(configuration, indent=2) + "\n"
    return files


def _filled(folder: Path, programs: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = folder.stat()
    if os.name == "posix" and (state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise FormatError(f"{folder}: others can write there")
    # The programs first: a configuration never names one that is not there.
    for name, content in {**programs, **_configurations(folder)}.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            write_atomic(path, content)
        if name in programs:
            path.chmod(0o700)
    return folder


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "remat"


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
