"""State of a rule while it makes an order: ready ops, and the bytes that each would allocate and free."""

from __future__ import annotations

from remat.ordering.instance import OrderInstance


class Ready:
    """Ready ops, and bytes per op, updated from step to step.

    Attributes
    ----------
    live : int
        Bytes held between steps.
    need : list of int
        Bytes that the step of each op adds while it runs: tensors it allocates and its workspace.
    growth : list of int
        Net bytes that each op adds: those it allocates, less those it frees.
    ready : list of int
        Ops that are ready at the start, ascending.
    """

    def __init__(self, instance: OrderInstance) -> None:
        self.live = instance.start
        self._size, self._kept = instance.size.tolist(), instance.kept.tolist()
        self._inputs, self._outputs = instance.op_inputs.lists(), instance.op_outputs.lists()
        self._writers, self._readers = instance.producers.lists(), instance.consumers.lists()
        self._after = instance.successors.lists()
        self._waiting = instance.predecessors.counts.tolist()
        # remaining uses; kept tensors have one that never comes
        self._uses = (instance.producers.counts + instance.consumers.counts + instance.kept).tolist()
        self._begun = instance.live.tolist()
        self._done = [False] * instance.num_ops
        size, begun, uses = self._size, self._begun, self._uses
        allocates = [sum(size[t] for t in outputs if not begun[t]) for outputs in self._outputs]
        frees = [
            sum(size[t] for tensors in both for t in tensors if uses[t] == 1)
            for both in zip(self._inputs, self._outputs, strict=True)
        ]
        self.need = [a + w for a, w in zip(allocates, instance.workspace.tolist(), strict=True)]
        self.growth = [a - f for a, f in zip(allocates, frees, strict=True)]
        self.ready = [op for op, count in enumerate(self._waiting) if not count]

    def do(self, op: int) -> tuple[list[int], list[int]]:
        """Compute a ready op.

        Returns
        -------
        made : list of int
            Ops that became ready, ascending.
        changed : list of int
            Other ready ops that need less, or grow less, than before.
        """
        self._done[op] = True
        self.live += self.growth[op]
        changed = []
        for tensor in self._outputs[op]:
            if not self._begun[tensor]:
                self._begun[tensor] = True
                for other in self._writers[tensor]:
                    if not self._done[other]:
                        self.need[other] -= self._size[tensor]
                        self.growth[other] -= self._size[tensor]
                        changed.append(other)
        for tensors in (self._inputs[op], self._outputs[op]):
            for tensor in tensors:
                self._uses[tensor] -= 1
                if self._uses[tensor] == 1 and not self._kept[tensor]:
                    users = (*self._readers[tensor], *self._writers[tensor])
                    last = next(other for other in users if not self._done[other])
                    self.growth[last] -= self._size[tensor]
                    changed.append(last)
        made = []
        for other in self._after[op]:
            self._waiting[other] -= 1
            if not self._waiting[other]:
                made.append(other)
        return made, [other for other in changed if not self._waiting[other] and other not in made]
