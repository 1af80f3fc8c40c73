"""Compiled code: what numba makes of plain loops over arrays, kept on disk, and made by a process of its own.

A module of compiled functions is called ``kernel`` or ``..._kernel`` and is imported where it is used, as it brings
numba along. Its functions are decorated with :func:`inner`, if only compiled ones call them, or :func:`kernel`. Those
that are needed together are a :class:`KernelSet`, which is asked whether it is ready before any of them is called.
"""

from remat.compiled.decorators import inner, kernel
from remat.compiled.sets import COMPILING, KernelSet, begin

__all__ = ["COMPILING", "KernelSet", "begin", "inner", "kernel"]
