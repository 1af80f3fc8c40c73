"""``remat warm-up``: compilation of all kernels in advance."""

from __future__ import annotations

import time

from remat.cli.screen import say_sentence
from remat.errors import RematError


def command() -> None:
    """Compile the kernels of searches and bounds now rather than during the first solve on a machine.

    Examples
    --------
    remat warm-up
    """
    from remat.registry import Registered, load
    from remat.runtime.compiled import KernelSet, begin
    from remat.runtime.compiled.places import candidates, writable
    from remat.runtime.resources import available_cpus

    sets: dict[str, KernelSet] = {}
    for group in ("heuristics", "methods", "allocators"):
        for name in Registered(group):
            try:
                found = getattr(load(group, name), "kernels", ())
            except RematError:  # `remat backends` reports the reason
                continue
            sets.update({one.name: one for one in found})
    there = {name: one.compiled() for name, one in sets.items()}
    if None in there.values() and writable() is None:
        where = " and ".join(map(str, candidates()))
        raise RematError(
            f"no folder for compiled kernels: {where} cannot be used; set NUMBA_CACHE_DIR to a private folder"
        )
    begun = time.monotonic()
    begin(*sets.values(), processes=available_cpus())
    for name, one in sets.items():
        if there[name] is None:
            print(f"{name}: compiling", flush=True)
            one.ready()
            print(f"{name}: ready after {time.monotonic() - begun:.1f} s", flush=True)
        else:
            print(f"{name}: ready")
    folders = sorted({str(folder) for one in sets.values() if (folder := one.compiled()) is not None})
    say_sentence(f"kept in {', '.join(folders)}")
