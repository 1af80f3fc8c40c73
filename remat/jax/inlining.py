"""Single pass through a jaxpr that inlines calls, folds views and detects recomputations.

JAX marks equations of a ``checkpoint`` region as recomputed (``rematted_computation`` in their name stack). Such an
equation is a recomputation if it does what an earlier one did to the same values. It is a step of that equation's op.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from remat.errors import CaptureError
from remat.jax.costs import jaxprs_of
from remat.jax.keys import parameters_key

#: Calls that can be inlined, and the parameter that holds the body.
CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr",
    "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr", "remat": "jaxpr",
}  # fmt: skip
#: Primitives of ``jax.checkpoint``, by its names in several versions of JAX.
CHECKPOINTS = ("remat2", "remat", "checkpoint")
#: Primitives whose results are their operands.
RENAMES = frozenset({
    "name", "stop_gradient", "optimization_barrier", "sharding_constraint", "layout_constraint", "pvary", "pcast",
    "reshard", "random_wrap", "random_unwrap",
})  # fmt: skip
#: Primitives that give the same bytes another shape.
VIEWS = frozenset({"reshape", "squeeze", "expand_dims"})
#: Primitives whose sizes are those of one device's part of the data.
PER_DEVICE = frozenset({"shard_map", "xla_pmap"})
OFFLOADED = (
    "values that are moved between memories are ops of their own: what is computed from them is no recomputation"
)
RECOMPUTED = "rematted_computation"
TRANSPOSED = "transpose("

#: A value: the number of a tensor; a negative number for a constant; a literal; or the stacked results of a loop.
Value = Any


@dataclass(frozen=True)
class Number:
    """A literal of the program; literals are equal if their text and type are."""

    text: str
    aval: str
    value: Any = field(compare=False, repr=False)


@dataclass(frozen=True)
class Stack:
    """Stacked results of an unrolled loop: one value per iteration."""

    parts: tuple[Value, ...]


#: Identity of an equation: primitive, parameters, classes of the values read, shapes and types of its results.
Key = tuple[str, object, tuple[Value, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Part:
    """View of one item of an array along its first axis, as an unrolled loop reads a mapped argument."""

    base: Value
    index: int
    shape: tuple[int, ...]


def base_of(value: Value) -> Value:
    """Return the value that a value is a part of, or the value itself."""
    while isinstance(value, Part):
        value = value.base
    return value


@dataclass(frozen=True, eq=False)
class TracedOp:
    """Equation of the captured function, and the numbers of the tensors that it reads and writes."""

    name: str
    equation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scope: str
    is_backward: bool
    region: int
    key: Key
    read: tuple[Value, ...]


@dataclass(eq=False)
class Trace:
    """Result of a pass through a jaxpr."""

    ops: list[TracedOp] = field(default_factory=list)
    tensors: list[tuple[str, Any]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Op of each step."""
    boundary: int | None = None
    """First step of the backward pass."""
    effects: list[str] = field(default_factory=list)
    """Ops with effects, in order."""
    remarks: dict[str, None] = field(default_factory=dict)
    """Remarks in order, each once."""


class Inliner:
    """Traverses a jaxpr and the jaxprs that it calls.

    Parameters
    ----------
    unroll : bool
        Give each iteration of a ``scan`` ops of its own.
    views : bool
        Treat reshapes that move nothing as views.
    most : int
        Largest number of steps.
    names : bool
        Make an op of each ``checkpoint_name``.
    """

    def __init__(self, *, unroll: bool, views: bool, most: int, names: bool = False) -> None:
        self.unroll = unroll
        self.views = views
        self.names = names
        self.most = most
        self.trace = Trace()
        self._known: dict[Key, list[int]] = {}
        self._late: set[int] = set()  # tensors of the backward pass
        self._counts: dict[str, int] = {}
        self.constants: dict[int, Any] = {}
        self._constants = 0
        self._regions = 0
        self._region = 0
        self._classes: dict[int, object] = {}
        self._numbers: dict[Key, int] = {}
        self._repeated: list[_Repeated] = []
        self.meant: dict[int, int] = {}
        self._token: int | None = None

    def constant(self, known: Any = None) -> int:
        """Return a new value in constant memory; `known`: its array if it is one of the program."""
        self._constants -= 1
        if known is not None:
            self.constants[self._constants] = known
        return self._constants

    def run(self, jaxpr: Any, constants: Sequence[Value], arguments: Sequence[Value], scope: str = "") -> list[Value]:
        """Return the results of a jaxpr for some values."""
        values: dict[Any, Value] = {}
        values.update(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        for equation in jaxpr.eqns:
            read = [_literal(v) if hasattr(v, "val") else values[v] for v in equation.invars]
            stack = str(equation.source_info.name_stack)
            written = self._equation(equation, read, _joined(scope, stack))
            values.update(zip(equation.outvars, written, strict=True))
        return [_literal(v) if hasattr(v, "val") else values[v] for v in jaxpr.outvars]

    def _equation(self, equation: Any, read: list[Value], scope: str) -> list[Value]:
        name = equation.primitive.name
        if self.trace.boundary is None and TRANSPOSED in scope:
            self.trace.boundary = len(self.trace.steps)
        if name in PER_DEVICE:
            place = source_line(equation) or "in a place that jax does not say"
            raise CaptureError(f"{name} cannot be captured: its sizes are those of one device ({place})")
        if name in CALLS and CALLS[name] in equation.params:
            return self._call(equation, read, scope)
        if name == "scan" and self.unroll:
            return self._scan(equation, read, scope)
        read = [self._whole(value, v.aval, equation, scope) for value, v in zip(read, equation.invars, strict=True)]
        if self._is_renaming(equation):
            return read[: len(equation.outvars)]
        return self._op(equation, read, scope)

    def _call(self, equation: Any, read: list[Value], scope: str) -> list[Value]:
        body = equation.params[CALLS[equation.primitive.name]]
        inner, constants = getattr(body, "jaxpr", body), getattr(body, "consts", ())
        outer = self._region
        if equation.primitive.name in CHECKPOINTS and equation.params.get("differentiated"):
            self._regions += 1
            self._region = self._regions
        shared = [self.constant(each) for each in constants]
        written = self.run(inner, shared, read, scope)
        self._region = outer
        return written

    def _is_renaming(self, equation: Any) -> bool:
        name = equation.primitive.name
        if name in RENAMES:
            return not (self.names and name == "name")
        if not equation.outvars or len(equation.invars) < 1:
            return False
        a, b = equation.invars[0].aval, equation.outvars[0].aval
        if self.views and name in VIEWS and equation.params.get("dimensions" if name == "reshape" else "") is None:
            return True
        same = getattr(a, "shape", None) == getattr(b, "shape", 0) and getattr(a, "dtype", None) == b.dtype
        if name == "device_put":
            return same and _space(a) == _space(b)
        if name == "reduce_precision":  # marks a saved value in JAX
            information = _float_bits(b.dtype)
            return same and (equation.params["exponent_bits"], equation.params["mantissa_bits"]) == information
        return same and name in ("convert_element_type", "broadcast_in_dim", *VIEWS)

    def _scan(self, equation: Any, read: list[Value], scope: str) -> list[Value]:
        params = equation.params
        body, length = params["jaxpr"], int(params["length"])
        inner, constants = getattr(body, "jaxpr", body), getattr(body, "consts", ())
        fixed, carried = _scan_sizes(params)
        shared = [self.constant(each) for each in constants]
        carry = read[fixed : fixed + carried]
        ran: list[list[Value]] = [[] for _ in range(length)]
        for k in reversed(range(length)) if params["reverse"] else range(length):
            sliced = [
                value.parts[k] if isinstance(value, Stack) else Part(value, k, tuple(v.aval.shape))
                for value, v in zip(read[fixed + carried :], equation.invars[fixed + carried :], strict=True)
            ]
            self._check(length)
            written = self.run(inner, shared, [*read[:fixed], *carry, *sliced], _joined(scope, f"scan_{k}"))
            carry, ran[k] = written[:carried], written[carried:]
        stacked = [Stack(tuple(row[i] for row in ran)) for i in range(len(equation.outvars) - carried)]
        return [*carry, *stacked]

    def _whole(self, value: Value, aval: Any, equation: Any, scope: str) -> Value:
        """Return a value that an equation can read; a separate op assembles stacked results."""
        if not isinstance(value, Stack):
            return value
        parts = [self._whole(part, None, equation, scope) for part in value.parts]
        name = self._name("stack")
        written = self._tensor(name, aval if aval is not None else equation.outvars[0].aval)
        key: Key = ("stack", (), tuple(map(self._class, parts)), (str(aval),))
        late = self._backward(scope, parts)
        self._add(
            TracedOp(name, _stacking(aval), _tensors(parts), (written,), scope, late, self._region, key, tuple(parts))
        )
        return written

    def _op(self, equation: Any, read: list[Value], scope: str) -> list[Value]:
        avals = tuple(str(v.aval) for v in equation.outvars)
        classes = tuple(map(self._class, read))
        key: Key = (equation.primitive.name, parameters_key(equation.params), classes, avals)
        if not equation.effects and RECOMPUTED in scope:
            before = [op for op in self._known.get(key, ()) if self.trace.ops[op].region != self._region]
            if before:
                return self._again(before, key, read)
        name = self._name(equation.primitive.name)
        single = len(equation.outvars) == 1
        written = [self._tensor(name if single else f"{name}:{i}", v.aval) for i, v in enumerate(equation.outvars)]
        inputs = _tensors(read)
        outputs = tuple(written)
        if equation.effects or not written:
            inputs = (*inputs, *(() if self._token is None else (self._token,)))
            self._token = self._tensor(f"{name}:done", None)
            outputs = (*outputs, self._token)
            self.trace.effects.append(name)
        op = TracedOp(
            name, equation, inputs, outputs, scope, self._backward(scope, read), self._region, key, tuple(read)
        )
        self._known.setdefault(key, []).append(self._add(op))
        if equation.primitive.name == "device_put":
            self.trace.remarks[OFFLOADED] = None
        if any(True for _ in jaxprs_of(equation)):
            self._remark(equation)
        return list(written)

    def _again(self, before: list[int], key: Key, read: list[Value]) -> list[Value]:
        """Add a step that recomputes one of some ops; `finish` selects it by its readers."""
        first = self.trace.ops[before[0]]
        outputs = list(first.outputs)
        if len(before) > 1:
            outputs = [self._tensor(f"{first.name} again", None) for _ in outputs]
            self._classify(outputs, key)
        self._repeated.append(_Repeated(len(self.trace.steps), before, tuple(outputs), tuple(read)))
        self._step(before[0])
        return outputs

    def finish(self) -> Trace:
        """Select for each recomputation, among several equal ops, the one whose outputs its readers read."""
        meant: dict[int, int] = {}
        writer = {tensor: number for number, op in enumerate(self.trace.ops) for tensor in op.outputs}
        for step in reversed(self._repeated):
            op = step.candidates[0]
            if len(step.candidates) > 1:
                wanted = next((writer[meant[tensor]] for tensor in step.outputs if tensor in meant), None)
                op = step.candidates[-1] if wanted not in step.candidates or wanted is None else wanted
                for mine, real in zip(step.outputs, self.trace.ops[op].outputs, strict=True):
                    meant.setdefault(mine, real)
                self.trace.steps[step.place] = op
            for mine, real in zip(map(base_of, step.read), map(base_of, self.trace.ops[op].read), strict=True):
                if isinstance(mine, int) and mine >= 0 and mine not in writer:
                    meant.setdefault(mine, real)
        self.trace.ops = [
            replace(op, inputs=_tensors([meant.get(t, t) for t in op.inputs]), read=renamed(op.read, meant))
            for op in self.trace.ops
        ]
        self.meant = meant
        return self.trace

    def _classify(self, tensors: Sequence[int], key: Key) -> None:
        number = self._numbers.setdefault(key, len(self._numbers))
        self._classes.update((tensor, ("class", number, place)) for place, tensor in enumerate(tensors))

    def _class(self, value: Value) -> object:
        """Return the same object for values that are computed in the same way."""
        if isinstance(value, Part):
            return "part", self._class(value.base), value.index
        return self._classes.get(value, value) if isinstance(value, int) else value

    def _backward(self, scope: str, read: Sequence[Value]) -> bool:
        if TRANSPOSED in scope and RECOMPUTED not in scope:
            return True
        return any(tensor in self._late for tensor in _tensors(read))

    def _add(self, op: TracedOp) -> int:
        self.trace.ops.append(op)
        self._classify(op.outputs, op.key)
        if op.is_backward:
            self._late.update(op.outputs)
        self._step(len(self.trace.ops) - 1)
        return len(self.trace.ops) - 1

    def _step(self, op: int) -> None:
        self._check(1)
        self.trace.steps.append(op)

    def _check(self, more: int) -> None:
        if len(self.trace.steps) + more > self.most:
            raise CaptureError(f"more than {self.most:,} steps; loops that are not unrolled are one op each")

    def _name(self, primitive: str) -> str:
        self._counts[primitive] = self._counts.get(primitive, 0) + 1
        return f"{primitive}.{self._counts[primitive]}"

    def _tensor(self, name: str, aval: Any) -> int:
        self.trace.tensors.append((name, aval))
        return len(self.trace.tensors) - 1

    def _remark(self, equation: Any) -> None:
        name = equation.primitive.name
        if name == "while":
            self.trace.remarks["a while loop is one op, and costs one iteration: how often it runs is not known"] = None
        elif name == "scan":
            inside = any(
                e.primitive.name in ("remat2", "checkpoint") for body in jaxprs_of(equation) for e in body.eqns
            )
            if inside:
                text = "a scan recomputes inside of its op; with unroll=True each of its iterations has its own ops"
                self.trace.remarks[text] = None
        elif name not in ("cond", "sort", "argmax", "argmin") and not name.startswith(("reduce", "scatter", "cum")):
            self.trace.remarks[f"{name} is one op, and costs what is inside of it once"] = None


@dataclass(frozen=True, eq=False)
class _Repeated:
    """A recomputation: its step, the candidate ops, and its outputs and inputs."""

    place: int
    candidates: list[int]
    outputs: tuple[int, ...]
    read: tuple[Value, ...]


def _stacking(aval: Any) -> Any:
    """Return a stand-in for an equation that assembles the stacked results of an unrolled loop."""
    primitive, written = SimpleNamespace(name="stack"), SimpleNamespace(aval=aval)
    return SimpleNamespace(primitive=primitive, params={}, invars=(), outvars=(written,), source_info=None)


def bytes_of(aval: Any) -> int:
    """Return the bytes of a value; 0 for tokens and for values in the host's memory.

    Raise CaptureError if an extent is unknown.
    """
    shape = getattr(aval, "shape", None)
    if shape is None or not hasattr(aval, "dtype"):
        return 0
    if not all(isinstance(extent, int) for extent in shape):
        raise CaptureError(f"an array of shape {shape} has extents that are not known")
    if "host" in _space(aval):
        return 0
    return int(math.prod(shape) * aval.dtype.itemsize)


def _space(aval: Any) -> str:
    return str(getattr(aval, "memory_space", "")).lower()


def _float_bits(dtype: Any) -> tuple[int, int]:
    from jax import numpy as jnp

    information = jnp.finfo(dtype)
    return information.nexp, information.nmant


def _literal(literal: Any) -> Number:
    return Number(repr(literal.val), str(literal.aval), literal.val)


def _tensors(values: Sequence[Value]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(v for v in map(base_of, values) if isinstance(v, int) and v >= 0))


def renamed(value: Value, names: Mapping[Any, Any]) -> Value:
    """Return a value with its tensors renumbered or renamed."""
    if isinstance(value, Stack | tuple):
        return tuple(renamed(part, names) for part in (value.parts if isinstance(value, Stack) else value))
    if isinstance(value, Part):
        return replace(value, base=renamed(value.base, names))
    return names.get(value, value) if isinstance(value, int | str) else value


def _joined(scope: str, part: str) -> str:
    return "/".join(filter(None, (scope, part)))


def source_line(equation: Any) -> str:
    """Return file, line and function of an equation; empty if JAX has none.

    The module with this information is private in JAX, so it may be missing.
    """
    try:
        from jax._src import source_info_util

        return str(source_info_util.summarize(equation.source_info))
    except (ImportError, AttributeError, TypeError, ValueError):
        return ""


def _scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many operands of a scan are constants of its body and how many are carried."""
    if "num_consts" in params:
        return int(params["num_consts"]), int(params["num_carry"])
    constants, carry, _ = params["ft_in"].unpack()  # since JAX 0.12
    return len(constants), len(carry)
