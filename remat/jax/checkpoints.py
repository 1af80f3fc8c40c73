"""Functions with ``jax.checkpoint``, run with another policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core

from remat.jax.capture import traced
from remat.jax.inlining import CHECKPOINTS
from remat.jax.step import Arguments


class Checkpointed(NamedTuple):
    """A traced function and its checkpointed regions.

    Attributes
    ----------
    program : ClosedJaxpr
    output : PyTreeDef
    regions : int
        Calls of ``jax.checkpoint``; 0 if the function has none, and is one region itself.
    names : tuple of str
        Names that ``checkpoint_name`` gives, in order.
    """

    program: Any
    output: Any
    regions: int
    names: tuple[str, ...]

    def under(self, policy: Any) -> Callable[..., Any]:
        """Return the function with this policy in all regions."""
        program = core.ClosedJaxpr(_with_policy(self.program.jaxpr, policy), self.program.consts)

        def flat(*leaves: Any) -> Any:
            return jax.tree_util.tree_unflatten(self.output, core.jaxpr_as_fun(program)(*leaves))

        whole = flat if self.regions else jax.checkpoint(flat, policy=policy)
        return lambda *args, **kwargs: whole(*jax.tree_util.tree_leaves(Arguments(args, kwargs)))


def checkpointed(function: Callable[..., Any], given: Arguments, *, label: str) -> Checkpointed:
    """Trace a function and return its regions and names.

    Raise CaptureError if JAX cannot trace it.
    """
    trees: list[Any] = []

    def whole(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        found = function(*args, **kwargs)
        trees.append(jax.tree_util.tree_structure(found))
        return found

    program = traced(whole, (given.args, given.kwargs), {}, label=label)
    equations = list(_equations(program.jaxpr))
    names = dict.fromkeys(str(e.params["name"]) for e in equations if e.primitive.name == "name")
    regions = sum(e.primitive.name in CHECKPOINTS for e in equations)
    return Checkpointed(program, trees[-1], regions, tuple(names))


def _equations(jaxpr: Any) -> Any:
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def _with_policy(jaxpr: Any, policy: Any) -> Any:
    """Return a jaxpr with this policy in all checkpointed regions, also in those of the jaxprs that it calls."""
    return jaxpr.replace(eqns=[equation.replace(params=_changed(equation, policy)) for equation in jaxpr.eqns])


def _changed(equation: Any, policy: Any) -> dict[str, Any]:
    params = {name: _value(value, policy) for name, value in equation.params.items()}
    return params | {"policy": policy} if equation.primitive.name in CHECKPOINTS else params


def _value(value: Any, policy: Any) -> Any:
    if isinstance(value, core.ClosedJaxpr):
        return value.replace(jaxpr=_with_policy(value.jaxpr, policy))
    if isinstance(value, core.Jaxpr):
        return _with_policy(value, policy)
    return type(value)(_value(each, policy) for each in value) if type(value) in {tuple, list} else value
