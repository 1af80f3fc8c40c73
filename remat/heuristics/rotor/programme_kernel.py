"""Kernel of Rotor's dynamic programme: one row of the table at a time."""

# Kernels carry no types, and are called by position only.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from remat.runtime.compiled import inner, kernel


@inner
def slots(amount, unit):
    """Return the slots that hold `amount` bytes."""
    return (amount + unit - 1) // unit


@kernel
def fill_row(tables, table, choice, s, unit):
    """Fill in ``table[s, t, m]`` for all t >= s: the least cost of reversing blocks s .. t with m slots.

    Infinite if the slots do not suffice. Rows of later blocks must be filled in. Shape of `table` and `choice`: (L, L,
    slots). ``choice[s, t, m]`` is the first step: the number of an option of block s, or -k for a sweep of the first k
    blocks. Ties go to the first option, then to the shortest sweep.
    """
    num_blocks, num_slots = len(tables.sweep_cost), table.shape[2]
    for t in range(s, num_blocks):
        above = tables.above[t + 1]
        for m in range(num_slots):
            table[s, t, m] = np.inf
        for option in range(tables.option_ptr[s], tables.option_ptr[s + 1]):
            peak, less, cost = tables.alone_peak[option], 0, tables.alone_cost[option]
            if s < t:
                peak, cost = tables.forward_peak[option], tables.option_cost[option]
                less = slots(tables.saved[option] + tables.between[s, s + 1, t], unit)
            least = slots(max(above + peak, tables.backward_peak[option]), unit)
            for m in range(max(least, less), num_slots):
                whole = cost + (table[s + 1, t, m - less] if s < t else 0.0)
                if whole < table[s, t, m]:
                    table[s, t, m] = whole
                    choice[s, t, m] = option - tables.option_ptr[s]
        swept, peak = 0.0, 0
        for k in range(s + 1, t + 1):
            swept += tables.sweep_cost[k - 1]
            peak = max(peak, tables.between[s, k - 1, t] + tables.sweep_peak[k - 1])
            less = slots(tables.between[s, k, t], unit)
            for m in range(max(slots(above + peak, unit), less), num_slots):
                whole = swept + table[k, t, m - less] + table[s, k - 1, m]
                if whole < table[s, t, m]:
                    table[s, t, m] = whole
                    choice[s, t, m] = s - k
