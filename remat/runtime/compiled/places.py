"""Folders for compiled code. Loading it executes it, so only folders that other users cannot write to are used."""

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

#: The package; its ``__pycache__`` is the first choice.
PACKAGE = Path(__file__).resolve().parents[2]
#: Packages whose versions compiled code depends on.
MAKERS = ("numba", "llvmlite", "numpy")
#: Module with the compiler's options, in the package.
COMPILER = "runtime/compiled/decorators.py"
#: Variables of numba that compiled code does not depend on. The shell sets the second, Python programs do not.
IRRELEVANT = {"NUMBA_CACHE_DIR", "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"}
#: Folders of older sources or versions to keep.
KEPT = 3


@cache
def digest() -> str:
    """Return a digest of all that compiled code depends on: kernel modules, versions, processor, numba's options.

    It covers all kernel modules, since functions of one are inlined in those of another.
    """
    found = hashlib.sha256()
    for path in (*sorted(PACKAGE.rglob("*kernel.py")), PACKAGE / COMPILER):
        found.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0")
    options = sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_") and k not in IRRELEVANT)
    found.update(repr((sys.version, [_version(name) for name in MAKERS], _processor(), options)).encode())
    return found.hexdigest()[:20]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    """Return the processor's features as far as they are cheap to read; numba itself checks them in full."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return " ".join(os.uname()) if hasattr(os, "uname") else ""


def candidates() -> Iterator[Path]:
    """Yield the folders for compiled code, the preferred one first.

    ``NUMBA_CACHE_DIR`` if it is set; otherwise the package itself and the user's cache folder (``XDG_CACHE_HOME``).
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
    """Return the user's cache folder, ``XDG_CACHE_HOME`` or ``~/.cache``; None if the home folder is unknown."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(root) if Path(root).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None


def readable() -> Iterator[Path]:
    """Return the existing folders that can be trusted."""
    return (folder.resolve() for folder in candidates() if _trusted(folder))


def writable() -> Path | None:
    """Return the first folder that is writable and trusted, created if missing; None if there is none."""
    for folder in candidates():
        try:
            # Others may read the package, but not the user's own folder.
            folder.mkdir(mode=0o755 if PACKAGE in folder.parents else 0o700, parents=True, exist_ok=True)
            if _trusted(folder):
                tempfile.TemporaryFile(dir=folder).close()
                return folder.resolve()
        except OSError:
            continue
    return None


def _trusted(folder: Path) -> bool:
    """Return True if only this user, root or the owner of the package's source can write to a folder.

    A user who can replace a parent folder can replace this one too, but not by a folder of a trusted owner.
    """
    try:
        info = folder.stat()
        owners = {0, PACKAGE.stat().st_uid, os.geteuid()} if hasattr(os, "geteuid") else {info.st_uid}
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid in owners and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def sweep(folder: Path) -> None:
    """Remove code compiled from older sources or by other versions, except the newest few."""
    begin = folder.name.rpartition("-")[0]
    try:
        siblings = [path for path in folder.parent.glob(f"{begin}-*") if path != folder and path.is_dir()]
        siblings.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return
    for path in siblings[KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
