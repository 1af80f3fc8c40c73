"""Training steps of a loss: captured with the cotangent of the loss as an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import jax
from jax import numpy as jnp

from remat.errors import ExecutionError
from remat.jax.capture import captured_program, traced
from remat.jax.captured import Captured
from remat.jax.inlining import base_of, bytes_of, source_line


class Arguments(NamedTuple):
    """Arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class StepOptions(TypedDict, total=False):
    """Options of the capture of a step, which :func:`remat.jax.rematerialize` documents."""

    kwargs: Mapping[str, Any]
    wrt: int | Sequence[int]
    has_aux: bool
    unroll: bool
    name: str


class Leaf(NamedTuple):
    """An array among the arguments.

    Attributes
    ----------
    path : str
        Place among the arguments, as ``args[0]['w']``.
    shape : tuple of int
    dtype : numpy.dtype or extended type
    trained : bool
        True if the step returns its gradient.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    trained: bool


@dataclass(frozen=True, eq=False)
class Step:
    """A loss and its gradients as a graph.

    Attributes
    ----------
    captured : Captured
        Arguments: `leaves` in turn, then the cotangent of the loss. Results: the loss, the leaves of the auxiliary
        output, and the gradients of the trained leaves.
    leaves : tuple of Leaf
    tree : PyTreeDef
        Structure of the arguments.
    output : PyTreeDef
        Structure of the loss, or of the pair of loss and auxiliary output.
    """

    captured: Captured
    leaves: tuple[Leaf, ...]
    tree: Any
    output: Any

    @property
    def cotangent(self) -> int:
        """Number of the loss's cotangent in the keys of `captured`."""
        return -1 - len(self.leaves)

    def results(self) -> tuple[tuple[Any, Any], ...]:
        """Results of the program with shapes and types; those of the forward pass first."""
        return tuple(zip(self.captured.results, (v.aval for v in self.captured.jaxpr.jaxpr.outvars), strict=True))

    @property
    def early_tensors(self) -> set[str]:
        """Tensors of the loss and of the auxiliary output."""
        return tensors_of(self.captured.results[: self.output.num_leaves])

    @property
    def late(self) -> frozenset[str]:
        """Ops that depend on the cotangent: those of the backward pass."""
        tensors: set[str] = set()
        ops: set[str] = set()
        for op, key in zip(self.captured.graph.ops, self.captured.keys, strict=True):
            if any(base_of(read) == self.cotangent for read in key[2]) or not tensors.isdisjoint(op.inputs):
                ops.add(op.name)
                tensors.update(op.outputs)
        return frozenset(ops)


def tensors_of(values: Iterable[Any]) -> set[str]:
    """Return the tensors in values in the numbering of :attr:`Captured.keys`."""
    found: set[str] = set()
    for value in values:
        if isinstance(value, tuple):
            found |= tensors_of(value)
        elif isinstance(base := base_of(value), str):
            found.add(base)
    return found


def capture_step(
    loss: Callable[..., Any],
    given: Arguments,
    *,
    wrt: tuple[int, ...],
    has_aux: bool,
    unroll: bool,
    label: str,
    names: bool = False,
) -> Step:
    """Capture a loss and its gradients by the floating-point leaves of some arguments.

    Raise CaptureError if JAX cannot trace the loss or its gradient, and ExecutionError for a loss that cannot run by a
    schedule: effects, no scalar, or nothing to differentiate by. `names`: make an op of each ``checkpoint_name``.
    """
    leaves, tree = leaves_of(given, wrt)
    flat = jax.tree_util.tree_leaves(given)
    made: list[Any] = []

    def whole(values: Sequence[Any], cotangent: Any) -> Any:
        def of(trained: Sequence[Any]) -> Any:
            rest = iter(trained)
            mixed = [next(rest) if leaf.trained else value for leaf, value in zip(leaves, values, strict=True)]
            args, kwargs = jax.tree_util.tree_unflatten(tree, mixed)
            found = loss(*args, **kwargs)
            made.append(jax.tree_util.tree_structure(found))
            return found

        chosen = [value for leaf, value in zip(leaves, values, strict=True) if leaf.trained]
        if has_aux:
            value, pull, aux = jax.vjp(of, chosen, has_aux=True)
        else:
            (value, pull), aux = jax.vjp(of, chosen), None
        return value, aux, pull(cotangent.astype(value.dtype))[0]

    scalar = _scalar_type(loss, given, has_aux=has_aux, label=label)
    closed = traced(whole, (flat, jax.ShapeDtypeStruct((), scalar)), {}, label=label)
    sizes = {"parameter": 0, "input": 0, "constant": sum(bytes_of(v.aval) for v in closed.jaxpr.constvars)}
    for leaf, v in zip(leaves, closed.jaxpr.invars, strict=False):
        sizes["parameter" if leaf.trained else "input"] += bytes_of(v.aval)
    captured = captured_program(closed, label, sizes, mode="training", unroll=unroll, names=names)
    _check_effects(captured)
    return Step(captured, leaves, tree, made[-1])


def value_and_gradients(loss: Callable[..., Any], wrt: tuple[int, ...], has_aux: bool) -> Callable[..., Any]:
    """Return the step of a loss as JAX derives it; gradients of integers are empty."""
    return jax.value_and_grad(loss, argnums=wrt, has_aux=has_aux, allow_int=True)


def leaves_of(given: Arguments, wrt: tuple[int, ...]) -> tuple[tuple[Leaf, ...], Any]:
    """Return the arrays among the arguments and their structure.

    Raise ExecutionError if there is nothing to differentiate by.
    """
    pairs, tree = jax.tree_util.tree_flatten_with_path(given)
    if wrong := [number for number in wrt if not -len(given.args) <= number < len(given.args)]:
        raise ExecutionError(f"wrt names argument {wrong[0]}, but the sample has {len(given.args)}", "jax-wrt")
    chosen = {number % len(given.args) for number in wrt}
    leaves = []
    for path, value in pairs:
        shape, dtype = array_type(value, path_name(path))
        inside = path[0].name == "args" and path[1].idx in chosen
        leaves.append(Leaf(path_name(path), shape, dtype, inside and jax.dtypes.issubdtype(dtype, jnp.inexact)))
    if not any(leaf.trained for leaf in leaves):
        words = ", ".join(map(str, sorted(chosen)))
        raise ExecutionError(
            f"argument {words} has no floating-point arrays to differentiate by; name the parameters by wrt", "jax-wrt"
        )
    return tuple(leaves), tree


def path_name(path: Sequence[Any]) -> str:
    """Return the place of a leaf among the arguments, as ``args[0]['w']``."""
    return jax.tree_util.keystr(path).removeprefix(".")


def array_type(value: Any, path: str) -> tuple[tuple[int, ...], Any]:
    """Return shape and type of an argument; raise ExecutionError if it is no array."""
    try:
        aval = value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)
    except TypeError:
        raise ExecutionError(
            f"{path} is a {type(value).__name__}, not an array: bind it by functools.partial", "jax-no-array"
        ) from None
    return tuple(aval.shape), aval.dtype


def _scalar_type(loss: Callable[..., Any], given: Arguments, *, has_aux: bool, label: str) -> Any:
    """Return the type of the loss; raise ExecutionError if it is no scalar."""
    try:
        found = jax.eval_shape(loss, *given.args, **given.kwargs)
    except Exception:  # the capture has the message
        return jnp.float32
    if has_aux and not (isinstance(found, tuple) and len(found) == 2):
        raise ExecutionError(f"{label} returns no pair of loss and auxiliary output, as has_aux says", "jax-no-scalar")
    value = found[0] if has_aux else found
    if isinstance(value, tuple) and len(value) == 2 and getattr(value[0], "shape", None) == ():
        raise ExecutionError(f"{label} returns a pair: give has_aux=True if the second is auxiliary", "jax-no-scalar")
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ExecutionError(f"{label} returns {_told(value)}, not a real scalar", "jax-no-scalar")
    return value.dtype


def _told(value: Any) -> str:
    if not hasattr(value, "shape"):
        return f"a {type(value).__name__}"
    return f"an array of shape {value.shape} and type {value.dtype}"


def _check_effects(captured: Captured) -> None:
    effects: Mapping[str, str] = captured.graph.meta.get("source_lines", {})
    for name in captured.graph.meta["effects"]:
        place = effects.get(name) or source_line(captured.equations[captured.graph.op_index[name]])
        raise ExecutionError(
            f"op {name!r}{f' ({place})' if place else ''} has a side effect, which a recomputation could repeat: "
            "remove it, or return the value through has_aux",
            "jax-effect",
        )
