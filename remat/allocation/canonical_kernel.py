"""Kernel of the search for canonical placements; :mod:`remat.allocation.canonical` describes the method."""

# Compiled functions carry no types.
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import NamedTuple

from remat.runtime.arrays import Int
from remat.runtime.compiled import inner, kernel

#: Endings of a call: decisions used up, all buffers placed, infeasible, no room left on the trail.
GOES_ON, PLACED, IMPOSSIBLE, NO_ROOM = 0, 1, 2, 3
#: Fields of :attr:`Search.state`: frames open, length of the trail, goals made, length of the lists, goal and offset of
#: the next decision. Then decisions, capacity, moments queued, number of the decision. Three flags follow: the next
#: step is back, splits sort lists again, buffers are heated. The last is the heat of the last dead end.
DEPTH, TRAIL, GOALS, LISTS, CURRENT, AT, TRIED, CAPACITY, QUEUED, STAMP, BACK, SORTS, HEATS, HEAT, STATE = range(15)
#: Columns of a frame: goal, buffer, whether it is postponed, previous offset, and lengths of trail, goals and lists.
F_GOAL, F_BUFFER, F_LATER, F_AT, F_TRAIL, F_GOALS, F_LISTS, FRAME = range(8)
#: Columns of a goal: first moment and end; range of its buffers in the lists; the frame whose placement made it; the
#: next goal; the offset before its own; frames open before its own.
G_FROM, G_TO, G_LIST, G_END, G_FRAME, G_NEXT, G_AT, G_BASE, GOAL = range(9)
LARGE = 2**62
#: Heat of a dead end above which all heat is scaled down.
HOTTEST = 2**40


class Search(NamedTuple):
    """Buffers by rank, moments, and the state of a search, all int64 arrays of one dimension.

    Of buffers: `first` and `last` moment (exclusive), `size`, `twin` (an identical buffer of lower rank, or -1), `mate`
    (the next in a ring of buffers that live at the same moments). `near` lists the buffers that live at the same time,
    for each from `near_ptr`. Of moments: their buffers (`members`, from `member_ptr`).

    State: `offset` (-1: not placed). `least` has two parts: for each buffer the top of the buffers placed below it,
    then for each a bound on its offset, which is larger if it is postponed. `total` of moments is the size of the
    unplaced buffers, `across` the number of unplaced buffers that live on both sides of the boundary after a moment.
    `blocker` of a postponed buffer is one that may still be placed below it. `key` sorts lists; `heat`; frames, goals,
    `lists` of their buffers, and the `trail` of (place in `least`, previous value). `stamp` holds the decision at which
    a place was last put on the trail, `queue` and `queued` the moments to check.
    """

    first: Int
    last: Int
    size: Int
    twin: Int
    mate: Int
    near_ptr: Int
    near: Int
    member_ptr: Int
    members: Int
    offset: Int
    least: Int
    total: Int
    across: Int
    blocker: Int
    key: Int
    heat: Int
    stamp: Int
    queue: Int
    queued: Int
    frames: Int
    goals: Int
    lists: Int
    trail: Int
    state: Int


@inner
def raise_to(s, place, value):
    """Raise a value of `least`, and record the previous one."""
    state = s.state
    if s.stamp[place] != state[STAMP]:
        s.stamp[place] = state[STAMP]
        s.trail[2 * state[TRAIL]] = place
        s.trail[2 * state[TRAIL] + 1] = s.least[place]
        state[TRAIL] += 1
    s.least[place] = value


@inner
def enqueue(s, buffer):
    """Queue the moments of a buffer for a check."""
    for k in range(s.first[buffer], s.last[buffer]):
        if s.queued[k] == 0:
            s.queued[k] = 1
            s.queue[s.state[QUEUED]] = k
            s.state[QUEUED] += 1


@inner
def check_moment(s, k):
    """Raise the bounds of buffers that cannot be next at a moment; return whether one can."""
    count = len(s.size)
    latest = s.state[CAPACITY] - s.total[k]  # the next buffer begins here at the latest
    top, second, lowest = LARGE, LARGE, -1
    possible, only, left = 0, -1, 0
    for j in range(s.member_ptr[k], s.member_ptr[k + 1]):
        i = s.members[j]
        if s.offset[i] < 0:
            left += 1
            at = s.least[count + i]
            if at <= latest:
                possible += 1
                only = i
            at += s.size[i]
            if at < top:
                top, second, lowest = at, top, i
            elif at < second:
                second = at
    if left in (0, possible):
        return True
    if possible == 0:
        return False
    above = s.least[count + only] + s.size[only] if possible == 1 else 0
    for j in range(s.member_ptr[k], s.member_ptr[k + 1]):
        i = s.members[j]
        if s.offset[i] < 0 and s.least[count + i] > latest:
            at = max(above, second if i == lowest else top)
            if s.least[count + i] < at:
                raise_to(s, count + i, at)
                enqueue(s, i)
    return True


@inner
def supported(s, i):
    """Return the least offset at which a postponed buffer can rest on an unplaced one; LARGE if there is none.

    The unplaced one begins before the end of the place the postponed one could have had: otherwise it could be placed.
    """
    count = len(s.size)
    at, end = s.least[count + i], s.least[i] + s.size[i]
    other = s.blocker[i]
    if other >= 0 and s.offset[other] < 0:
        begin = s.least[count + other]
        if begin < end and begin + s.size[other] <= at:
            return at
    best = LARGE
    for j in range(s.near_ptr[i], s.near_ptr[i + 1]):
        other = s.near[j]
        if s.offset[other] < 0:
            begin = s.least[count + other]
            if begin < end and begin + s.size[other] < best:
                best = begin + s.size[other]
                s.blocker[i] = other
                if best <= at:
                    return at
    return best


@inner
def heat(s, buffers, begin, end):
    """Prefer buffers that met at a dead end in later decisions, those of the latest dead end most."""
    state = s.state
    state[HEAT] += state[HEAT] // 16 + 1
    for j in range(begin, end):
        s.heat[buffers[j]] += state[HEAT]
    if state[HEAT] > HOTTEST:
        state[HEAT] //= HOTTEST // 16
        for i in range(len(s.heat)):
            s.heat[i] //= HOTTEST // 16


@inner
def settle(s, begin, end, at):
    """Propagate bounds to a fixed point; return whether the remaining buffers still fit."""
    state, count = s.state, len(s.size)
    fits = True
    for j in range(begin, end):
        i = s.lists[j]
        if s.offset[i] < 0 and s.least[count + i] < at:
            raise_to(s, count + i, at)
            enqueue(s, i)
    while fits:
        while state[QUEUED] > 0 and fits:
            state[QUEUED] -= 1
            k = s.queue[state[QUEUED]]
            s.queued[k] = 0
            fits = check_moment(s, k)
            if not fits and state[HEATS] == 1:
                heat(s, s.members, s.member_ptr[k], s.member_ptr[k + 1])
        if not fits:
            break
        for j in range(begin, end):
            i = s.lists[j]
            if s.offset[i] < 0 and s.least[count + i] > s.least[i]:
                lowest = supported(s, i)
                if lowest == LARGE:
                    if state[HEATS] == 1:
                        heat(s, s.near, s.near_ptr[i], s.near_ptr[i + 1])
                    fits = False
                    break
                if lowest > s.least[count + i]:
                    raise_to(s, count + i, lowest)
                    enqueue(s, i)
        if state[QUEUED] == 0:
            break
    while state[QUEUED] > 0:
        state[QUEUED] -= 1
        s.queued[s.queue[state[QUEUED]]] = 0
    return fits


@inner
def put(s, buffer):
    """Place a buffer at its least offset."""
    count = len(s.size)
    at = s.least[buffer]
    top = at + s.size[buffer]
    s.offset[buffer] = at
    for k in range(s.first[buffer], s.last[buffer]):
        s.total[k] -= s.size[buffer]
    for k in range(s.first[buffer], s.last[buffer] - 1):
        s.across[k] -= 1
    enqueue(s, buffer)
    for j in range(s.near_ptr[buffer], s.near_ptr[buffer + 1]):
        other = s.near[j]
        if s.offset[other] < 0 and s.least[other] < top:
            raise_to(s, other, top)
            if s.least[count + other] < top:
                raise_to(s, count + other, top)
                enqueue(s, other)
    # of two that live at the same moments, one on the other, the first by rank lies below
    other = s.mate[buffer]
    while other != buffer:
        if s.offset[other] < 0 and other < buffer and s.least[count + other] == top:
            raise_to(s, count + other, top + 1)
            enqueue(s, other)
        other = s.mate[other]


@inner
def undo(s, frame):
    """Undo the decision of a frame."""
    state, f = s.state, frame * FRAME
    while state[TRAIL] > s.frames[f + F_TRAIL]:
        state[TRAIL] -= 1
        s.least[s.trail[2 * state[TRAIL]]] = s.trail[2 * state[TRAIL] + 1]
    buffer = s.frames[f + F_BUFFER]
    if s.frames[f + F_LATER] == 0:
        for k in range(s.first[buffer], s.last[buffer]):
            s.total[k] += s.size[buffer]
        for k in range(s.first[buffer], s.last[buffer] - 1):
            s.across[k] += 1
        s.offset[buffer] = -1
    state[GOALS], state[LISTS] = s.frames[f + F_GOALS], s.frames[f + F_LISTS]
    state[CURRENT], state[AT] = s.frames[f + F_GOAL], s.frames[f + F_AT]


@inner
def make_goal(s, low, high, parent, frame):
    """Make a goal of the buffers of `parent` between two moments, before the next goal; -1 if there are none."""
    state = s.state
    start = state[LISTS]
    for j in range(s.goals[parent * GOAL + G_LIST], s.goals[parent * GOAL + G_END]):
        i = s.lists[j]
        if s.offset[i] < 0 and s.first[i] >= low and s.last[i] <= high:
            place = state[LISTS]
            if state[SORTS] == 1:
                fullest = 0
                for k in range(s.first[i], s.last[i]):
                    fullest = max(fullest, s.total[k])
                s.key[i] = fullest
                while place > start and s.key[s.lists[place - 1]] < fullest:
                    s.lists[place] = s.lists[place - 1]
                    place -= 1
            s.lists[place] = i
            state[LISTS] += 1
    if state[LISTS] == start:
        return -1
    g = state[GOALS] * GOAL
    s.goals[g + G_FROM], s.goals[g + G_TO] = low, high
    s.goals[g + G_LIST], s.goals[g + G_END] = start, state[LISTS]
    s.goals[g + G_FRAME], s.goals[g + G_AT] = frame, state[AT]
    state[GOALS] += 1
    return state[GOALS] - 1


@inner
def split(s, buffer, frame):
    """If a placement splits time into parts that no buffer crosses, make a goal of each and enter the first."""
    state = s.state
    cuts = 0
    for k in range(s.first[buffer], s.last[buffer] - 1):
        if s.across[k] == 0:
            cuts += 1
    if cuts == 0:
        return
    parent = state[CURRENT]
    g = parent * GOAL
    low, high, after = s.goals[g + G_FROM], s.goals[g + G_TO], s.goals[g + G_NEXT]
    end = high
    for k in range(high - 1, low - 1, -1):
        if k == low or s.across[k - 1] == 0:
            made = make_goal(s, k, end, parent, frame)
            if made >= 0:
                s.goals[made * GOAL + G_NEXT] = after
                after = made
            end = k
    enter(s, after)


@inner
def enter(s, goal):
    """Enter a goal."""
    s.state[CURRENT] = goal
    if goal >= 0:
        s.goals[goal * GOAL + G_BASE] = s.state[DEPTH]
        s.state[AT] = s.goals[goal * GOAL + G_AT]


@inner
def choose(s, goal):
    """Return the hottest of the lowest buffers of a goal; -1 if none is left, -2 if all that are left are postponed."""
    count = len(s.size)
    best, best_at, left = -1, LARGE, False
    for j in range(s.goals[goal * GOAL + G_LIST], s.goals[goal * GOAL + G_END]):
        i = s.lists[j]
        if s.offset[i] < 0:
            left = True
            at = s.least[i]
            if (
                s.least[count + i] == at
                and (at < best_at or (at == best_at and s.heat[i] > s.heat[best]))
                and (s.twin[i] < 0 or s.offset[s.twin[i]] >= 0)
            ):
                best, best_at = i, at
    return best if best >= 0 or not left else -2


@inner
def back(s):
    """Undo decisions up to one with an alternative, and take that; return whether there is one."""
    state = s.state
    while True:
        goal = state[CURRENT] * GOAL
        if state[DEPTH] == s.goals[goal + G_BASE]:  # no alternative: back to the placement that made the goal
            target = s.goals[goal + G_FRAME]
            if target < 0:
                return False
            while state[DEPTH] > target + 1:
                state[DEPTH] -= 1
                undo(s, state[DEPTH])
        frame = state[DEPTH] - 1
        undo(s, frame)
        f = frame * FRAME
        if s.frames[f + F_LATER] == 1:
            state[DEPTH] -= 1
            continue
        buffer, count = s.frames[f + F_BUFFER], len(s.size)
        s.frames[f + F_LATER] = 1
        state[STAMP] += 1
        raise_to(s, count + buffer, s.least[buffer] + 1)
        enqueue(s, buffer)
        goal = state[CURRENT] * GOAL
        if settle(s, s.goals[goal + G_LIST], s.goals[goal + G_END], state[AT]):
            return True


@kernel
def search(s, budget, again):
    """Continue a search for `budget` decisions; `again`: restart from the root."""
    state, frames, count, moments = s.state, s.frames, len(s.size), len(s.total)
    if state[STAMP] == 0:
        state[STAMP] = 1
        if not settle(s, 0, state[LISTS], 0):
            return IMPOSSIBLE
    elif again:
        while state[DEPTH] > 0:
            state[DEPTH] -= 1
            undo(s, state[DEPTH])
        state[BACK] = 0
        enter(s, 0)
    while budget > 0:
        if (
            (state[DEPTH] + 1) * FRAME >= len(frames)
            or 2 * (state[TRAIL] + 2 * count) >= len(s.trail)
            or (state[GOALS] + moments) * GOAL >= len(s.goals)
            or state[LISTS] + count >= len(s.lists)
        ):
            return NO_ROOM
        if state[BACK] == 1:
            budget -= 1
            state[TRIED] += 1
            if not back(s):
                return IMPOSSIBLE
            state[BACK] = 0
        goal = state[CURRENT]
        buffer = choose(s, goal)
        if buffer == -1:
            enter(s, s.goals[goal * GOAL + G_NEXT])
            if state[CURRENT] < 0:
                return PLACED
            continue
        if buffer == -2:
            state[BACK] = 1
            continue
        budget -= 1
        state[TRIED] += 1
        state[STAMP] += 1
        frame = state[DEPTH]
        f = frame * FRAME
        frames[f + F_GOAL], frames[f + F_BUFFER], frames[f + F_LATER], frames[f + F_AT] = goal, buffer, 0, state[AT]
        frames[f + F_TRAIL], frames[f + F_GOALS], frames[f + F_LISTS] = state[TRAIL], state[GOALS], state[LISTS]
        state[DEPTH] += 1
        state[AT] = s.least[buffer]
        put(s, buffer)
        g = goal * GOAL
        if settle(s, s.goals[g + G_LIST], s.goals[g + G_END], state[AT]):
            split(s, buffer, frame)
        else:
            state[BACK] = 1
    return GOES_ON
