"""Captured functions of JAX: the graph, the equations of the ops, and the schedule of the trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remat.errors import CaptureError
from remat.graphs import ComputeGraph
from remat.jax.inlining import base_of, renamed
from remat.schedule import Schedule, simulate


@dataclass(frozen=True, eq=False)
class Captured:
    """A function of JAX as a graph, and the order of its trace as a schedule.

    Attributes
    ----------
    graph : ComputeGraph
        One op per distinct equation; a recomputation of ``jax.checkpoint`` is the op of the first compute. In `meta`:
        ``modules`` (op to dotted path of scopes), ``source_lines``, ``random_ops``, ``effects``, ``cost_kinds``
        (operations of ``product``, ``arithmetic`` and ``movement``), ``constant_bytes`` (of ``parameter``, ``input``
        and ``constant``), and shapes and descriptions for :mod:`remat.graphs.rewriting`.
    schedule : Schedule
        Equations in the order of the trace, with recomputations of ``jax.checkpoint``.
    equations : tuple of jax.extend.core.JaxprEqn
        Equation of each op of the graph, the first of equal ones.
    jaxpr : jax.extend.core.ClosedJaxpr
        Captured program, with all calls.
    boundary : int
        First step of the backward pass in `schedule`; the number of steps if there is none.
    keys : tuple of tuple
        Key of each op: primitive, parameters, inputs, and shapes and types of its results. Inputs are names of tensors,
        −1, −2, … for the arguments in turn (then `constants`), and :class:`~remat.jax.inlining.Number` for literals.
    results : tuple
        Flat results of the function: the value and the gradients. Names of tensors, numbers of constants and literals
        as in `keys`; a tuple for the stacked results of an unrolled loop.
    values : mapping of str to aval
        Shape and type of each tensor.
    constants : mapping of int to array
        Constants of the program, by their numbers in `keys`.
    mode : str
        ``"training"`` or ``"inference"``.
    remarks : tuple of str
        Remarks on the capture for the user.
    """

    graph: ComputeGraph
    schedule: Schedule
    equations: tuple[Any, ...]
    jaxpr: Any
    boundary: int
    keys: tuple[tuple[Any, ...], ...]
    results: tuple[Any, ...]
    values: Mapping[str, Any]
    constants: Mapping[int, Any]
    mode: str
    remarks: tuple[str, ...] = ()

    @property
    def saved(self) -> tuple[str, ...]:
        """Tensors that the forward pass of :attr:`schedule` saves for the backward pass: JAX's residuals.

        Arguments do not count: they are constant memory.
        """
        if self.boundary >= len(self.schedule):
            return ()
        instances = simulate(self.graph, self.schedule).intervals
        held = (instances.start < self.boundary) & (instances.end > self.boundary)
        index, ops = self.graph.op_index, self.graph.ops
        read = {name for op in self.schedule.computes()[self.boundary :] for name in ops[index[op]].inputs}
        names = [self.graph.tensor_names[tensor] for tensor in instances.tensor[held].tolist()]
        return tuple(name for name in names if name in read)

    def schedule_on(self, base: Captured) -> Schedule:
        """Return the schedule of this trace on the graph of the same function under another policy.

        Ops of both match if they do the same to the same values. All policies of ``jax.checkpoint`` and all schedules
        of a solver are thus schedules of one graph.

        Raises
        ------
        CaptureError
            With the name of the first op that `base` lacks.

        Examples
        --------
        >>> import jax
        >>> from jax import numpy as jnp
        >>> from remat.jax import capture
        >>> def loss(w, x, wrap=lambda f: f):
        ...     return jnp.sum(wrap(lambda y: jnp.sin(jnp.sin(y)))(x @ w))
        >>> shape = jax.ShapeDtypeStruct((4, 4), "float32")
        >>> base = capture(loss, shape, shape)
        >>> other = capture(lambda w, x: loss(w, x, jax.checkpoint), shape, shape)
        >>> schedule = other.schedule_on(base)
        >>> schedule.num_computes - len(base.graph.ops), schedule.graph == base.graph.name
        (1, True)
        """
        known: dict[Any, int] = {}
        mine, theirs = _numbered(self, known), _numbered(base, known)
        places: dict[int, list[str]] = {}
        for op, number in zip(base.graph.ops, theirs, strict=True):
            places.setdefault(number, []).append(op.name)
        writer = {tensor: op.name for op in base.graph.ops for tensor in op.outputs}
        mine_of = {tensor: op.name for op in self.graph.ops for tensor in op.outputs}
        names: dict[str, str] = {}
        free = {number: list(found) for number, found in places.items()}
        for place in reversed(range(len(self.graph.ops))):  # of several equal ops, the one that readers read
            name, number = self.graph.op_names[place], mine[place]
            if number not in places:
                raise CaptureError(
                    f"op {name!r} of graph {self.graph.name!r} corresponds to no op of graph {base.graph.name!r}",
                    "other-function",
                )
            if names.get(name) not in places[number]:
                names[name] = free[number][-1] if free[number] else places[number][-1]
            if names[name] in free[number]:
                free[number].remove(names[name])
            theirs_read = base.keys[base.graph.op_index[names[name]]][2]
            for tensor, other in zip(map(base_of, self.keys[place][2]), map(base_of, theirs_read), strict=True):
                if tensor in mine_of:
                    names.setdefault(mine_of[tensor], writer[other])
        order = [base.graph.op_index[names[name]] for name in self.schedule.computes()]
        return Schedule.of_computes(base.graph, order, source=self.schedule.source)


def _numbered(captured: Captured, known: dict[Any, int]) -> list[int]:
    """Return a number per op, equal for ops that do the same to the same values; `known` has earlier numbers."""
    numbers: list[int] = []
    written: dict[str, tuple[int, int]] = {}
    for op, (primitive, parameters, read, results) in zip(captured.graph.ops, captured.keys, strict=True):
        inputs = tuple(renamed(value, written) for value in read)
        number = known.setdefault((primitive, parameters, inputs, results), len(known))
        numbers.append(number)
        written.update({tensor: (number, place) for place, tensor in enumerate(op.outputs)})
    return numbers
