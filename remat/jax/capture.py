"""Capture of a function of JAX and its gradient as a graph, without memory for its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from remat.errors import CaptureError, GraphError
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.formats.hlo.scopes import module_path
from remat.io.limits import MAX_STEPS
from remat.jax.captured import Captured
from remat.jax.costs import MOVES, cost_of, jaxprs_of
from remat.jax.describing import description
from remat.jax.inlining import Inliner, Stack, Trace, TracedOp, base_of, bytes_of, renamed, source_line
from remat.runtime.text import one_line
from remat.schedule import Schedule

MODES = ("training", "inference")
_RANDOM = ("random_", "threefry2x32", "rng_")


def capture(  # noqa: PLR0913 - independent options of users
    function: Callable[..., Any],
    *args: Any,
    wrt: int | Sequence[int] = 0,
    kwargs: Mapping[str, Any] | None = None,
    mode: str = "training",
    has_aux: bool = False,
    unroll: bool = False,
    views: bool = True,
    name: str | None = None,
) -> Captured:
    """Capture the value and gradient of a function of JAX as a graph, and the order of its trace as a schedule.

    Calls are inlined: ``jit``, ``custom_jvp``, ``custom_vjp`` and ``jax.checkpoint``. Recomputations of a checkpoint
    are recomputations in the schedule; the graph has each op once. Arguments and constants are constant memory. Costs
    are floating-point operations. Sizes are those before XLA fuses ops and lays out memory.

    Parameters
    ----------
    function : callable
        Returns a scalar in training.
    *args
        Arguments: arrays, or ``jax.ShapeDtypeStruct`` instead, which takes no memory.
    wrt : int or sequence of int
        Arguments to differentiate by: the parameters.
    kwargs : mapping, optional
        Keyword arguments.
    mode : str
        ``"training"``: the value and its gradients; ``"inference"``: the function alone.
    has_aux : bool
        True if the function returns more than the scalar, as for ``jax.value_and_grad``.
    unroll : bool
        Give each iteration of a ``scan`` ops of its own; otherwise a ``scan`` is one op.
    views : bool
        Treat reshapes, which XLA runs in place, as views instead of ops.
    name : str, optional
        Name of the graph; default: the function's.

    Raises
    ------
    CaptureError
        If JAX cannot trace the function, if sizes are unknown (``shard_map``, unknown extents), or if there is nothing
        to compute.

    Examples
    --------
    >>> import jax
    >>> from jax import numpy as jnp
    >>> def loss(w, x):
    ...     return jnp.sum(jax.checkpoint(jnp.sin)(x @ w))
    >>> shape = jax.ShapeDtypeStruct((4, 4), "float32")
    >>> captured = capture(loss, shape, shape)
    >>> captured.schedule.computes()[:3], captured.graph.constant_memory
    (['dot_general.1', 'sin.1', 'reduce_sum.1'], 128)
    """
    if mode not in MODES:
        raise CaptureError(f"mode {mode!r} is not one of {', '.join(MODES)}", "mode")
    label = name_of(function, name)
    chosen = positions(wrt)
    whole = jax.value_and_grad(function, argnums=wrt if isinstance(wrt, int) else chosen, has_aux=has_aux)
    closed = traced(whole if mode == "training" else function, args, kwargs or {}, label=label)
    sizes = _constant_bytes(closed, args, {position % max(1, len(args)) for position in chosen}, mode)
    return captured_program(closed, label, sizes, mode=mode, unroll=unroll, views=views)


def name_of(function: Callable[..., Any], name: str | None = None) -> str:
    """Return the name of a graph: the given one, or the function's."""
    return str(name or getattr(function, "__name__", type(function).__name__))


def positions(wrt: int | Sequence[int]) -> tuple[int, ...]:
    """Return the positions of the arguments to differentiate by."""
    return (wrt,) if isinstance(wrt, int) else tuple(wrt)


def traced(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, label: str) -> Any:
    """Return the jaxpr of a function.

    Raise CaptureError with the reason if JAX cannot trace it.
    """
    try:
        return jax.make_jaxpr(function)(*args, **kwargs)
    except Exception as error:
        raise CaptureError(
            f"jax cannot trace {label}: {type(error).__name__}: {one_line(str(error))[:300]}", "untraceable"
        ) from error


def captured_program(
    closed: Any,
    label: str,
    constant_bytes: Mapping[str, int],
    *,
    mode: str,
    unroll: bool,
    views: bool = True,
    names: bool = False,
) -> Captured:
    """Return the graph of a traced program, of which the first result is the loss in training.

    `names`: make an op of each ``checkpoint_name``, with a tensor of its own. Raise CaptureError as :func:`capture`.
    """
    inliner = Inliner(unroll=unroll, views=views, most=MAX_STEPS, names=names)
    arguments = [inliner.constant() for _ in closed.jaxpr.invars]
    results = inliner.run(closed.jaxpr, [inliner.constant(each) for each in closed.consts], arguments)
    trace = inliner.finish()
    leaves = (inliner.meant.get(tensor, tensor) for value in results for tensor in _leaves(value))
    outputs = list(dict.fromkeys(leaves))
    loss = next(iter(_leaves(results[0])), None) if mode == "training" and results else None
    needed = _needed(trace, outputs)
    kept = [op for number, op in enumerate(trace.ops) if number in needed]
    if not kept:
        raise CaptureError(f"{label} computes nothing", "computes-nothing")
    steps = [(place, op) for place, op in enumerate(trace.steps) if op in needed]
    try:
        graph = _graph(trace, kept, outputs, name=label, loss=loss, mode=mode, constant_bytes=constant_bytes)
    except GraphError as error:
        raise CaptureError(f"{label}: {error}") from None
    computes = [graph.op_index[trace.ops[op].name] for _, op in steps]
    return Captured(
        graph=graph,
        schedule=Schedule.of_computes(graph, computes, source="JAX"),
        equations=tuple(op.equation for op in kept),
        jaxpr=closed,
        boundary=len(steps) if trace.boundary is None else sum(place < trace.boundary for place, _ in steps),
        keys=tuple(_key(trace, op) for op in kept),
        results=tuple(_named(trace, inliner.meant, value) for value in results),
        values={trace.tensors[t][0]: trace.tensors[t][1] for op in kept for t in op.outputs},
        constants=inliner.constants,
        mode=mode,
        remarks=tuple(trace.remarks),
    )


def _graph(
    trace: Trace,
    ops: Sequence[TracedOp],
    outputs: Sequence[int],
    *,
    name: str,
    loss: int | None,
    mode: str,
    constant_bytes: Mapping[str, int],
) -> ComputeGraph:
    """Build the graph of some ops of a trace."""
    costs = {op.name: cost_of(op.equation) for op in ops}
    meta = {
        "modules": {op.name: path for op in ops if (path := module_path(f"{op.scope}/op"))},
        "source_lines": {op.name: line for op in ops if (line := source_line(op.equation))},
        "random_ops": [op.name for op in ops if op.equation.primitive.name.startswith(_RANDOM)],
        "effects": list(trace.effects),
        "cost_kinds": _kinds(costs, [(op.name, op.equation.primitive.name) for op in ops]),
        "constant_bytes": constant_bytes,
        **description(trace, ops),
    }
    builder = GraphBuilder(
        name, cost_unit="flop", source=f"jax {jax.__version__}", constant_memory=sum(constant_bytes.values()), meta=meta
    )
    names = [name for name, _ in trace.tensors]
    for op in ops:
        phase = ("backward" if op.is_backward else "forward") if mode == "training" else ""
        builder.op(
            op.name,
            inputs=[names[t] for t in op.inputs],
            outputs={names[t]: bytes_of(trace.tensors[t][1]) for t in op.outputs},
            cost=costs[op.name],
            workspace=_workspace(op.equation),
            type=op.equation.primitive.name,
            phase="loss" if loss in op.outputs else phase,
            recomputable=op.name not in meta["effects"],
        )
    builder.output(*(names[t] for t in outputs))
    return builder.build([op.name for op in ops])


def _constant_bytes(closed: Any, args: Sequence[Any], chosen: set[int], mode: str) -> dict[str, int]:
    """Return the bytes of parameters, other inputs, and constants of the program."""
    kinds = {"parameter": 0, "input": 0, "constant": 0}
    sizes = [bytes_of(v.aval) for v in closed.jaxpr.invars]
    place = 0
    for position, argument in enumerate(args):
        count = len(jax.tree_util.tree_leaves(argument))
        kind = "parameter" if position in chosen and mode == "training" else "input"
        kinds[kind] += sum(sizes[place : place + count])
        place += count
    kinds["input"] += sum(sizes[place:])
    kinds["constant"] = sum(bytes_of(v.aval) for v in closed.jaxpr.constvars)
    return kinds


def _leaves(value: Any) -> list[int]:
    if isinstance(value, Stack | tuple):  # a tuple is a stack after `renamed`
        return [leaf for part in (value.parts if isinstance(value, Stack) else value) for leaf in _leaves(part)]
    value = base_of(value)
    return [value] if isinstance(value, int) and value >= 0 else []


def _needed(trace: Trace, outputs: Sequence[int]) -> set[int]:
    """Return the ops whose results are read, and those with effects."""
    writer = {tensor: number for number, op in enumerate(trace.ops) for tensor in op.outputs}
    effects = set(trace.effects)
    waiting = [writer[tensor] for tensor in outputs]
    waiting += [number for number, op in enumerate(trace.ops) if op.name in effects]
    found: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += [writer[tensor] for tensor in trace.ops[number].inputs]
    return found


def _key(trace: Trace, op: TracedOp) -> tuple[Any, ...]:
    """Return an op's key, with tensors by their names."""
    primitive, parameters, _, results = op.key
    return primitive, parameters, tuple(_named(trace, {}, value) for value in op.read), results


def _named(trace: Trace, meant: Mapping[int, int], value: Any) -> Any:
    """Return a value with tensors by their names."""
    settled = renamed(value, meant)
    return renamed(settled, {t: trace.tensors[t][0] for t in _leaves(settled)})


def _kinds(costs: Mapping[str, int], primitives: list[tuple[str, str]]) -> dict[str, int]:
    kinds = {"product": 0, "arithmetic": 0, "movement": 0}
    for name, primitive in primitives:
        kind = "product" if primitive in ("dot_general", "conv_general_dilated") else "arithmetic"
        kinds["movement" if primitive in MOVES else kind] += costs[name]
    return kinds


def _workspace(equation: Any) -> int:
    """Return the most bytes that an op holds in addition to its inputs and outputs, such as the body of a loop."""
    if equation.primitive.name in CPU_WORKSPACES:
        return CPU_WORKSPACES[equation.primitive.name](equation) if jax.default_backend() == "cpu" else 0
    if equation.primitive.name not in ("scan", "while", "cond"):
        return 0
    return max((_peak(body) for body in jaxprs_of(equation)), default=0)


def _transposed_bytes(equation: Any) -> int:
    """Return the bytes of copies that XLA's convolutions for CPUs make of images and kernels not in NHWC and HWIO.

    The gradient of a kernel takes its images as kernels, with the batch as channels: copies of both operands.
    """
    rank = len(equation.outvars[0].aval.shape)
    image, kernel = (0, rank - 1, *range(1, rank - 1)), (rank - 1, rank - 2, *range(rank - 2))
    orders = zip(equation.params["dimension_numbers"], (image, kernel, image), strict=True)
    values = (*equation.invars, *equation.outvars)
    return sum(
        bytes_of(value.aval) for value, (given, native) in zip(values, orders, strict=True) if tuple(given) != native
    )


def _positions_bytes(equation: Any) -> int:
    """Return the bytes by which XLA for CPUs finds the maxima of a pooling, to scatter a gradient to them.

    The coordinates of each element of the operand, as 32-bit numbers; the largest elements with theirs; and a copy of
    the gradient.
    """
    gradient, operand = (each.aval for each in equation.invars)
    coordinates = 4 * len(operand.shape)
    return coordinates * (operand.size + gradient.size) + 2 * bytes_of(gradient)


#: Workspaces of primitives in XLA for CPUs.
CPU_WORKSPACES = {"conv_general_dilated": _transposed_bytes, "select_and_scatter_add": _positions_bytes}


def _peak(jaxpr: Any) -> int:
    """Return the most bytes held by values of a jaxpr, except arguments and results, each until its last use."""
    last: dict[Any, int] = {}
    for place, equation in enumerate(jaxpr.eqns):
        last.update({v: place for v in (*equation.invars, *equation.outvars) if not hasattr(v, "val")})
    outside = {v for v in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars) if not hasattr(v, "val")}
    ends: dict[int, int] = {}
    now = peak = 0
    for place, equation in enumerate(jaxpr.eqns):
        for v in equation.outvars:
            if v not in outside:
                now += bytes_of(v.aval)
                ends[last[v]] = ends.get(last[v], 0) + bytes_of(v.aval)
        inner = max((_peak(body) for body in jaxprs_of(equation)), default=0)
        peak = max(peak, now + inner)
        now -= ends.pop(place, 0)
    return peak
