"""Rotor's dynamic programme, compiled: one row of the table at a time."""

# Compiled functions carry no types, and are called by position only.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from remat.compiled import inner, kernel


@inner
def place(num_blocks, s, t):
    """Row of the table for blocks s .. t: upper triangle, by rows."""
    return s * num_blocks - s * (s - 1) // 2 + t - s


@inner
def slots(amount, unit):
    """Slots that hold so many bytes."""
    return (amount + unit - 1) // unit


@inner
def option_slots(tables, option, s, t, unit):
    """Fewest slots in which blocks s .. t begin with an option of s; those it leaves to the others fewer; its cost."""
    above = tables.above[t + 1]
    if s == t:
        least = slots(max(above + tables.alone_peak[option], tables.backward_peak[option]), unit)
        return least, 0, tables.alone_cost[option]
    least = slots(max(above + tables.forward_peak[option], tables.backward_peak[option]), unit)
    less = slots(tables.saved[option] + tables.between[s, s + 1, t], unit)
    return max(least, less), less, tables.option_cost[option]


@inner
def sweep_slots(tables, s, k, t, peak, unit):
    """Fewest slots in which blocks s .. t begin with a sweep of s .. k - 1, and those it leaves to k .. t fewer.

    `peak` is that of the sweep.
    """
    less = slots(tables.between[s, k, t], unit)
    return max(slots(tables.above[t + 1] + peak, unit), less), less


@kernel
def fill_row(tables, table, s, unit):
    """Fill in ``table[place(s, t), m]`` for all t >= s: the least cost of reversing blocks s .. t with m slots.

    Infinite where they do not suffice. Rows of later blocks are there. Shape of `table`: (L (L + 1) / 2, slots).
    """
    num_blocks, num_slots = len(tables.sweep_cost), table.shape[1]
    for t in range(s, num_blocks):
        here = place(num_blocks, s, t)
        for m in range(num_slots):
            table[here, m] = np.inf
        for option in range(tables.option_ptr[s], tables.option_ptr[s + 1]):
            least, less, cost = option_slots(tables, option, s, t, unit)
            for m in range(least, num_slots):
                rest = table[place(num_blocks, s + 1, t), m - less] if s < t else 0.0
                table[here, m] = min(table[here, m], cost + rest)
        swept, peak = 0.0, 0
        for k in range(s + 1, t + 1):
            swept += tables.sweep_cost[k - 1]
            peak = max(peak, tables.between[s, k - 1, t] + tables.sweep_peak[k - 1])
            least, less = sweep_slots(tables, s, k, t, peak, unit)
            after, before = place(num_blocks, k, t), place(num_blocks, s, k - 1)
            for m in range(least, num_slots):
                table[here, m] = min(table[here, m], swept + table[after, m - less] + table[before, m])


@kernel
def best_step(tables, table, s, t, m, unit):
    """What the least cost of blocks s .. t with m slots begins with: (option, -1) or (-1, k); (-1, -1) if none fits.

    Of equally good ones the first option, or else the earliest k: then the table need not say it.
    """
    num_blocks = len(tables.sweep_cost)
    wanted = table[place(num_blocks, s, t), m]
    if wanted == np.inf:
        return -1, -1
    for option in range(tables.option_ptr[s], tables.option_ptr[s + 1]):
        least, less, cost = option_slots(tables, option, s, t, unit)
        if m >= least:
            rest = table[place(num_blocks, s + 1, t), m - less] if s < t else 0.0
            if cost + rest == wanted:
                return option, -1
    swept, peak = 0.0, 0
    for k in range(s + 1, t + 1):
        swept += tables.sweep_cost[k - 1]
        peak = max(peak, tables.between[s, k - 1, t] + tables.sweep_peak[k - 1])
        least, less = sweep_slots(tables, s, k, t, peak, unit)
        if m >= least:
            rest = table[place(num_blocks, k, t), m - less]
            if swept + rest + table[place(num_blocks, s, k - 1), m] == wanted:
                return -1, k
    return -1, -1
