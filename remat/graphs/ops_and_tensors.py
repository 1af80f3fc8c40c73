"""Ops and tensors of a graph: checks of their fields, and the default order of ops."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from remat.errors import GraphError
from remat.graphs.in_place import checked_pairs
from remat.runtime.text import expect, short

COST_UNITS = ("us", "ns", "mac", "flop", "cycle", "none")
PHASES = ("", "forward", "loss", "backward")

#: Largest total of sizes or of costs: sums of int64 arrays stay exact below it.
MAX_TOTAL = 2**62
MAX_NAME_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class Tensor:
    """Value with a size.

    Attributes
    ----------
    name : str
        Unique among the tensors of its graph.
    size : int
        Bytes, non-negative.
    """

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Op:
    """Computation that reads tensors and writes tensors.

    Attributes
    ----------
    name : str
        Unique among the ops of its graph.
    inputs, outputs : tuple of str
        Tensor names, without duplicates.
    cost : int
        In the cost unit of the graph, non-negative.
    workspace : int
        Bytes held only while the op runs.
    type, phase : str
        Kind of computation (free text), and ``"forward"``, ``"loss"``, ``"backward"`` or ``""``.
    recomputable : bool
        False if it may run only once.
    in_place : tuple of (str, str)
        Pairs of an output and an input of the same size. The runtime writes the output over the input if the input dies
        at this op, that is, if it is freed before the next compute. Each output replaces at most one input, and each
        input is replaced by at most one output. Of all such choices, one with the most bytes takes effect.
    """

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cost: int = 0
    workspace: int = 0
    type: str = ""
    phase: str = ""
    recomputable: bool = True
    in_place: tuple[tuple[str, str], ...] = ()


def whole_number(value: Any, what: str) -> int:
    """Return `value` as a non-negative Python int; floats and bools are refused, never rounded.

    Raise GraphError naming `what`.
    """
    if isinstance(value, bool):
        raise GraphError(f"{what} must be a whole number, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise GraphError(
            f"{what} must be a whole number, not {short(value)}; pick a finer unit instead of a fraction"
        ) from None
    if not 0 <= number < MAX_TOTAL:
        raise GraphError(f"{what} {'is 2^62 or more' if number > 0 else 'must not be negative'}")
    return number


def _is_plain(value: Any) -> bool:
    """Return True if :func:`whole_number` would return `value` unchanged."""
    return type(value) is int and 0 <= value < MAX_TOTAL


def _is_names(names: Any) -> bool:
    """Return True if :func:`name_list` would return `names` unchanged."""
    return type(names) is tuple and all(type(name) is str for name in names)


def checked_name(name: Any, what: str) -> str:
    """Return `name`; raise GraphError if it is no valid name for `what`."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise GraphError(f"{what} must have a printable, non-empty name, not {short(name)}")
    return name


def checked_tensor(tensor: Tensor) -> Tensor:
    """Return `tensor` with checked fields of exact types; raise GraphError for a fault."""
    expect(tensor, Tensor, "tensors", GraphError)
    name = checked_name(tensor.name, "a tensor")
    if type(tensor) is Tensor and _is_plain(tensor.size):
        return tensor
    return Tensor(name, whole_number(tensor.size, f"size of tensor {name!r}"))


def checked_op(op: Op) -> Op:
    """Return `op` with checked fields of exact types; raise GraphError for a fault."""
    expect(op, Op, "ops", GraphError)
    name = checked_name(op.name, "an op")
    if not isinstance(op.phase, str) or op.phase not in PHASES:
        raise GraphError(f"phase {short(op.phase)} of op {name!r} is not one of {PHASES}")
    if not isinstance(op.recomputable, bool):
        raise GraphError(f"'recomputable' of op {name!r} must be true or false, not {short(op.recomputable)}")
    plain = _is_plain(op.cost) and _is_plain(op.workspace) and _is_names(op.inputs) and _is_names(op.outputs)
    if type(op) is Op and type(op.type) is str and plain and op.in_place == ():
        return op  # building another op takes longer than all checks
    cost = whole_number(op.cost, f"cost of op {name!r}")
    workspace = whole_number(op.workspace, f"workspace of op {name!r}")
    if not isinstance(op.type, str):
        raise GraphError(f"type of op {name!r} must be text, not {short(op.type)}")
    inputs = name_list(op.inputs, f"inputs of op {name!r}")
    outputs = name_list(op.outputs, f"outputs of op {name!r}")
    pairs = checked_pairs(op.in_place, name)
    return Op(name, inputs, outputs, cost, workspace, op.type, op.phase, op.recomputable, pairs)


def name_list(names: Iterable[Any], what: str) -> tuple[str, ...]:
    """Return names as a tuple; refuse a single string, which would split into characters, and items of other types."""
    if isinstance(names, str):
        raise GraphError(f"{what} must be a list of names, not the single name {short(names)}")
    if not isinstance(names, Iterable):
        raise GraphError(f"{what} must be a list of names, not {short(names)}")
    result = tuple(names)
    for name in result:
        if not isinstance(name, str):
            raise GraphError(f"{what} must be names, not {short(name)}")
    return result


def stable_topological_order(ops: list[Op]) -> list[str]:
    """Return the topological order that always takes the first listed ready op; ops on cycles follow as listed."""
    writers: dict[str, list[int]] = {}
    for number, op in enumerate(ops):
        for tensor in op.outputs:
            writers.setdefault(tensor, []).append(number)
    sorter = TopologicalSorter({n: [w for t in op.inputs for w in writers.get(t, ())] for n, op in enumerate(ops)})
    with suppress(CycleError):  # ops before the cycles can still be sorted
        sorter.prepare()
    ready: list[int] = []
    placed: dict[int, None] = {}
    while sorter.is_active():
        for number in sorter.get_ready():
            heapq.heappush(ready, number)
        number = heapq.heappop(ready)
        placed[number] = None
        sorter.done(number)
    return [ops[number].name for number in placed | dict.fromkeys(range(len(ops)))]
