"""Recomputations that XLA neither merges with the first computes nor moves forward.

Compilers merge equal computations (CSE), and so undo a recomputation. On accelerators ``lax.optimization_barrier``
keeps them apart. XLA's compiler for CPUs removes barriers before its last merge. There the recomputation is a branch of
a conditional instead, whose predicate is true but depends on values that are computed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

Values = Sequence[Any]


def token(before: Any, values: Iterable[Any]) -> Any:
    """Return a predicate that is true, but that a compiler only knows after `before` and all values are computed."""
    for value in values:
        entry = _entry(value)
        if entry is not None:
            before = before & ((entry >= -jnp.inf) | (entry != entry))  # noqa: PLR0124 - NaN
    return before


def gated(function: Callable[[Values], Values], inputs: Values, others: Values, before: Any) -> tuple[Any, ...]:
    """Return the results of a function whose ops run after some values are computed, and are not merged with others.

    Also return `others`, and a token of the results. Later readers take the others from here: otherwise the compiler
    could compute them after the function, fused with their readers, and keep what they are computed from.

    Parameters
    ----------
    function : callable
        Takes and returns a sequence of arrays.
    inputs, others : sequence of array
        Arguments of the function, and other values computed before.
    before : array of bool
        A :func:`token` of all these values.
    """
    shapes = jax.eval_shape(function, inputs)

    def run(inputs: Values, others: Values) -> tuple[Any, ...]:
        found = function(inputs)
        return found, others, token(jnp.bool_(True), found)

    def branch(inputs: Values, others: Values, before: Any) -> tuple[Any, ...]:
        nothing = [_zeros(each) for each in shapes]
        return lax.cond(before, run, lambda _, others: (nothing, others, jnp.bool_(False)), inputs, others)

    def barrier(inputs: Values, others: Values, before: Any) -> tuple[Any, ...]:
        inputs, others, before = lax.optimization_barrier((inputs, others, before))
        return function(inputs), others, before

    return lax.platform_dependent(inputs, others, before, cpu=branch, default=barrier)


def _entry(value: Any) -> Any:
    """Return the first number of an array as a 32-bit float; None for an empty array."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if value.size == 0:
        return None
    entry = lax.slice(value, (0,) * value.ndim, (1,) * value.ndim).reshape(())
    return (entry.real if jnp.iscomplexobj(entry) else entry).astype(jnp.float32)


def _zeros(shape: Any) -> Any:
    if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, shape)
        return jax.random.wrap_key_data(jnp.zeros(data.shape, data.dtype), impl=shape.dtype._impl.name)
    return jnp.zeros(shape.shape, shape.dtype)
