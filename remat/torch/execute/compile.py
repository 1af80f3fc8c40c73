"""A schedule as a program: what each step does to the slots, decided once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from remat.schedule import Schedule, with_frees
from remat.torch.captured import BEGIN_BACKWARD, Captured
from remat.torch.execute import batch_norm
from remat.torch.execute.program import Layout, OpCall


@dataclass(frozen=True, slots=True)
class Run:
    """Compute an op.

    Attributes
    ----------
    call : OpCall
    number : int
        0 for its first run.
    drop : tuple of int
        Slots that are emptied before: what the op makes anew takes their place, so that it is never held twice.
    draws : bool
        Whether the op draws random numbers and runs more than once.
    last : bool
        Whether this is its last run.
    """

    call: OpCall
    number: int
    drop: tuple[int, ...]
    draws: bool
    last: bool

    @property
    def op(self) -> str:
        """Name of the op."""
        return self.call.op


@dataclass(frozen=True, slots=True)
class Free:
    """Empty the slots of a tensor."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BeginBackward:
    """Hand the outputs out and take the tangents."""

    op: str = BEGIN_BACKWARD
    number: int = 0


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """A compute whose values are all live already."""


Action = Run | Free | BeginBackward | LeaveOut


def program(captured: Captured, layout: Layout, schedule: Schedule) -> tuple[Schedule, tuple[Action, ...]]:
    """The schedule with its frees written out, and one action for each of its steps; it must be a valid one."""
    graph = captured.graph
    written = with_frees(graph, schedule)
    runs = Counter(written.computes())
    random = set(captured.random_ops)
    calls: dict[str, tuple[OpCall, OpCall | None]] = {}
    done: Counter[str] = Counter()
    live: set[str] = set(graph.inputs)
    actions: list[Action] = []
    for kind, name in written.steps():
        if kind == "free":
            live.discard(name)
            actions.append(Free(tuple(layout.slots_of[name])))
            continue
        outputs = graph.ops[graph.op_index[name]].outputs
        number = done[name]
        done[name] += 1
        if name == BEGIN_BACKWARD:
            actions.append(BeginBackward())
        elif number and live.issuperset(outputs):
            actions.append(LeaveOut())
        else:
            if name not in calls:
                whole = layout.call(captured.node_of(name))
                calls[name] = whole, batch_norm.again(layout, whole)
            call, lean = calls[name]
            if number and lean is not None and live.issuperset(outputs[len(lean.items) :]):
                call = lean
            drop = tuple(slot for _, slot in call.items)
            actions.append(Run(call, number, drop, name in random and runs[name] > 1, done[name] == runs[name]))
        live.update(outputs)
    return written, tuple(actions)
