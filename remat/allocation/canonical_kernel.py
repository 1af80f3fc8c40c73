"""The compiled search for canonical placements; see :mod:`remat.allocation.canonical` for what it does and why."""

# Compiled functions carry no types.
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import NamedTuple

from remat.compiled import inner, kernel
from remat.runtime.arrays import Int

#: What a call ends with: its budget is used up, all is placed, nothing can be, the trails have no room left.
GOES_ON, PLACED, IMPOSSIBLE, NO_ROOM = 0, 1, 2, 3
#: Places in :attr:`Search.state`: frames open, lengths of the trails, goals made, the goals to come, places tried, the
#: capacity, and whether the last frame is to be made or to go on.
DEPTH, OFFSETS, FLOORS, GOALS, NEXT, TRIED, CAPACITY, PHASE, STATE = 0, 1, 2, 3, 4, 5, 6, 7, 8
#: Values of the last of them: take the next goal; try the next buffer of the frame on top.
OPEN, GO_ON = 0, 1
#: Columns of a frame: goal, buffer placed, its offset, last offset and buffer tried, lowest top, lengths of the trails
#: and number of goals before its placement.
F_GOAL, F_BUFFER, F_OFFSET, F_AT, F_TOP, F_OFFSETS, F_FLOORS, F_GOALS, FRAME = 0, 1, 2, 3, 4, 5, 6, 7, 8
#: Columns of a goal: sections from, to; offset and buffer after which its own are placed; the frame whose placement
#: made it; the goal after it.
G_FROM, G_TO, G_OFFSET, G_BUFFER, G_FRAME, G_NEXT, GOAL = 0, 1, 2, 3, 4, 5, 6
LARGE = 2**62


class Search(NamedTuple):
    """Buffers by rank, sections, and the state of a search, all int64 arrays.

    Of buffers: `first` and `last` section (exclusive), `size`, `twin` (an identical buffer of lower rank, or -1), those
    that live at the same time (`near`, a list for each from `near_ptr`); of sections: their buffers (`members`, from
    `member_ptr`). State: `offset` (-1: not placed), `least` offset left for those, `floor` and `total` of sections
    (where what is not placed can begin; its bytes), `across` (how many buffers that are not placed live on both sides
    of the boundary after a section), frames, goals and two trails of (place, value before); `mark` and `touched` are
    room.
    """

    first: Int
    last: Int
    size: Int
    twin: Int
    near_ptr: Int
    near: Int
    member_ptr: Int
    members: Int
    offset: Int
    least: Int
    floor: Int
    total: Int
    across: Int
    frames: Int
    goals: Int
    offset_trail: Int
    floor_trail: Int
    mark: Int
    touched: Int
    state: Int


@inner
def place(s, buffer, low, high):
    """Put a buffer at its least offset; whether the sections of the component can still hold the rest."""
    state, floor, total, least = s.state, s.floor, s.total, s.least
    capacity = state[CAPACITY]
    at, size = least[buffer], s.size[buffer]
    top = at + size
    first, last = s.first[buffer], s.last[buffer]
    s.offset[buffer] = at
    for k in range(first, last):
        s.floor_trail[state[FLOORS], 0] = k
        s.floor_trail[state[FLOORS], 1] = floor[k]
        state[FLOORS] += 1
        floor[k] = top
        total[k] -= size
    for k in range(first, last - 1):
        s.across[k] -= 1
    # Nothing that is not placed begins below this offset, nor below the top of what it shares a section with.
    for k in range(low, high):
        if total[k] > 0 and max(at, floor[k]) + total[k] > capacity:
            return False
    count = 0
    for j in range(s.near_ptr[buffer], s.near_ptr[buffer + 1]):
        other = s.near[j]
        if s.offset[other] >= 0 or least[other] >= top:
            continue
        s.offset_trail[state[OFFSETS], 0] = other
        s.offset_trail[state[OFFSETS], 1] = least[other]
        state[OFFSETS] += 1
        least[other] = top
        for k in range(s.first[other], s.last[other]):
            if s.mark[k] == 0:
                s.mark[k] = 1
                s.touched[count] = k
                count += 1
    fits = True
    for i in range(count):
        k = s.touched[i]
        s.mark[k] = 0
        if not fits:
            continue
        lowest = LARGE
        for j in range(s.member_ptr[k], s.member_ptr[k + 1]):
            other = s.members[j]
            if s.offset[other] < 0 and least[other] < lowest:
                lowest = least[other]
                if lowest <= floor[k]:
                    break
        if lowest < LARGE and lowest > floor[k]:
            s.floor_trail[state[FLOORS], 0] = k
            s.floor_trail[state[FLOORS], 1] = floor[k]
            state[FLOORS] += 1
            floor[k] = lowest
            fits = lowest + total[k] <= capacity
    return fits


@inner
def take_back(s, frame):
    """Undo the placement of a frame."""
    state = s.state
    buffer = s.frames[frame, F_BUFFER]
    while state[OFFSETS] > s.frames[frame, F_OFFSETS]:
        state[OFFSETS] -= 1
        s.least[s.offset_trail[state[OFFSETS], 0]] = s.offset_trail[state[OFFSETS], 1]
    while state[FLOORS] > s.frames[frame, F_FLOORS]:
        state[FLOORS] -= 1
        s.floor[s.floor_trail[state[FLOORS], 0]] = s.floor_trail[state[FLOORS], 1]
    for k in range(s.first[buffer], s.last[buffer]):
        s.total[k] += s.size[buffer]
    for k in range(s.first[buffer], s.last[buffer] - 1):
        s.across[k] += 1
    s.offset[buffer] = -1
    state[GOALS] = s.frames[frame, F_GOALS]
    s.frames[frame, F_BUFFER] = -1


@inner
def split(s, low, high, at, buffer, frame, after):  # noqa: PLR0917
    """Goals for what is left between two sections, one for each part of time that nothing reaches out of; the first."""
    state = s.state
    made = after
    end = high
    for k in range(high - 1, low - 1, -1):
        if k == low or s.across[k - 1] == 0:
            if s.total[k] > 0 or end - k > 1:
                filled = False
                for i in range(k, end):
                    filled = filled or s.total[i] > 0
                if filled:
                    goal = state[GOALS]
                    state[GOALS] += 1
                    s.goals[goal, G_FROM] = k
                    s.goals[goal, G_TO] = end
                    s.goals[goal, G_OFFSET] = at
                    s.goals[goal, G_BUFFER] = buffer
                    s.goals[goal, G_FRAME] = frame
                    s.goals[goal, G_NEXT] = made
                    made = goal
            end = k
    return made


@kernel
def search(s, budget):
    """Go on with a search for so many places tried."""
    state, frames, goals, least = s.state, s.frames, s.goals, s.least
    count, sections = len(s.size), len(s.floor)
    while True:
        if state[PHASE] == OPEN:
            if state[NEXT] < 0:
                return PLACED
            frame = state[DEPTH]
            state[DEPTH] += 1
            goal = state[NEXT]
            lowest = LARGE
            for i in range(count):
                if s.offset[i] < 0 and s.first[i] >= goals[goal, G_FROM] and s.last[i] <= goals[goal, G_TO]:
                    lowest = min(lowest, least[i] + s.size[i])
            frames[frame, F_GOAL] = goal
            frames[frame, F_BUFFER] = -1
            frames[frame, F_OFFSET] = goals[goal, G_OFFSET]
            frames[frame, F_AT] = goals[goal, G_BUFFER]
            frames[frame, F_TOP] = lowest
            state[PHASE] = GO_ON
        if budget <= 0:
            return GOES_ON
        if (
            state[OFFSETS] + count >= len(s.offset_trail)
            or state[FLOORS] + 2 * sections >= len(s.floor_trail)
            or state[GOALS] + sections >= len(goals)
        ):
            return NO_ROOM
        frame = state[DEPTH] - 1
        goal = frames[frame, F_GOAL]
        low, high = goals[goal, G_FROM], goals[goal, G_TO]
        # the next of the goal's buffers by offset and rank, below the lowest top: the others would leave a gap
        past, rank = frames[frame, F_OFFSET], frames[frame, F_AT]
        best, best_at = -1, frames[frame, F_TOP]
        for i in range(count):
            if s.offset[i] < 0 and s.first[i] >= low and s.last[i] <= high:
                at = least[i]
                if (
                    at < best_at
                    and (at > past or (at == past and i > rank))
                    and (s.twin[i] < 0 or s.offset[s.twin[i]] >= 0)
                ):
                    best, best_at = i, at
        if best >= 0:
            budget -= 1
            state[TRIED] += 1
            frames[frame, F_BUFFER] = best
            frames[frame, F_OFFSET] = best_at
            frames[frame, F_AT] = best
            frames[frame, F_OFFSETS] = state[OFFSETS]
            frames[frame, F_FLOORS] = state[FLOORS]
            frames[frame, F_GOALS] = state[GOALS]
            if place(s, best, low, high):
                state[NEXT] = split(s, low, high, best_at, best, frame, goals[goal, G_NEXT])
                state[PHASE] = OPEN
            else:
                take_back(s, frame)
            continue
        # no buffer of this goal can come next: back to the placement that made the goal
        back = goals[goal, G_FRAME]
        if back < 0:
            return IMPOSSIBLE
        for k in range(frame - 1, back - 1, -1):
            take_back(s, k)
        state[DEPTH] = back + 1
