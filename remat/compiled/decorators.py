"""The two kinds of compiled functions, and numba's cache of them in our folder."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remat.compiled import places


def inner(function: Callable[..., Any]) -> Any:
    """A function of borrowed arrays that only compiled functions call.

    It gets no wrapper for calls from Python: with arguments of dozens of arrays a wrapper takes as long to compile as
    the function itself. Nothing may be allocated in it, see :func:`kernel`.
    """
    import numba  # noqa: F401  (first, and not a part of it: see `_compiled`)
    from numba.core.registry import CPUDispatcher

    class Inner(CPUDispatcher):
        def __call__(self, *arguments: object) -> None:  # else the process would crash
            raise TypeError(f"{function.__name__}() is compiled for other compiled functions only")

    found = _compiled(function, no_cpython_wrapper=True)
    if type(found) is CPUDispatcher:  # not so if numba is told to compile nothing
        found.__class__ = Inner
    return found


def kernel(function: Callable[..., Any]) -> Any:
    """A function of borrowed arrays that is called from Python, and kept on disk once compiled.

    Nothing may be allocated in it, nor in the functions it calls (no ``np.empty``, no slice that is kept, no sort): so
    references need not be counted, which for dozens of arrays in every call would take nine tenths of the time. It
    runs without the interpreter's lock and should return within some tenths of a second, for somebody has to look at
    the clock and at Ctrl-C.

    Examples
    --------
    >>> import numpy as np
    >>> @kernel
    ... def total(values):
    ...     result = 0
    ...     for value in values:
    ...         result += value
    ...     return result
    >>> total(np.arange(5))
    10
    """
    found = _compiled(function)
    if hasattr(found, "_cache"):  # not so if numba is told to compile nothing
        found._cache = _make_cache(function, found._cache)
    return found


def _compiled(function: Callable[..., Any], **more: bool) -> Any:
    # Before any part of it: a thread that imports a part holds that while it waits for numba, and another thread, which
    # holds numba, needs the part. Python lets one of them have a half of it.
    import numba
    from numba.core.registry import CPUDispatcher

    options: dict[str, Any] = {"_nrt": False, "no_cfunc_wrapper": True, **more}
    # None of these is a promise of numba's; without them the same is compiled and run, more slowly.
    known = CPUDispatcher.targetdescr.options
    options = {key: value for key, value in options.items() if hasattr(known, key)}
    return numba.njit(nogil=True, **options)(function)


def _stamp(function: Callable[..., Any]) -> str | None:
    """What the compiled function depends on besides its types; None if nobody can say."""
    path = Path(inspect.getfile(function))
    if path.is_relative_to(places.PACKAGE):
        return places.digest()
    try:
        return places.digest() + hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:  # typed in
        return None


def _make_cache(function: Callable[..., Any], nothing: Any) -> Any:
    """A cache for numba, in our folders; `nothing`, a cache that keeps nothing, if numba has changed."""
    try:
        from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _CacheLocator
    except ImportError:
        return nothing

    stamp = _stamp(function)
    if stamp is None:
        return nothing

    def in_folder(folder: Path) -> Any:
        class Locator(_CacheLocator):
            def get_cache_path(self) -> str:
                return str(folder)

            def get_source_stamp(self) -> str:
                return str(stamp)

            def get_disambiguator(self) -> str:
                return f"{function.__module__}-{function.__code__.co_firstlineno}"

            @classmethod
            def from_function(cls, py_func: Any, py_file: str) -> Locator:
                return cls()

        class Impl(CompileResultCacheImpl):
            _locator_classes: Any = [Locator]

        class InFolder(FunctionCache):
            _impl_class = Impl

        make: Any = InFolder
        return make(function)

    class Cache(NullCache):
        """Whatever goes wrong with a cache, the function can be compiled instead."""

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            for folder in places.readable():
                try:
                    if (found := in_folder(folder).load_overload(sig, target_context)) is not None:
                        return found
                except Exception:  # a broken file: what numba and pickle raise then is anybody's guess
                    continue
            return None

        def save_overload(self, sig: Any, data: Any) -> None:
            try:
                if (folder := places.writable()) is not None:
                    in_folder(folder).save_overload(sig, data)
            except OSError:  # the disk is full, say
                pass

    return Cache()
