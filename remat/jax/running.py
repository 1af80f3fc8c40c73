"""Interpreter of captured programs, op by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax import numpy as jnp

from remat.jax.captured import Captured
from remat.jax.inlining import Number, Part


class Running:
    """Values of a captured program while it runs, traced or not.

    Parameters
    ----------
    captured : Captured
    constants : mapping of int to value
        Arguments and constants of the program, by their numbers in :attr:`Captured.keys`.
    held : mapping of str to value
        Tensors that are computed already.

    Attributes
    ----------
    held : dict of str to value
        Tensors that are computed and not deleted.
    """

    def __init__(
        self, captured: Captured, constants: Mapping[int, Any], held: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.captured = captured
        self.constants = dict(constants)
        self.held: dict[str, Any] = dict(held)

    @classmethod
    def start(cls, captured: Captured, arguments: Sequence[Any]) -> Running:
        """Return the state before the first op; `arguments`: the flat arguments of the captured function."""
        return cls(captured, {-1 - place: value for place, value in enumerate(arguments)} | dict(captured.constants))

    def compute(self, op: int) -> None:
        """Run an op, given by its position in the graph, and hold its outputs."""
        captured = self.captured
        equation, reads = captured.equations[op], captured.keys[op][2]
        outputs = captured.graph.ops[op].outputs
        if captured.graph.ops[op].type == "stack":  # joins the stacked results of an unrolled loop
            made = [jnp.stack([self.value(read) for read in reads]).reshape(captured.values[outputs[0]].shape)]
        else:
            given = [self.value(read, v.aval) for read, v in zip(reads, equation.invars, strict=True)]
            with equation.ctx.manager:
                made = equation.primitive.bind(*given, **equation.primitive.get_bind_params(equation.params))
            made = made if equation.primitive.multiple_results else [made]
        self.held.update(zip(outputs, made, strict=False))  # an op with effects also has a token

    def value(self, read: Any, aval: Any = None) -> Any:
        """Return a value in the numbering of :attr:`Captured.keys`, with the shape and type of `aval`."""
        if isinstance(read, tuple):
            found = jnp.stack([self.value(part) for part in read])
        elif isinstance(read, Part):
            found = jnp.reshape(self.value(read.base), read.shape)[read.index]
        elif isinstance(read, Number):
            found = jnp.asarray(read.value, dtype=None if aval is None else aval.dtype)
        else:
            found = self.held[read] if isinstance(read, str) else self.constants[read]
        if aval is None or not hasattr(aval, "shape"):
            return found
        return jnp.reshape(_keyed(found, aval), aval.shape)


def _keyed(value: Any, aval: Any) -> Any:
    """Return a value as keys of random numbers or as their data, as `aval` is; the graph holds both as one tensor."""
    is_key, wanted = (jax.dtypes.issubdtype(each.dtype, jax.dtypes.prng_key) for each in (value, aval))
    if wanted and not is_key:
        return jax.random.wrap_key_data(value, impl=aval.dtype._impl.name)
    return jax.random.key_data(value) if is_key and not wanted else value
