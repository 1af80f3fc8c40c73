"""Kernel of block checkpointing: the compute sequence of a plan, its peak and its cost."""

# Kernels carry no types, and are called by position only.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import NamedTuple

from remat.runtime.arrays import Bool, Int
from remat.runtime.compiled import kernel


class SequenceTables(NamedTuple):
    """Graph without graph inputs and buffers without readers; all arrays of ops by position.

    `writers` is the number of contributions to each tensor (0: ignored). `again` is the most recomputations of its op
    (0 also for kept tensors and accumulation buffers). `last_forward` is the position of its last reader in forward and
    loss, `first_backward` that of its first reader in the backward pass.
    """

    size: Int
    writers: Int
    again: Int
    last_forward: Int
    first_backward: Int
    kept: Bool
    cost: Int
    workspace: Int
    in_ptr: Int
    inputs: Int
    out_ptr: Int
    outputs: Int


class SequenceRoom(NamedTuple):
    """Workspace: by tensor the step of its last use and open contributions; by step, the last first."""

    latest: Int
    left: Int
    change: Int
    steps: Int


@kernel
def sequence_of(tables, room, events, start, depth, found):
    """Fill `room.steps` with the computes (positions), the last one first, and `found` with length, peak and cost.

    `events` are the arrays `when`, `low` and `high`. Before the backward op at position ``when[e]`` (ascending),
    dropped values of the ops ``low[e] .. high[e] - 1`` that later steps need are recomputed. Dropped are values that no
    forward op outside of these ops reads, and no backward op before that step. Everything else is computed once, in
    order. Frees are implied.
    """
    when, low, high = events
    size, again, kept = tables.size, tables.again, tables.kept
    latest, left, change, steps = room.latest, room.left, room.change, room.steps
    num_ops = len(tables.cost)
    for tensor in range(len(size)):
        latest[tensor] = 0 if kept[tensor] else -1
        left[tensor] = tables.writers[tensor]
    change[0] = 0
    step, cost, event = 0, 0, len(when) - 1
    op, floor, limit = num_ops - 1, 0, num_ops
    inside = False
    while op >= 0 or inside:
        if not inside and op < num_ops - 1 and event >= 0 and when[event] == op + 1:
            inside, floor, limit = True, low[event], high[event]
            at = limit - 1
        if inside:
            if at < floor:
                inside = False
                event -= 1
                continue
            now = at
            at -= 1
            wanted = False
            for k in range(tables.out_ptr[now], tables.out_ptr[now + 1]):
                tensor = tables.outputs[k]
                if (
                    latest[tensor] >= 0
                    and again[tensor] >= depth
                    and tables.last_forward[tensor] < limit
                    and tables.first_backward[tensor] >= when[event]
                ):
                    wanted = True
            if not wanted:
                continue
        else:
            now = op
            op -= 1
        change[step + 1] = 0
        steps[step] = now
        cost += tables.cost[now]
        for k in range(tables.out_ptr[now], tables.out_ptr[now + 1]):
            tensor = tables.outputs[k]
            if left[tensor] > 1:  # a buffer with earlier contributions
                left[tensor] -= 1
                if latest[tensor] < 0:
                    latest[tensor] = step
                continue
            until = latest[tensor] if latest[tensor] >= 0 else step
            latest[tensor] = -1
            change[until] += size[tensor]
            change[step + 1] -= size[tensor]
        for k in range(tables.in_ptr[now], tables.in_ptr[now + 1]):
            tensor = tables.inputs[k]
            if latest[tensor] < 0:
                latest[tensor] = step
        step += 1
    memory, peak = 0, 0
    for k in range(step):
        memory += change[k]
        peak = max(peak, memory + tables.workspace[steps[k]])
    found[0], found[1], found[2] = step, peak + start, cost
