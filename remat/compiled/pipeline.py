"""How numba's compiler is used: what only compiled functions call is optimized where it is called, and only there.

numba makes machine code of every function by itself, each time with all that it calls: what lies at the bottom of a
dozen functions is optimized a dozen times, and only the last time counts. None of what is changed here is a promise of
numba's; where it is not as it was, functions are compiled as numba does it: the same code, after a longer time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

#: What numba's libraries of compiled code must have to be changed.
LIBRARY = (
    "_optimize_functions", "_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals",
    "_verify_declare_only_symbols", "get_pointer_to_function", "codegen",
)  # fmt: skip


@cache
def callee() -> type | None:
    """Numba's compiler for functions that only compiled ones call; None if numba has changed."""
    try:
        import numba  # noqa: F401  (before any part of it: see `remat.compiled.decorators`)
        from numba.core.codegen import JITCodeLibrary
        from numba.core.compiler import Compiler
    except ImportError:
        return None
    if not all(hasattr(JITCodeLibrary, name) for name in LIBRARY):
        return None

    class Codegen:
        """Numba's maker of code; the place that it would fill is in no memory, and is for Python objects only."""

        def __init__(self, codegen: Any) -> None:
            self._codegen = codegen

        def __getattr__(self, name: str) -> Any:
            return getattr(self._codegen, name)

        def set_env(self, name: str, environment: object) -> None:
            pass

    class Linked(JITCodeLibrary):
        """Code that is linked into that of its callers, and is neither optimized nor loaded by itself."""

        @property
        def codegen(self) -> Any:
            return Codegen(self._codegen)

        def _optimize_functions(self, module: Any) -> None:
            module.data_layout = self._codegen._data_layout

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            library: Any = self
            library._finalize_dynamic_globals()
            library._verify_declare_only_symbols()
            self._finalized = True

        def get_pointer_to_function(self, name: str) -> int:
            return 0  # there is none that Python could call

    class Callee(Compiler):
        def compile_extra(self, function: Any) -> Any:
            if self.state.library is None:
                make: Any = Linked
                self.state.library = make(self.state.targetctx.codegen(), function.__qualname__)
            return super().compile_extra(function)  # type: ignore[no-untyped-call]

    return Callee
