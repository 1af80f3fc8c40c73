"""Numba kernels: plain loops over arrays, compiled in a background process and cached on disk.

A module of kernels is called ``kernel`` or ``..._kernel``. It is imported where it is used, since it imports numba. Its
functions are decorated with :func:`kernel`, or with :func:`inner` or :func:`inlined` if only kernels call them. Kernels
that are needed together form a :class:`KernelSet`; check that it is ready before calling any of them.
"""

from remat.runtime.compiled.decorators import inlined, inner, kernel, reordered
from remat.runtime.compiled.sets import COMPILING, KernelSet, begin

__all__ = ["COMPILING", "KernelSet", "begin", "inlined", "inner", "kernel", "reordered"]
