"""Decorators of kernels, and their cache on disk."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

from remat.runtime.compiled import places


def inner(function: Callable[..., Any], **more: bool) -> Any:
    """Compile a function of borrowed arrays that only kernels call.

    It has no wrapper for calls from Python: for dozens of arrays, compiling a wrapper takes as long as the function
    itself. It is optimized as a part of its callers only. It must not allocate, see :func:`kernel`. `more` are options
    of numba.
    """
    import numba  # first, and not a part of it: see `_compiled`
    from numba.core.registry import CPUDispatcher

    class Inner(CPUDispatcher):
        def __call__(self, *arguments: object) -> None:  # else the process would crash
            raise TypeError(f"{function.__name__}() is compiled for other compiled functions only")

        def get_call_template(self, args: Any, kws: Any) -> Any:  # else it would be compiled for each literal
            base, plain = cast("Any", super()), cast("Any", numba.types.unliteral)
            return base.get_call_template(tuple(map(plain, args)), {name: plain(kws[name]) for name in kws})

    found = _compiled(function, _part_compiler(), no_cpython_wrapper=True, **more)
    if type(found) is CPUDispatcher:  # false under NUMBA_DISABLE_JIT
        found.__class__ = Inner
    return found


@cache
def _part_compiler() -> Any:
    """Return a compiler that neither optimizes a function nor makes machine code of it; None if numba has changed.

    By default numba does both for each function, and again in each caller, which is a quarter of the time of compiling.
    """
    from numba.core import codegen, compiler

    library: Any = getattr(codegen, "JITCodeLibrary", None)
    if not all(hasattr(library, f"_{step}_final_module") for step in ("optimize", "finalize")):
        return None

    class Part(library):
        """Code of a function that is linked to its callers."""

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalized = True

        def get_pointer_to_function(self, name: str) -> int:
            self._ensure_finalized()
            return 0  # no such function, as for any without a wrapper

        @property
        def codegen(self) -> Any:
            """The library itself, of which numba calls `set_env` only."""
            return self

        def set_env(self, name: str, environment: object) -> None:
            """Do nothing: without machine code there is no address to write the environment to."""

    default: Any = compiler.Compiler

    class PartCompiler(default):
        """numba's compiler, which puts each function into such a library."""

        def compile_extra(self, function: Callable[..., Any]) -> Any:
            self.state.library = Part(self.state.targetctx.codegen(), function.__qualname__)
            return super().compile_extra(function)

    return PartCompiler


def inlined(function: Callable[..., Any], **more: bool) -> Any:
    """Compile as :func:`inner`, into its callers: a call would pass all arrays of a state, seven words for each."""
    return inner(function, forceinline=True, **more)


def reordered(function: Callable[..., Any]) -> Any:
    """Compile as :func:`inlined`; the order of additions may change, so that sums in loops are vectorized."""
    return inlined(function, fastmath=True)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function of borrowed arrays for calls from Python, and cache it on disk.

    It must not allocate, nor may the functions it calls (no ``np.empty``, no stored slice, no sort). Reference counting
    is therefore off, which for dozens of arrays would take nine tenths of a call. It runs without the GIL
    and should return within some tenths of a second, so that its caller can check the clock and Ctrl-C.

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
    if hasattr(found, "_cache"):  # false under NUMBA_DISABLE_JIT
        found._cache = _make_cache(function, found._cache)
    return found


def _compiled(function: Callable[..., Any], compiler: Any = None, **more: bool) -> Any:
    """Return a function compiled with those of `more` that numba knows; `compiler`: None is numba's own."""
    # Import numba before any of its submodules. Otherwise one thread can hold a submodule's import lock and wait for
    # numba's, while another holds numba's and waits for the submodule; Python then breaks the deadlock with a
    # partly initialised module.
    import numba
    from numba.core.registry import CPUDispatcher

    options: dict[str, Any] = {"_nrt": False, "no_cfunc_wrapper": True, **more}
    # None of these options is public; without them kernels compile and run more slowly.
    known = CPUDispatcher.targetdescr.options
    options = {key: value for key, value in options.items() if hasattr(known, key)}
    if compiler is not None:
        options["pipeline_class"] = compiler
    return numba.njit(nogil=True, **options)(function)


def _stamp(function: Callable[..., Any]) -> str | None:
    """Return a digest of all that a compiled function depends on except its types; None if its source is unknown."""
    path = Path(inspect.getfile(function))
    if path.is_relative_to(places.PACKAGE):
        return places.digest()
    try:
        return places.digest() + hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:  # defined interactively
        return None


def _make_cache(function: Callable[..., Any], nothing: Any) -> Any:
    """Return a cache for numba in trusted folders, or `nothing`, a null cache, if numba's interface has changed."""
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
        """Cache whose failures never matter: the function is compiled instead."""

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            for folder in places.readable():
                try:
                    if (found := in_folder(folder).load_overload(sig, target_context)) is not None:
                        return found
                except Exception:  # a damaged file can raise anything in numba and pickle
                    continue
            return None

        def save_overload(self, sig: Any, data: Any) -> None:
            # A full disk, or a damaged index, which can raise anything in numba and pickle.
            with contextlib.suppress(Exception):
                if (folder := places.writable()) is not None:
                    in_folder(folder).save_overload(sig, data)

    return Cache()
