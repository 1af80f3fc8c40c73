"""Interpreter that runs a captured function by a schedule, equation by equation.

Only live tensors are available, so a faulty graph raises KeyError.
"""

from typing import Any

import jax
from jax import numpy as jnp

from remat.jax.captured import Captured
from remat.jax.inlining import Number, Part
from remat.schedule import Schedule
from remat.schedule.simulate import with_frees


def run(captured: Captured, schedule: Schedule, *args: Any) -> list[Any]:
    """Return the flat results of the captured function, computed in the order of `schedule`."""
    leaves = jax.tree_util.tree_leaves(args)
    constants = {-1 - place: value for place, value in enumerate([*leaves, *captured.jaxpr.consts])}
    graph = captured.graph
    held: dict[str, Any] = {}

    def value(read: Any, aval: Any = None) -> Any:
        if isinstance(read, tuple):
            return jnp.stack([value(part) for part in read])
        if isinstance(read, Part):
            found = jnp.reshape(value(read.base), read.shape)[read.index]
        elif isinstance(read, Number):
            found = jnp.asarray(read.value, dtype=None if aval is None else aval.dtype)
        else:
            found = held[read] if isinstance(read, str) else constants[read]
        if aval is None:
            return found
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) and not jax.dtypes.issubdtype(
            found.dtype, jax.dtypes.prng_key
        ):
            found = jax.random.wrap_key_data(found)
        return jnp.reshape(found, aval.shape)

    for word, name in with_frees(graph, schedule).steps():
        if word == "free":
            del held[name]
            continue
        place = graph.op_index[name]
        equation, reads = captured.equations[place], captured.keys[place][2]
        if graph.ops[place].type == "stack":
            held[graph.ops[place].outputs[0]] = jnp.stack([value(read) for read in reads])
            continue
        given = [value(read, v.aval) for read, v in zip(reads, equation.invars, strict=True)]
        made = equation.primitive.bind(*given, **equation.primitive.get_bind_params(equation.params))
        made = made if equation.primitive.multiple_results else [made]
        held.update(zip(graph.ops[place].outputs, made, strict=False))
    outputs = [v.aval for v in captured.jaxpr.jaxpr.outvars]
    return [value(read, aval) for read, aval in zip(captured.results, outputs, strict=True)]
