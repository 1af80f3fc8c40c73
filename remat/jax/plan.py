"""One captured step of a loss, ready to run, with a derivative of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from remat.errors import ExecutionError
from remat.jax.program import Program
from remat.jax.report import Report
from remat.jax.step import Arguments, array_type, path_name
from remat.schedule import Schedule


class Plan:
    """A step of a loss for arguments like the sample.

    Attributes
    ----------
    program : Program
    schedule : Schedule
    report : Report
    """

    def __init__(self, loss: Callable[..., Any], program: Program, schedule: Schedule, report: Report) -> None:
        self.program, self.schedule, self.report = program, schedule, report
        self._loss = loss
        forward, backward = (jax.jit(each, inline=True) for each in (program.forward, program.backward))

        def primal(*leaves: Any) -> Any:
            args, kwargs = jax.tree_util.tree_unflatten(program.step.tree, leaves)
            return tuple(jax.tree_util.tree_leaves(loss(*args, **kwargs)))

        def run(*leaves: Any) -> tuple[Any, Any]:
            self._check_wanted([each.perturbed for each in leaves])
            values = [each.value for each in leaves]
            outputs, saved = forward(values)
            return tuple(outputs), (values, outputs[0], saved)

        def pull(kept: Any, cotangents: Sequence[Any]) -> Any:
            values, loss, saved = kept
            self._check_used(cotangents)
            if isinstance(cotangents[0], SymbolicZero):
                return (None,) * len(values)
            gradients = iter(backward(values, loss, saved, cotangents[0]))
            return tuple(next(gradients) if leaf.trained else None for leaf in program.step.leaves)

        self._function = jax.custom_vjp(primal)
        self._function.defvjp(run, pull, symbolic_zeros=True)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Return the loss, or loss and auxiliary output, for the leaves of some arguments."""
        return jax.tree_util.tree_unflatten(self.program.step.output, self._function(*leaves))

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loss, or loss and auxiliary output, for arguments like the sample."""
        return self(self.leaves(Arguments(args, kwargs)))

    def leaves(self, given: Arguments) -> list[Any]:
        """Return the leaves of the arguments of a call.

        Raise ExecutionError with the first argument that differs from the sample.
        """
        pairs, tree = jax.tree_util.tree_flatten_with_path(given)
        step = self.program.step
        if tree != step.tree:
            names = [path_name(path) for path, _ in pairs]
            known = [leaf.path for leaf in step.leaves]
            other = next((name for name in (*names, *known) if (name in names) != (name in known)), "")
            where = f"{other} is {'new' if other in names else 'missing'}" if other else "other kinds of containers"
            raise ExecutionError(
                f"the arguments differ in structure from the sample: {where}{ADVICE}", "jax-other-call"
            )
        for (path, value), leaf in zip(pairs, step.leaves, strict=True):
            shape, dtype = array_type(value, path_name(path))
            if (shape, dtype) != (leaf.shape, leaf.dtype):
                raise ExecutionError(
                    f"{leaf.path} has shape {shape} and type {dtype}; the sample had {leaf.shape} and {leaf.dtype}"
                    + ADVICE,
                    "jax-other-call",
                )
        return [value for _, value in pairs]

    def _check_wanted(self, perturbed: Sequence[bool]) -> None:
        """Refuse gradients that the step does not compute; they would be zero silently."""
        for leaf, wanted in zip(self.program.step.leaves, perturbed, strict=True):
            if wanted and not leaf.trained and jax.dtypes.issubdtype(leaf.dtype, np.inexact):
                raise ExecutionError(
                    f"the step has no gradient by {leaf.path}: name its argument by wrt",
                    "jax-not-trained",
                )

    def _check_used(self, cotangents: Sequence[Any]) -> None:
        """Refuse gradients of the auxiliary output; they would be lost silently."""
        for each in cotangents[1:]:
            if not isinstance(each, SymbolicZero) and jnp.issubdtype(each.dtype, jnp.inexact):
                raise ExecutionError(
                    "the auxiliary output has no gradient: add it to the loss inside of the function, or apply "
                    "jax.lax.stop_gradient to it",
                    "jax-auxiliary",
                )


ADVICE = ' (other_shapes="capture" captures each kind of call)'
