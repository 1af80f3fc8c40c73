"""Checks of an allocator: valid addresses, valid bounds and proofs, and a start that is never lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from unittest import SkipTest

import numpy as np

from remat.allocation.base import Allocation, Allocator
from remat.allocation.fits import FirstFit
from remat.allocation.problem import AllocationProblem
from remat.errors import ProblemError
from remat.schedule import Addresses, Buffers, Memory, check_addresses
from remat.testing.kit import USUAL, Effort, in_time, options, require

#: A class of allocators, or any callable that returns one: ``lambda: MyAllocator(MyOptions(3))``.
MakeAllocator = Callable[[], Allocator]
AllocatorCheck = Callable[..., None]


def random_buffers(seed: int, count: int, steps: int = 8, size: int = 6) -> Buffers:
    """Return random buffers; every tenth has no bytes.

    Examples
    --------
    >>> len(random_buffers(0, 5))
    5
    """
    rng = np.random.default_rng(seed)
    low = rng.integers(0, steps, count)
    sizes = np.where(rng.random(count) < 0.1, 0, rng.integers(1, size + 1, count))
    return Buffers.of([f"b{k}" for k in range(count)], low, low + rng.integers(1, steps // 2 + 1, count), sizes)


def dense_buffers(seed: int, count: int, height: int = 1024, steps: int = 1024) -> Buffers:
    """Return buffers that fill an arena of `height` bytes at every one of `steps`: pieces of it, cut at random.

    A piece is cut in time, in space or into a pinwheel of five; `seed` also decides how often, and how equal they are.

    Examples
    --------
    >>> found = dense_buffers(0, 40)
    >>> len(found), found.peak(), int((found.size * (found.upper - found.lower)).sum()) == 1024 * 1024
    (40, 1024, True)
    """
    rng = np.random.default_rng(seed)
    in_time, equal = rng.uniform(0.25, 0.75), rng.uniform(0.3, 1.2)
    pieces = [(0, steps, 0, height)]
    while len(pieces) < count:
        area = np.array([(b - a) * (d - c) for a, b, c, d in pieces], dtype=np.float64)
        weight = np.where(area > 1, area**equal, 0)
        a, b, c, d = pieces.pop(int(rng.choice(len(pieces), p=weight / weight.sum())))
        if b - a > 2 and d - c > 2 and rng.random() < 0.1 and len(pieces) + 5 <= count:
            x, y = np.sort(rng.choice(np.arange(a + 1, b), 2, replace=False)).tolist()
            v, w = np.sort(rng.choice(np.arange(c + 1, d), 2, replace=False)).tolist()
            pieces += [(a, y, c, v), (y, b, c, w), (x, b, w, d), (a, x, v, d), (x, y, v, w)]
        elif d - c < 2 or (b - a > 1 and rng.random() < in_time):
            cut = int(rng.integers(a + 1, b))
            pieces += [(a, cut, c, d), (cut, b, c, d)]
        else:
            cut = int(rng.integers(c + 1, d))
            pieces += [(a, b, c, cut), (a, b, cut, d)]
    lower, upper, low, high = rng.permutation(np.array(pieces)).T
    return Buffers.of([f"b{k}" for k in range(count)], lower, upper, high - low)


def least_arena(buffers: Buffers, alignment: int = 1) -> int:
    """Return the least arena, by placing up to seven buffers in every order, each as low as possible.

    One of these orders is that of the offsets in an optimal placement with everything pushed down.

    Examples
    --------
    >>> least_arena(Buffers.of("abc", [0, 1, 2], [2, 3, 3], [4, 2, 1]))
    6
    """
    sizes = buffers.rounded(alignment).tolist()
    lower, upper = buffers.lower.tolist(), buffers.upper.tolist()
    best = sum(sizes)
    for order in itertools.permutations(range(len(buffers))):
        offset: dict[int, int] = {}
        for k in order:
            at = 0
            for other in sorted(offset, key=offset.__getitem__):
                if lower[k] < upper[other] and lower[other] < upper[k] and at < offset[other] + sizes[other]:
                    at = offset[other] + sizes[other]
            offset[k] = at
        best = min(best, max(offset[k] + sizes[k] for k in order))
    return best


def _ready(make: MakeAllocator) -> Allocator:
    allocator = make()
    if reason := allocator.unavailable():
        raise SkipTest(f"{allocator.name}: {reason}")
    allocator.prepared()
    return allocator


def _right(found: Allocation, what: str) -> None:
    """Check the invariants of every answer."""
    if found.addresses is None:
        return
    certificate = check_addresses(found.addresses, found.problem.buffers)
    require(certificate.accepted, f"{what}: {certificate.first}")
    require(not found.impossible, f"{what}: there are addresses, and a proof that there are none: {found.impossible}")
    price = found.price
    require(price is not None and found.bound <= price, f"{what}: the bound {found.bound} is above {price}")


def _tiny(effort: Effort) -> Iterator[tuple[int, AllocationProblem, int]]:
    for seed in range(effort.cases):
        buffers = random_buffers(seed, min(effort.most_ops, 6))
        alignment = 4 if seed % 2 else 1
        yield seed, AllocationProblem(buffers, alignment=alignment), least_arena(buffers, alignment)


def bounds_hold(make: MakeAllocator, effort: Effort = USUAL) -> None:
    """On tiny problems arenas are at least the least one, bounds at most that, and proved arenas equal to it."""
    allocator = _ready(make)
    for seed, problem, least in _tiny(effort):
        found = allocator.allocate(problem, options(effort.deadline))
        what = f"{allocator.name}, buffers {seed}"
        _right(found, what)
        require(found.price is not None, f"{what}: no addresses, though nothing limits them")
        require(
            (found.price or 0) >= least >= found.bound, f"{what}: {found.bound} to {found.price}, but least {least}"
        )
        require(not found.proved or found.price == least, f"{what}: {found.price} is not least, which is {least}")


def capacities_are_kept(make: MakeAllocator, effort: Effort = USUAL) -> None:
    """Addresses lie within a given capacity, and feasible problems are not called impossible."""
    allocator = _ready(make)
    for seed, problem, least in _tiny(effort):
        for capacity in (least, max(least - problem.alignment, 0)):
            within = AllocationProblem(problem.buffers, (Memory(capacity=capacity),), problem.alignment)
            found = allocator.allocate(within, options(effort.deadline))
            what = f"{allocator.name}, buffers {seed} within {capacity}"
            _right(found, what)
            if capacity >= least:
                require(not found.impossible, f"{what}: claimed to be impossible, {found.impossible}")
            else:
                require(found.addresses is None, f"{what}: addresses, but {least} bytes are needed")


def the_start_is_kept(make: MakeAllocator, effort: Effort = USUAL) -> None:
    """Without time the answer is the start, and with time it is no worse."""
    allocator = _ready(make)
    problem = AllocationProblem(random_buffers(7, 60, steps=20, size=50))
    start = FirstFit().allocate(problem).addresses
    assert start is not None
    for seconds in (0.0, effort.deadline):
        found = allocator.allocate(problem, options(seconds), start)
        what = f"{allocator.name} with {seconds} s"
        _right(found, what)
        require(found.price is not None and found.price <= problem.price(start), f"{what}: the start was better")


def ends_at_its_deadline(make: MakeAllocator, effort: Effort = USUAL) -> None:
    """On a problem too hard to finish the answer arrives in time, in one of three runs."""
    allocator = _ready(make)
    problem = AllocationProblem(random_buffers(3, 400, steps=60, size=5000))
    start = FirstFit().allocate(problem).addresses

    def attempt() -> Allocation:
        return allocator.allocate(problem, options(effort.deadline), start)

    _right(in_time(allocator.name, effort.deadline, effort.grace + 1, attempt), allocator.name)


def several_memories(make: MakeAllocator, effort: Effort = USUAL) -> None:
    """Several memories are filled as allowed, or refused."""
    allocator = _ready(make)
    buffers = random_buffers(11, 12)
    allowed = np.ones((12, 2), dtype=np.bool_)
    allowed[::3, 0] = False
    problem = AllocationProblem(buffers, (Memory("fast", 6), Memory("slow")), allowed=allowed)
    reported: list[Addresses] = []
    try:
        found = allocator.allocate(problem, options(effort.patience), None, reported.append)
    except ProblemError:
        require(not allocator.several_memories, f"{allocator.name} claims to fill several memories, and does not")
        return
    _right(found, allocator.name)
    require(found.addresses is not None, f"{allocator.name}: no addresses, though a memory has no limit")
    if found.addresses is not None:
        inside = allowed[np.arange(12), found.addresses.memory]
        require(inside.all(), f"{allocator.name}: a buffer lies where it may not")
    require(all(check_addresses(one).accepted for one in reported), f"{allocator.name} reports wrong addresses")


#: All checks of an allocator; each takes a callable that makes one, and an :class:`~remat.testing.kit.Effort`.
ALLOCATOR_CHECKS: tuple[AllocatorCheck, ...] = (
    bounds_hold, capacities_are_kept, the_start_is_kept, ends_at_its_deadline, several_memories,
)  # fmt: skip
