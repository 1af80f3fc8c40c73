"""Arena of TensorFlow Lite Micro: lifetimes of tensors, the runtime's planner, and better offsets.

Source: tflite-micro 90b983c, ``micro_allocation_info.cc`` (lifetimes), ``memory_planner/greedy_memory_planner.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from remat.allocation import Allocation, AllocationProblem, allocate
from remat.deploy.tflite_file import ONLINE, TfliteFile
from remat.errors import FormatError
from remat.graphs.in_place import most_pairs
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule import Addresses, Buffers, Memory, check_addresses

#: Alignment of tensors in bytes; sizes are rounded up to multiples of it.
ALIGNMENT = 16
#: Largest nesting depth of subgraphs.
MAX_DEPTH = 16


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """First and last scope in which each tensor of a file is held; scope 0 is before the first operator."""

    first: Int
    """First scope of each tensor; -1 if no operator reads or writes it. Shape (tensors of all subgraphs,)."""
    last: Int
    """Last scope, in the same form."""
    size: Int
    """Bytes, in the same form; 0 for constants and variables, which are not planned."""
    scopes: list[tuple[int, int]]
    """First and last scope of each operator of the main subgraph."""


def lifetimes(file: TfliteFile) -> Lifetimes:
    """Return the lifetimes of tensors in the runtime; subgraphs that an operator runs lie within its scope."""
    count = file.bases[-1]
    first, last = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    entries = [entry for each in file.tables for entry in each.tensors]
    size = np.array(
        [0 if entry.data or entry.is_variable else entry.bytes(packed=False) for entry in entries], dtype=np.int64
    )
    scopes: list[tuple[int, int]] = []
    scope = 0

    def begin(tensors: Iterable[int], base: int) -> None:
        for p in tensors:
            if p >= 0 and first[base + p] < 0:
                first[base + p] = scope

    def use(tensors: Iterable[int], base: int) -> None:
        for p in tensors:
            if p >= 0:
                last[base + p] = scope

    def run(subgraph: int, depth: int) -> None:
        nonlocal scope
        if depth > MAX_DEPTH:
            raise FormatError(f"subgraphs run each other more than {MAX_DEPTH} deep", "subgraph")
        tables, base = file.tables[subgraph], file.bases[subgraph]
        begin(tables.inputs, base)
        use(tables.inputs, base)
        for position, entry in enumerate(tables.operators):
            scope += 1
            began = scope
            begin(entry.outputs, base)
            for called in file.calls(subgraph, position):
                scope += 1  # outputs of one subgraph are not held while the next begins
                run(called, depth + 1)
            use((*entry.inputs, *entry.outputs), base)
            if not depth:
                scopes.append((began, scope))
        begin(tables.outputs, base)
        use(tables.outputs, base)

    run(0, 0)
    return Lifetimes(first, last, size, scopes)


def runtime_head(file: TfliteFile, scratch: Mapping[int, int] | None = None) -> int:
    """Return the bytes that the runtime needs: it places tensors with an offset, then the others, largest first.

    `scratch`: bytes that kernels request, by operator of the main subgraph.
    """
    held, fixed = lifetimes(file), file.plan()
    rows = [
        (int(held.first[k]), int(held.last[k]), int(held.size[k]), ONLINE if fixed is None else fixed[k])
        for k in np.flatnonzero(held.size).tolist()
    ]
    rows += [(*held.scopes[op], size, ONLINE) for op, size in (scratch or {}).items() if size]
    order = sorted(range(len(rows)), key=lambda k: (rows[k][3] == ONLINE, -aligned(rows[k][2]), -k))
    placed: list[tuple[int, int, int, int]] = []
    for k in order:
        begin, end, size, offset = rows[k]
        if offset == ONLINE:
            offset = 0
            for low, high, other_begin, other_end in sorted(placed):
                if begin <= other_end and other_begin <= end:
                    if low - offset >= aligned(size):
                        break
                    offset = max(offset, high)
        placed.append((offset, offset + aligned(size), begin, end))
    return max((high for _, high, _, _ in placed), default=0)


def aligned(size: int) -> int:
    """Return a size in bytes rounded up to the alignment of the arena."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def roots(file: TfliteFile) -> Int:
    """Return for each tensor of the file the one whose bytes it uses: a folded view uses those of its base."""
    found = np.arange(file.bases[-1], dtype=np.int64)
    for view, base in file.assembly.base.items():
        found[view] = base
    return found


def in_place_pairs(file: TfliteFile) -> list[tuple[int, int]]:
    """Return the pairs (output, input) of ``file.in_place`` whose input dies at the operator; each tensor is in one."""
    held, root = lifetimes(file), roots(file)
    last = np.full(len(root), -1, dtype=np.int64)
    np.maximum.at(last, root, held.last)
    last[root[_outputs(file)]] = held.scopes[-1][1] + 1 if held.scopes else 0
    found: list[tuple[int, int]] = []
    for position, pairs in file.in_place.items():
        scope = held.scopes[position][0]
        found += most_pairs([(o, s) for o, s in pairs if last[s] == scope < last[o] and held.size[s]])
    return found


def _outputs(file: TfliteFile) -> Int:
    return np.array([p for p in file.tables[0].outputs if p >= 0], dtype=np.int64)


def arena_buffers(
    file: TfliteFile, scratch: Mapping[int, int] | None = None, pairs: Sequence[tuple[int, int]] = ()
) -> tuple[Buffers, Int]:
    """Return the buffers of the arena, and the buffer of each tensor of the file; -1 if it has none.

    `pairs`: outputs that take the place of an input, by number of tensor.
    """
    held, root = lifetimes(file), roots(file)
    buffer_of = np.full(len(root), -1, dtype=np.int64)
    planned = np.flatnonzero((held.size > 0) & (held.first >= 0))
    used, buffer_of[planned] = np.unique(root[planned], return_inverse=True)
    lower, upper = np.full(len(used), 2**60, dtype=np.int64), np.zeros(len(used), dtype=np.int64)
    size = np.zeros(len(used), dtype=np.int64)
    np.minimum.at(lower, buffer_of[planned], held.first[planned])
    np.maximum.at(upper, buffer_of[planned], held.last[planned] + 1)
    np.maximum.at(size, buffer_of[planned], held.size[planned])
    kept = buffer_of[_outputs(file)]
    upper[kept[kept >= 0]] = upper.max(initial=0) + 1  # held after the last operator, which may write it in place
    after = tuple((int(buffer_of[output]), int(buffer_of[source])) for output, source in pairs)
    lower[[output for output, _ in after]] += 1
    names = [f"tensor {k}" for k in used.tolist()]
    asked = [(op, bytes_) for op, bytes_ in sorted((scratch or {}).items()) if bytes_]
    names += [f"scratch of op {op}" for op, _ in asked]
    lower = np.append(lower, [held.scopes[op][0] for op, _ in asked]).astype(np.int64)
    upper = np.append(upper, [held.scopes[op][1] + 1 for op, _ in asked]).astype(np.int64)
    size = np.append(size, [bytes_ for _, bytes_ in asked]).astype(np.int64)
    return replace(Buffers.of(names, lower, upper, size), after=after), buffer_of


def planned(
    file: TfliteFile,
    scratch: Mapping[int, int] | None = None,
    *,
    time_limit: float | None,
    options: SolveOptions = DEFAULT_OPTIONS,
    in_place: bool = False,
) -> tuple[TfliteFile, Allocation]:
    """Return the file with the offsets of the smallest arena found, and the allocation.

    Tensors that no operator reads or writes have offset 0. The runtime places constants, variables and scratch; its
    planner finds the gap reserved for scratch. With `in_place`, outputs lie on inputs that die, where that needs less.
    Raise FormatError if two other tensors with overlapping lifetimes in the new file share bytes.
    """
    clock = Deadline.after(time_limit)
    best: tuple[Allocation, Addresses, Int] | None = None
    for pairs in [in_place_pairs(file), []] if in_place else [[]]:
        buffers, buffer_of = arena_buffers(file, scratch, pairs)
        if best is not None and buffers.peak(ALIGNMENT) >= best[1].arena:
            continue
        seconds = None if time_limit is None else max(clock.remaining, time_limit / 4)
        problem = AllocationProblem(buffers, alignment=ALIGNMENT)
        found = allocate(problem, time_limit=seconds, options=options)
        assert found.addresses is not None  # without a capacity there always are
        if best is None or found.addresses.arena < best[1].arena:
            best = found, found.addresses, buffer_of
    assert best is not None
    found, addresses, buffer_of = best
    is_fixed = np.array([t.is_apart for each in file.tables for t in each.tensors], dtype=np.bool_)
    offset = np.where(buffer_of >= 0, addresses.offset[buffer_of], np.where(is_fixed, ONLINE, 0))
    result = file.with_plan(offset.tolist())
    check_plan(result, addresses.arena, scratch)
    return result, found


def check_plan(file: TfliteFile, arena: int, scratch: Mapping[int, int] | None = None) -> None:
    """Check the offsets in a file, which the runtime does not check.

    An output may lie on an input that dies at the operator, if the reference kernel allows it.

    `arena`: size in bytes, which all tensors must fit. Raise FormatError with the names of overlapping or misplaced
    tensors, or if the runtime would need more.
    """
    plan = file.plan()
    if plan is None:
        raise FormatError("the file has no offsets", "plan")
    held, root = lifetimes(file), roots(file)
    kept = np.flatnonzero((held.size > 0) & (held.first >= 0))
    offsets = np.array(plan, dtype=np.int64)
    apart = kept[offsets[kept] != offsets[root[kept]]]
    if len(apart):
        raise FormatError(f"tensor {apart[0]} is a view, and lies elsewhere than its base", "plan")
    pairs = [(o, s) for o, s in in_place_pairs(file) if offsets[o] == offsets[s]]
    buffers, buffer_of = arena_buffers(file, pairs=pairs)
    where = np.zeros(len(buffers), dtype=np.int64)
    where[buffer_of[kept]] = offsets[kept]
    certificate = check_addresses(
        Addresses(buffers, where, np.zeros(len(buffers), dtype=np.int64), (Memory(capacity=arena),), ALIGNMENT)
    )
    if not certificate.accepted:
        raise FormatError(f"the offsets are wrong: {certificate.first}", "plan")
    if (need := runtime_head(file, scratch)) > arena:
        raise FormatError(f"the runtime would need {need:,} bytes, more than the {arena:,} that are certified", "plan")
