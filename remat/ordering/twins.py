"""Interchangeable chains of ops, of which a search needs only one order of their first ops."""

from __future__ import annotations

import numpy as np

from remat.ordering.instance import OrderInstance
from remat.runtime.arrays import Int


def twin_pairs(instance: OrderInstance) -> tuple[Int, Int]:
    """Return pairs of ops of which the first may precede the second without loss.

    A chain is a sequence of ops each of which is the only successor of the one before and has no other predecessor. Two
    chains are twins if their ops have the same workspaces, read and write the same tensors outside, and write tensors
    of the same sizes. The same ops outside and the corresponding ones inside must read these. Exchanging twins turns an
    order into another one with the same memory at each step, so the twin with the lower number may start first.

    Returns
    -------
    earlier, later : int64 arrays, shape (pairs,)

    Examples
    --------
    >>> from remat import GraphBuilder, Problem
    >>> b = GraphBuilder("two equal branches and a larger one")
    >>> _ = b.op("a", size=2), b.op("b", inputs=["a"], size=9), b.op("c", inputs=["a"], size=9)
    >>> _ = b.op("d", inputs=["a"], size=8), b.op("e", inputs=["b", "c", "d"], size=1)
    >>> [pair.tolist() for pair in twin_pairs(OrderInstance.of(Problem(b.build())))]
    [[1], [2]]
    """
    before, after = instance.predecessors.lists(), instance.successors.lists()
    tables = _Tables(instance)
    first_of: dict[tuple[object, ...], int] = {}
    pairs: list[tuple[int, int]] = []
    for op in range(instance.num_ops):
        if len(before[op]) == 1 and len(after[before[op][0]]) == 1:
            continue  # inside a chain
        chain = [op]
        while len(after[chain[-1]]) == 1 and len(before[after[chain[-1]][0]]) == 1:
            chain.append(after[chain[-1]][0])
        signature = (tuple(before[op]), tuple(after[chain[-1]]), *tables.signature(chain))
        if signature in first_of:
            pairs.append((first_of[signature], op))
        first_of[signature] = op
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


class _Tables:
    """Instance as plain lists."""

    def __init__(self, instance: OrderInstance) -> None:
        self.reads, self.writes = instance.op_inputs.lists(), instance.op_outputs.lists()
        self.writers, self.readers = instance.producers.lists(), instance.consumers.lists()
        self.size, self.workspace = instance.size.tolist(), instance.workspace.tolist()
        self.fixed = (instance.live | instance.kept).tolist()

    def signature(self, chain: list[int]) -> tuple[object, ...]:
        """Return the effect of a chain, independent of the numbers of its ops and of tensors that only it writes."""
        place = {op: i for i, op in enumerate(chain)}
        own: dict[int, int] = {}
        found: list[object] = []
        for op in chain:
            outside = sorted(tensor for tensor in self.reads[op] if tensor not in own)
            inside = sorted(own[tensor] for tensor in self.reads[op] if tensor in own)
            written: list[object] = []
            for tensor in self.writes[op]:
                if self.fixed[tensor] or len(self.writers[tensor]) > 1:
                    written.append(("shared", tensor))
                    continue
                own[tensor] = len(own)
                readers = self.readers[tensor]
                written.append((
                    self.size[tensor],
                    tuple(place[reader] for reader in readers if reader in place),
                    tuple(reader for reader in readers if reader not in place),
                ))  # fmt: skip
            found.append((self.workspace[op], tuple(outside), tuple(inside), tuple(written)))
        return tuple(found)
