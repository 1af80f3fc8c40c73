"""Checks of the names in a graph: unique, known, and each tensor either written by an op or a graph input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from remat.graphs.ops_and_tensors import Op, Tensor
from remat.runtime.text import short


def name_faults(
    tensors: Sequence[Tensor], ops: Sequence[Op], inputs: Sequence[str], outputs: Sequence[str], order: Sequence[str]
) -> list[str]:
    """Return all faults in the names of a graph, each in a few words.

    `order` is checked only if no two ops share a name.

    Examples
    --------
    >>> from remat.graphs import Op, Tensor
    >>> name_faults([Tensor("x", 1)], [Op("a", ("y",), ("x",)), Op("a", (), ("z",))], [], ["q"], ["a"])
    ... # doctest: +NORMALIZE_WHITESPACE
    ["two ops are named 'a'", "op 'a' reads unknown tensor 'y'", "op 'a' writes unknown tensor 'z'",
     "graph outputs name unknown tensor 'q'"]
    """
    # Comparing whole sets first is fast; names are checked individually only after a mismatch.
    names = [op.name for op in ops]
    named = _repeated(names)
    faults = [f"two ops are named {name!r}" for name in named]
    faults += [f"two tensors are named {name!r}" for name in _repeated([tensor.name for tensor in tensors])]
    known = {tensor.name for tensor in tensors}
    for op in ops:
        both = {*op.inputs, *op.outputs}
        if len(both) != len(op.inputs) + len(op.outputs) or not both <= known:
            faults += _faults_of(op, known)
        for output, source in op.in_place:
            if output not in op.outputs or source not in op.inputs:
                places = f"{short(output)} in place of {short(source)}"
                faults.append(f"op {op.name!r} cannot write {places}: these must be an output and an input of it")
    for what, ends in (("inputs", inputs), ("outputs", outputs)):
        faults += [f"graph {what} name unknown tensor {short(name)}" for name in ends if name not in known]
        if len(set(ends)) != len(ends):
            faults.append(f"graph {what} name a tensor twice")
    written, given = {name for op in ops for name in op.outputs}, set(inputs)
    wrong = (written & given) | (known - written - given)
    for tensor in tensors if wrong else ():
        if tensor.name in written and tensor.name in given:
            faults.append(f"graph input {tensor.name!r} is also written by an op")
        if tensor.name not in written and tensor.name not in given:
            faults.append(f"tensor {tensor.name!r} is written by no op and is not a graph input")
    return faults if named else [*faults, *_order_faults(order, names)]


def _faults_of(op: Op, known: set[str]) -> Iterator[str]:
    for what, names in (("reads", op.inputs), ("writes", op.outputs)):
        for name in names:
            if name not in known:
                yield f"op {op.name!r} {what} unknown tensor {short(name)}"
        if len(set(names)) != len(names):
            for name in _repeated(names):
                yield f"op {op.name!r} {what} tensor {name!r} twice"
    for name in sorted(set(op.inputs) & set(op.outputs)):
        yield f"op {op.name!r} reads and writes tensor {name!r}, which is a cycle"


def _order_faults(order: Sequence[str], ops: Sequence[str]) -> Iterator[str]:
    known, named = set(ops), set(order)
    if known == named and len(order) == len(ops):
        return
    for name in order:
        if name not in known:
            yield f"the order names unknown op {short(name)}"
    if len(named) != len(order):
        for name in _repeated(order):
            yield f"the order names op {name!r} twice"
    for name in ops:
        if name not in named:
            yield f"the order misses op {name!r}"


def _repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once."""
    if len(set(names)) == len(names):
        return []
    return [name for name, count in Counter(names).items() if count > 1]
