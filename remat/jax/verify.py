"""Verification of a rematerialized loss against ``jax.value_and_grad``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from remat.errors import ExecutionError, VerificationError
from remat.jax.memory import compiled_memory
from remat.jax.report import Verification
from remat.jax.step import Arguments, value_and_gradients

#: Tolerated difference in units in the last place of the largest entry. XLA fuses and rounds a recomputation
#: differently from the first run; six networks in 32 bits differ by at most 5.
ULPS = 64


def verify(
    loss: Callable[..., Any], rematerialized: Callable[..., Any], given: Arguments, wrt: tuple[int, ...], has_aux: bool
) -> Verification:
    """Run one step of both functions, compiled, and compare the loss, the auxiliary output and the gradients.

    Raise VerificationError with the first value that differs, and by how much.
    """
    if any(isinstance(each, jax.ShapeDtypeStruct) for each in jax.tree_util.tree_leaves(given)):
        raise ExecutionError("verify needs arrays as sample arguments, not ShapeDtypeStructs", "jax-sample")
    steps = [value_and_gradients(each, wrt, has_aux) for each in (loss, rematerialized)]
    (plain, _), (ours, _) = (
        jax.tree_util.tree_flatten_with_path(jax.jit(step)(*given.args, **given.kwargs)) for step in steps
    )
    worst, equal = 0.0, 0
    for (path, expected), (_, found) in zip(plain, ours, strict=True):
        difference, tolerance = _difference(expected, found)
        if difference > tolerance:
            what = ("the gradient" if path[0].idx else "the loss") + jax.tree_util.keystr(path[1:])
            raise VerificationError(
                f"{what} differs by {difference:.3g} of its largest entry; the tolerance is {tolerance:.3g}"
            )
        worst, equal = max(worst, difference), equal + (difference == 0)
    memory = [compiled_memory(step, *given.args, **given.kwargs) for step in steps]
    return Verification(len(plain), equal, worst, memory[1], memory[0])


def _difference(expected: Any, found: Any) -> tuple[float, float]:
    """Return the largest difference relative to the largest entry, and the tolerance."""
    if expected.dtype == jax.dtypes.float0 or expected.size == 0:
        return 0.0, 0.0
    if jax.dtypes.issubdtype(expected.dtype, jax.dtypes.prng_key):
        expected, found = jax.random.key_data(expected), jax.random.key_data(found)
    inexact = jnp.issubdtype(expected.dtype, jnp.inexact)
    tolerance = ULPS * float(jnp.finfo(expected.dtype).eps) if inexact else 0.0
    wide = np.complex128 if jnp.iscomplexobj(expected) else np.float64
    a, b = np.asarray(expected).astype(wide), np.asarray(found).astype(wide)
    if np.array_equal(a, b, equal_nan=True):
        return 0.0, tolerance
    return float(np.abs(a - b).max() / (np.abs(a).max() or 1.0)), tolerance
