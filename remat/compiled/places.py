"""Where compiled code is kept: a folder that nobody else may write to, since loading it is running it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: The package, in whose ``__pycache__`` compiled code is kept where that can be written.
PACKAGE = Path(__file__).resolve().parent.parent
#: Packages whose versions compiled code depends on.
MAKERS = ("numba", "llvmlite", "numpy")
#: The module that says how functions are compiled.
COMPILER = "decorators.py"
#: How many folders of older sources or versions stay.
KEPT = 3


@cache
def digest() -> str:
    """Of all that compiled code depends on: all modules of compiled functions, versions, processor, numba's options.

    All modules, since functions of one are inlined in those of another.
    """
    found = hashlib.sha256()
    for path in (*sorted(PACKAGE.rglob("*kernel.py")), PACKAGE / "compiled" / COMPILER):
        found.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0")
    options = sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_") and k != "NUMBA_CACHE_DIR")
    found.update(repr((sys.version, [_version(name) for name in MAKERS], _processor(), options)).encode())
    return found.hexdigest()[:20]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    """What the processor can do, as far as that is quickly found out; numba looks at it more closely."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return " ".join(os.uname()) if hasattr(os, "uname") else ""


def candidates() -> Iterator[Path]:
    """Return the folders for compiled code, the best first.

    ``NUMBA_CACHE_DIR`` where that is set; else the package itself and the user's cache folder (``XDG_CACHE_HOME``).
    """
    name = f"kernels-{sys.implementation.cache_tag}-{digest()}"
    own = hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:12]
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given).absolute() / f"remat-{own}" / name
        return
    yield PACKAGE / "__pycache__" / name
    if (user := user_cache()) is not None:
        yield user / "remat" / own / name


def user_cache() -> Path | None:
    """Return the user's cache folder, ``XDG_CACHE_HOME`` or ``~/.cache``; None where the home folder is not known."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(root) if Path(root).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None


def readable() -> Iterator[Path]:
    """Return the folders that are there and may be trusted."""
    return (folder.resolve() for folder in candidates() if _trusted(folder))


def writable() -> Path | None:
    """The first folder that can be written and trusted, made if need be; None: there is none."""
    for folder in candidates():
        try:
            # Others may read what lies in the package, but not what lies in a user's own folder.
            folder.mkdir(mode=0o755 if PACKAGE in folder.parents else 0o700, parents=True, exist_ok=True)
            if _trusted(folder):
                tempfile.TemporaryFile(dir=folder).close()
                return folder.resolve()
        except OSError:
            continue
    return None


def _trusted(folder: Path) -> bool:
    """Return whether only this user, root or the owner of the package's source can write to a folder.

    A user who can replace a parent folder can replace this one too, but not by a folder of a trusted owner.
    """
    try:
        info = folder.stat()
        owners = {0, PACKAGE.stat().st_uid, os.geteuid()} if hasattr(os, "geteuid") else {info.st_uid}
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid in owners and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def sweep(folder: Path) -> None:
    """Remove what was compiled from older sources or by other versions, but for the last few."""
    begin = folder.name.rpartition("-")[0]
    try:
        beside = [path for path in folder.parent.glob(f"{begin}-*") if path != folder and path.is_dir()]
        beside.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return
    for path in beside[KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
