"""Runs a captured function by a schedule, equation by equation.

Only live tensors are available, so a faulty graph raises KeyError.
"""

from typing import Any

import jax

from remat.jax.captured import Captured
from remat.jax.running import Running
from remat.schedule import Schedule
from remat.schedule.simulate import with_frees


def run(captured: Captured, schedule: Schedule, *args: Any) -> list[Any]:
    """Return the flat results of the captured function, computed in the order of `schedule`."""
    state = Running.start(captured, jax.tree_util.tree_leaves(args))
    for word, name in with_frees(captured.graph, schedule).steps():
        if word == "free":
            del state.held[name]
        else:
            state.compute(captured.graph.op_index[name])
    outputs = [v.aval for v in captured.jaxpr.jaxpr.outvars]
    return [state.value(read, aval) for read, aval in zip(captured.results, outputs, strict=True)]
