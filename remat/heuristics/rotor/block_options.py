"""Options of a block: values that its backward part reads are saved, or recomputed just before their first read."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np

from remat.heuristics.rotor.blocks import Blocks
from remat.heuristics.rotor.dynamic_programme import BlockOption, Chain
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline

#: Largest number of values for which each next value to drop is chosen by exact cost.
EXACT = 60
#: Shares of the bytes a backward part reads that options save, in addition to those of inner cuts.
SHARES = (0.85, 0.7, 0.55, 0.4, 0.25, 0.1)


def chain_of(blocks: Blocks, deadline: Deadline) -> Chain:
    """Return the chain of blocks with the options of each.

    Raise OverdueError at the deadline.
    """
    maker = Maker(blocks)
    sweeps = [maker.sweep(block) for block in range(blocks.num_blocks)]
    options = tuple(maker.options(block) for block in deadline.each(range(blocks.num_blocks), 1))
    return Chain(
        np.array([cost for cost, _, _ in sweeps], dtype=np.float64),
        np.array([peak for _, peak, _ in sweeps], dtype=np.int64), blocks.between, blocks.above, options,
        tuple(np.array(ops, dtype=np.int64) for _, _, ops in sweeps),
    )  # fmt: skip


class Maker:
    """Construction of the options of blocks.

    An option is a set of saved values. Other values that the backward part reads are recomputed before their first
    read, from saved or recomputed values, and held until their last. Values with the least cost for their bytes are
    dropped first. Further options save the values that cross inner cuts of the block, so its parts are recomputed one
    by one.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        arrays, reads = blocks.reads.step.problem.graph.arrays, blocks.reads
        self.inputs, self.outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
        self.position = arrays.position
        self.cost, self.workspace = arrays.cost.tolist(), arrays.workspace.tolist()
        self.size = reads.size.tolist()
        self.first_write, self.last_read = reads.first_write.tolist(), reads.last_read.tolist()
        self.last_forward = reads.step.last_forward_reads.tolist()
        self.pinned = blocks.pinned.tolist()
        writer = np.full(len(arrays.size), -1, dtype=np.int64)
        writer[arrays.producers.rows] = arrays.producers.indices
        self.writer = writer.tolist()
        self._known: dict[tuple[object, ...], tuple[BlockOption, ...]] = {}

    def sweep(self, block: int) -> tuple[int, int, list[int]]:
        """Return cost, peak and ops of running a block forward only for later blocks."""
        ops, end = self.blocks.forward[block].tolist(), int(self.blocks.ends[block])
        return self.run(ops, {t for op in ops for t in self.outputs[op] if self.last_forward[t] >= end})

    def run(self, ops: list[int], wanted: set[int]) -> tuple[int, int, list[int]]:
        """Return cost, peak and ops of running the `ops` that `wanted` needs, with `wanted` held to the end."""
        needed: list[int] = []
        held = set(wanted)
        for op in reversed(ops):
            if any(t in held for t in self.outputs[op]):
                needed.append(op)
                held.update(self.inputs[op])
        needed.reverse()
        return sum(self.cost[op] for op in needed), self.peak(needed, wanted, set()), needed

    def peak(self, ops: list[int], stays: set[int], there: set[int], live: int = 0) -> int:
        """Return the peak while `ops` run; `there` is live at first (`live` bytes), and `stays` stays live."""
        last: dict[int, int] = {}
        for number, op in enumerate(ops):
            for t in (*self.inputs[op], *self.outputs[op]):
                last[t] = number
        there, peak = set(there), 0
        for number, op in enumerate(ops):
            for t in self.outputs[op]:
                if t not in there:
                    there.add(t)
                    live += self.size[t]
            peak = max(peak, live + self.workspace[op])
            for t in (*self.inputs[op], *self.outputs[op]):
                if t in there and last[t] == number and t not in stays:
                    there.discard(t)
                    live -= self.size[t]
        return peak

    def options(self, block: int) -> tuple[BlockOption, ...]:
        """Return the undominated options of a block.

        Blocks with the same wiring, sizes and costs share their options, which are computed once.
        """
        mine = _Block(self, block)
        ops = np.array([*mine.forward, *mine.backward], dtype=np.int64)
        above, key = mine.above, mine.key()
        if key not in self._known:
            place = np.empty(len(self.position), dtype=np.int64)
            place[ops] = np.arange(len(ops))
            self._known[key] = tuple(_moved(option, place, -above) for option in mine.options())
        return tuple(_moved(option, ops, above) for option in self._known[key])


def _moved(option: BlockOption, ops: Int, above: int) -> BlockOption:
    """Return an option with renumbered ops, and `above` more bytes in its backward part."""
    peak = option.backward_peak + above
    return replace(option, backward_peak=peak, backward=ops[option.backward], alone=ops[option.alone])


class _Block:
    """Properties of a block for the construction of its options."""

    def __init__(self, maker: Maker, block: int) -> None:
        self.maker, blocks = maker, maker.blocks
        self.forward: list[int] = blocks.forward[block].tolist()
        self.backward: list[int] = blocks.backward[block].tolist()
        """`forward` and `backward`: ops of the block."""
        self.forward_end, self.backward_end = int(blocks.ends[block]), int(blocks.backward_ends[block])
        self.backward_start = self.backward_end - len(self.backward)
        self.above = int(blocks.above[block + 1])
        """Bytes alive when the block is reversed, except those that earlier blocks have written."""
        self.own = {t for op in self.forward for t in maker.outputs[op]}
        """Values written by its forward part."""
        after = blocks.forward[block + 1].tolist() if block + 2 < blocks.num_blocks else []
        following = after if after or block + 1 >= blocks.num_blocks else blocks.backward[-1].tolist()
        self.passed_on = self.own & {t for op in following for t in maker.inputs[op]}
        self.late = sorted(t for t in self.own if self.backward_end <= maker.last_read[t] and maker.size[t])
        """Values that backward parts of earlier blocks read."""
        self.fixed = {t for op in self.forward if maker.pinned[op] for t in maker.outputs[op]}
        """`passed_on` and `fixed`: values that the next block reads, and values of ops that are computed once."""
        begin = int(blocks.cuts[block]) if block < len(blocks.cuts) else 0
        inner = [
            cuts[(cuts > begin) & (cuts < self.forward_end)].tolist() for cuts in (blocks.inner if self.forward else ())
        ]
        self.inner = [cuts for cuts in inner if cuts]
        """Cuts inside the forward part."""

    def key(self) -> tuple[object, ...]:
        """Return a key equal for blocks whose options differ only in the names of ops."""
        maker, start = self.maker, self.backward_start
        number: dict[int, int] = {}
        wiring: list[object] = []
        for op in (*self.forward, -1, *self.backward):
            if op < 0:
                wiring.append("backward")
                continue
            touched = [number.setdefault(t, len(number)) for t in (*maker.inputs[op], *maker.outputs[op])]
            wiring.append((maker.cost[op], maker.workspace[op], len(maker.inputs[op]), *touched))
        end = maker.position[self.forward[-1]] + 1 if self.forward else 0
        tensors = [
            (
                maker.size[t], t in self.own, t in self.passed_on, t in self.fixed, maker.last_forward[t] >= end,
                maker.last_read[t] < self.backward_end, end <= maker.first_write[t] < start,
            )
            for t in number
        ]  # fmt: skip
        begin = end - len(self.forward)
        return (*wiring, *tensors, *(tuple(cut - begin for cut in cuts) for cuts in self.inner))

    def saved_sets(self) -> list[set[int]]:
        """Return sets of values to save, from everything to nothing."""
        maker = self.maker
        read = {t for op in self.backward for t in maker.inputs[op] if t in self.own} | set(self.late)
        always = self.fixed | {t for t in read if not maker.size[t]}
        some = sorted(read - always)
        found = [read | always, set(always)]
        found += [saved | always for saved in (self._greedy if len(some) <= EXACT else self._by_price)(some)]
        for cuts in self.inner:
            passing = {
                t
                for t in self.own
                if bisect_right(cuts, maker.first_write[t]) < bisect_right(cuts, maker.last_forward[t])
            }
            found.append(passing | always)
        unique = {frozenset(saved): saved for saved in found}
        return list(unique.values())

    def _greedy(self, some: list[int]) -> list[set[int]]:
        """Drop values, or all outputs of an op, one by one, the cheapest per byte first; and add them likewise.

        Values without bytes are always saved.
        """
        maker = self.maker
        bit = {t: 1 << number for number, t in enumerate(sorted(self.own))}
        wanted = sum(bit[t] for t in some)
        ops = [
            (maker.cost[op], sum(bit[t] for t in maker.outputs[op]), sum(bit[t] for t in maker.inputs[op] if t in bit))
            for op in reversed(self.forward)
        ]
        always = sum(bit[t] for t in self.own if t in self.fixed or not maker.size[t])

        def cost(saved: int) -> int:
            total, needed = 0, wanted & ~saved
            for price, outputs, inputs in ops:
                if outputs & needed:
                    total += price
                    needed |= inputs & ~saved
            return total

        groups = {bit[t] for t in some} | {outputs & wanted for _, outputs, _ in ops if outputs & wanted & ~always}
        found: list[set[int]] = []
        for adding in (False, True):
            saved = always if adding else wanted | always
            now = cost(saved)
            while True:
                best: tuple[float, int, int] | None = None
                for group in groups:
                    after = saved | group if adding else saved & ~(group & ~always)
                    if after == saved:
                        continue
                    then = cost(after)
                    size = sum(maker.size[t] for t in some if bit[t] & (after ^ saved))
                    rank = ((then - now) / max(size, 1), after, then)
                    if best is None or rank < best:
                        best = rank
                if best is None:
                    break
                saved, now = best[1:]
                found.append({t for t in some if bit[t] & saved})
        return found

    def _by_price(self, some: list[int]) -> list[set[int]]:
        """Drop the values with the least cost per byte first; return a set for each share of the bytes left."""
        maker = self.maker
        left = total = sum(maker.size[t] for t in some)
        kept, shares = set(some), list(SHARES)
        found: list[set[int]] = []
        saved = self.fixed | {t for op in self.backward for t in maker.inputs[op]}
        for t in sorted(some, key=lambda t: self._price(t, saved)):
            kept.discard(t)
            left -= maker.size[t]
            if shares and left <= shares[0] * total:
                found.append(set(kept))
                while shares and left <= shares[0] * total:
                    shares.pop(0)
        return found

    def _price(self, tensor: int, saved: set[int]) -> tuple[float, int]:
        """Return the cost per byte of recomputing a value and its ancestors that are never saved."""
        maker = self.maker
        todo, again = [maker.writer[tensor]], set()
        while todo:
            op = todo.pop()
            if op not in again:
                again.add(op)
                todo += [maker.writer[t] for t in maker.inputs[op] if t in self.own and t not in saved]
        size = sum(maker.size[t] for t in maker.outputs[maker.writer[tensor]])
        return sum(maker.cost[op] for op in again) / max(size, 1), tensor

    def options(self) -> list[BlockOption]:
        """Return the undominated options, the cheapest first."""
        found: dict[tuple[float, ...], BlockOption] = {}
        for saved in self.saved_sets():
            option = self._option(saved)
            key = option.saved, option.forward_peak, option.backward_peak, option.cost
            found.setdefault((*key, option.alone_cost, option.alone_peak), option)
        kept = [
            option
            for key, option in found.items()
            if not any(key != other and all(x >= y for x, y in zip(key, other, strict=True)) for other in found)
        ]
        return sorted(kept, key=lambda option: (option.cost, option.saved))

    def _option(self, wanted: set[int]) -> BlockOption:
        """Return the option that saves those values of `wanted` that are read."""
        maker = self.maker
        sequence, saved = self._backward(wanted)
        passing = {t for t in self.own if maker.last_forward[t] >= self.forward_end}
        peak = maker.peak(self.forward, saved | passing, set())
        more = sum(maker.size[t] for t in saved if t not in self.passed_on)
        again = sum(maker.cost[op] for op in sequence)
        alone, alone_peak, alone_ops = maker.run(self.forward, saved)
        return BlockOption(
            more, peak, self._backward_peak(sequence, saved), float(sum(maker.cost[op] for op in self.forward) + again),
            float(alone + again), alone_peak, np.array(sequence, dtype=np.int64), np.array(alone_ops, dtype=np.int64),
        )  # fmt: skip

    def _backward(self, wanted: set[int]) -> tuple[list[int], set[int]]:
        """Return the backward part with recomputations, and the values of `wanted` that it reads."""
        maker, there, saved = self.maker, set(wanted), set()
        sequence: list[int] = []
        for op in (*self.backward, -1):
            again: set[int] = set()
            todo = self.late.copy() if op < 0 else [t for t in maker.inputs[op] if t in self.own]
            while todo:
                t = todo.pop()
                if t in there:
                    if t in wanted:
                        saved.add(t)
                    continue
                writer = maker.writer[t]
                if writer not in again:
                    again.add(writer)
                    todo += [u for u in maker.inputs[writer] if u in self.own]
            recomputed = sorted(again, key=lambda one: maker.position[one])
            for one in recomputed:
                there.update(maker.outputs[one])
            sequence += [*recomputed, op]
        return sequence[:-1], saved

    def _backward_peak(self, sequence: list[int], saved: set[int]) -> int:
        """Return the peak of the backward part, which starts with `above` and the saved values live."""
        maker = self.maker
        used = {t for op in sequence for t in (*maker.inputs[op], *maker.outputs[op])}
        # gradients, and values of later blocks
        above = {t for t in used if self.forward_end <= maker.first_write[t] < self.backward_start}
        stays = {t for t in used if maker.last_read[t] >= self.backward_end}
        live = self.above + sum(maker.size[t] for t in saved)
        return maker.peak(sequence, stays, saved | above, live)
