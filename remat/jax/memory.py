"""Memory that XLA assigns to the values of a compiled program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax


class CompiledMemory(NamedTuple):
    """Bytes of a compiled program, by XLA's buffer assignment.

    Attributes
    ----------
    temporary : int
        Memory for values that are neither arguments nor results, including gaps between buffers.
    results : int
    arguments : int
    """

    temporary: int
    results: int
    arguments: int

    @property
    def step(self) -> int:
        """Temporary values and results: what a predicted peak refers to."""
        return self.temporary + self.results


def compiled_memory(
    function: Callable[..., Any],
    *args: Any,
    compiler_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> CompiledMemory:
    """Compile a function for some arguments and return the memory that XLA assigns; nothing is run.

    Parameters
    ----------
    function : callable
        For a training step, for instance ``jax.value_and_grad(loss)``.
    *args, **kwargs
        Arrays, or ``jax.ShapeDtypeStruct`` instead.
    compiler_options : mapping, optional
        Options of XLA, as for ``jax.jit(...).lower(...).compile``.

    Examples
    --------
    >>> from jax import numpy as jnp
    >>> shape = jax.ShapeDtypeStruct((8, 8), "float32")
    >>> compiled_memory(lambda x: x @ x + 1, shape).results
    256
    """
    options = dict(compiler_options or {})
    compiled = jax.jit(function).lower(*args, **kwargs).compile(compiler_options=options)
    found = compiled.memory_analysis()
    return CompiledMemory(
        int(found.temp_size_in_bytes), int(found.output_size_in_bytes), int(found.argument_size_in_bytes)
    )
