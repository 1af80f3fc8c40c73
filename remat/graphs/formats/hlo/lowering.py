"""Lowering of computations to ops and tensors: views are folded, clones merged with their base.

The result of an instruction is a *value*: a leaf, or a tuple of values. A leaf stands for the tensors that hold it:
one, or none for a constant, or one and an empty tensor that marks its completion (``-done`` instructions).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from remat.graphs.formats.hlo.costs import Costs
from remat.graphs.formats.hlo.shapes import HOST, ArrayShape, Shape, arrays
from remat.graphs.formats.hlo.text import CALLS, Computation, Instruction, Module
from remat.graphs.graph import MAX_TOTAL
from remat.io.limits import check_count, draw

#: Bytes for each array that is a value, and for each that an op writes, in addition to its name.
_LEAF_MEMORY, _ARRAY_MEMORY = 100, 700

Value: TypeAlias = "int | tuple[Value, ...]"

#: Suffix of a clone's name: ``.remat``, ``.remat2``, ``.remat.1``, ``.remat.1.remat``.
_SUFFIX = re.compile(r"\.remat[0-9]*(?=\.|$)")
_RENAMES = frozenset({"bitcast", "opt-barrier", "domain", "add-dependency"})
_ONCE = frozenset({"rng", "rng-get-and-update-state", "infeed", "outfeed", "send", "recv", "send-done", "recv-done"})
#: Attributes in which a clone may differ from its base.
INCIDENTAL = frozenset({"metadata", "control-predecessors", "channel_id", "sharding", "frontend_attributes", *CALLS})


@dataclass(frozen=True, eq=False)
class LoweredOp:
    """Op, with the numbers of the tensors that it reads and writes."""

    name: str
    instruction: Instruction
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cost: int
    workspace: int
    recomputable: bool


@dataclass(eq=False)
class Lowered:
    """Lowered computation."""

    ops: list[LoweredOp] = field(default_factory=list)
    tensors: list[tuple[str, int]] = field(default_factory=list)
    """Name and bytes."""
    steps: list[int] = field(default_factory=list)
    """Op of each step; a repeated op is recomputed."""
    made_by: dict[str, int] = field(default_factory=dict)
    """Op of each instruction that is one; clones map to the op of their base."""
    parameters: list[int] = field(default_factory=list)
    results: tuple[int, ...] = ()
    """Leaves."""
    leaves: list[tuple[int, ...]] = field(default_factory=list)
    """Tensors of each leaf."""
    constant_bytes: dict[str, int] = field(default_factory=lambda: {"parameter": 0, "constant": 0})
    """Bytes of parameters and of constants."""
    clones: int = 0
    """Steps that are recomputations."""
    stale: int = 0
    """Number of reads of a value that has a newer copy. Memory then holds both copies, but only one is counted."""
    remarks: list[str] = field(default_factory=list)

    def held(self, leaves: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tensors of some leaves, without duplicates."""
        return tuple(dict.fromkeys(tensor for leaf in leaves for tensor in self.leaves[leaf]))

    @cached_property
    def workspace(self) -> int:
        """Most bytes held at once beyond parameters and results, each tensor freed after its last use."""
        size = [size for _, size in self.tensors]
        for tensor in self.held((*self.parameters, *self.results)):
            size[tensor] = 0
        held, now, peak = set[int](), 0, 0
        for step in reversed(self.steps):  # a tensor is live after a step if a later step reads it before a write
            op = self.ops[step]
            new = {*op.inputs, *op.outputs} - held
            held |= new
            now += sum(size[tensor] for tensor in new)
            peak = max(peak, now + op.workspace)
            gone = set(op.outputs).difference(op.inputs)
            held -= gone
            now -= sum(size[tensor] for tensor in gone)
        return peak


def flat(value: Value) -> Iterator[int]:
    """Yield the leaves of a value from left to right."""
    if isinstance(value, int):
        yield value
    else:
        for part in value:
            yield from flat(part)


def formed(shape: Shape, leaves: Iterator[int]) -> Value:
    """Return a value of the given shape, filled with the next leaves."""
    if isinstance(shape, ArrayShape):
        return next(leaves)
    return tuple(formed(part, leaves) for part in shape.parts)


def same_form(a: Shape, b: Shape) -> bool:
    """Return True if two shapes nest their tuples in the same way, regardless of the arrays in them."""
    if isinstance(a, ArrayShape) or isinstance(b, ArrayShape):
        return isinstance(a, ArrayShape) and isinstance(b, ArrayShape)
    return len(a.parts) == len(b.parts) and all(map(same_form, a.parts, b.parts))


def base_name(name: str) -> str:
    """Return the name of a clone's base.

    >>> base_name("fusion.9.remat.1.remat"), base_name("add.remat2"), base_name("copy.remat_compressed")
    ('fusion.9', 'add', 'copy.remat_compressed')
    """
    found = _SUFFIX.search(name)
    return name[: found.start()] if found and found.start() else name


class ModuleLowering:
    """Lowering of all computations of a module; each called one is lowered once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.costs = Costs(module)
        self.reads = 0
        self._called: dict[str, Lowered] = {}
        self._digests: dict[str, str] = {}

    def called(self, computation: Computation) -> Lowered:
        """Return the lowered form of a called computation."""
        if computation.name not in self._called:
            self._called[computation.name] = _Lowering(self, computation).run()
        return self._called[computation.name]

    def inner(self) -> list[Lowered]:
        """Return all lowered computations that another one calls."""
        return list(self._called.values())

    def entry(self) -> Lowered:
        """Return the lowered form of the entry computation."""
        return _Lowering(self, self.module.entry).run()

    def signature(self, instruction: Instruction) -> tuple[object, ...]:
        """Return all properties of an instruction except its operands; equal for a clone and its base."""
        plain = sorted((key, text) for key, text in instruction.attributes.items() if key not in INCIDENTAL)
        shape = tuple((str(array), array.size, array.space) for array in arrays(instruction.shape))
        called = tuple(self.digest(computation) for computation in self.module.called(instruction))
        return instruction.opcode, shape, tuple(plain), called

    def digest(self, computation: Computation) -> str:
        """Return a digest of a computation; equal for computations that differ in names only."""
        if computation.name not in self._digests:
            numbers = {name: number for number, name in enumerate(computation.instructions)}
            said = hashlib.sha256()
            for i in computation.instructions.values():
                operands = [numbers[operand.name] for operand in i.operands]
                said.update(repr((self.signature(i), i.literal, operands, i is computation.root)).encode())
            self._digests[computation.name] = said.hexdigest()
        return self._digests[computation.name]


class _Lowering:
    """Lowering of the instructions of one computation, in turn."""

    def __init__(self, lowering: ModuleLowering, computation: Computation) -> None:
        self.all = lowering
        self.here = computation
        self.done = Lowered()
        self.values: dict[str, Value] = {}
        self.known: dict[tuple[object, ...], tuple[int, Value]] = {}  # op and value, by base name and signature
        self.names: set[str] = set()
        self.latest: dict[int, str] = {}  # last instruction of each op
        self.ordered: dict[str, int] = {}  # empty tensor that marks completion, by instruction with control successors
        self.before = {name for i in computation.instructions.values() for name in i.names("control-predecessors")}

    def run(self) -> Lowered:
        host = 0
        for instruction in self.here.instructions.values():
            self.values[instruction.name] = self._value(instruction)
            if instruction.opcode != "tuple":
                host += sum(array.space == HOST for array in arrays(instruction.shape))
        if host:
            self.done.remarks.append(f"{host} arrays are in the memory of the host and take none of the device's")
        self.done.results = tuple(flat(self.values[self.here.result.name]))
        return self.done

    def _value(self, instruction: Instruction) -> Value:
        opcode = instruction.opcode
        operands = instruction.operands
        if opcode == "parameter":
            return self._parameter(instruction)
        if opcode == "constant":
            return self._constant(instruction)
        if opcode == "tuple":
            parts = () if isinstance(instruction.shape, ArrayShape) else instruction.shape.parts
            if len(parts) != len(operands) or not all(
                same_form(p, o.shape) for p, o in zip(parts, operands, strict=True)
            ):
                raise instruction.fault("its operands are not what its shape says")
            return tuple(self.values[operand.name] for operand in operands)
        if opcode == "get-tuple-element":
            return self._element(instruction)
        if opcode in _RENAMES:
            if not operands or not same_form(instruction.shape, operands[0].shape):
                raise instruction.fault("its operand is not what its shape says")
            return self.values[operands[0].name]
        return self._op(instruction)

    def _bytes(self, instruction: Instruction) -> int:
        return sum(array.size for array in arrays(instruction.shape) if array.space != HOST)

    def _parameter(self, instruction: Instruction) -> Value:
        self.done.constant_bytes["parameter"] += self._bytes(instruction)
        draw(_LEAF_MEMORY * instruction.shape.leaves)
        first = len(self.done.leaves)
        self.done.leaves += [()] * instruction.shape.leaves
        leaves = range(first, len(self.done.leaves))
        self.done.parameters += leaves
        return formed(instruction.shape, iter(leaves))

    def _constant(self, instruction: Instruction) -> Value:
        """Return a new value; a clone and equal literals share one."""
        said = base_name(instruction.name) if "..." in instruction.literal else instruction.literal
        key = ("constant", (), (self.all.signature(instruction), said))
        if key not in self.known:
            draw(_LEAF_MEMORY * instruction.shape.leaves)
            self.done.constant_bytes["constant"] += self._bytes(instruction)
            leaves = [self._new_leaf(()) for _ in range(instruction.shape.leaves)]
            self.known[key] = (-1, formed(instruction.shape, iter(leaves)))
        return self.known[key][1]

    def _element(self, instruction: Instruction) -> Value:
        whole = instruction.operands[0] if instruction.operands else None
        numbers = instruction.numbers("index")
        if whole is None or isinstance(whole.shape, ArrayShape) or len(numbers) != 1:
            raise instruction.fault("takes an element of what is no tuple")
        if numbers[0] >= len(whole.shape.parts):
            raise instruction.fault(f"takes element {numbers[0]} of a tuple of {len(whole.shape.parts)}")
        if not same_form(instruction.shape, whole.shape.parts[numbers[0]]):
            raise instruction.fault("the element is not what its shape says")
        value = self.values[whole.name]
        assert isinstance(value, tuple)
        return value[numbers[0]]

    def _op(self, instruction: Instruction) -> Value:
        read = tuple(leaf for operand in instruction.operands for leaf in flat(self.values[operand.name]))
        self.all.reads += len(read)
        draw(8 * len(read) + (_ARRAY_MEMORY + len(instruction.name)) * instruction.shape.leaves)
        check_count(self.all.reads, "arrays read by instructions", memory=0)
        base = base_name(instruction.name)
        key = (base, read, self.all.signature(instruction))
        if key in self.known:
            step, value = self.known[key]
            self._note(instruction, step)
            self.done.clones += 1
            return value
        name = base
        if base in self.names:
            name = instruction.name
            self.done.remarks.append(f"{name} does something else than {base}: an op of its own")
        self.names.add(name)
        aliases, ready = self._aliases(instruction)
        made: list[int] = []
        leaves: list[int] = []
        single = instruction.shape.leaves == 1
        for number, array in enumerate(arrays(instruction.shape)):
            alias = aliases[number] if aliases is not None else None
            if alias is not None:
                leaves.append(alias)
                continue
            if array.size >= MAX_TOTAL:
                raise instruction.fault("an array of 2^62 bytes or more")
            size = 0 if array.space == HOST else array.size
            made.append(self._tensor(name if single else f"{name}{{{number}}}", size))
            leaves.append(self._new_leaf((made[-1],)))
        if ready or not made:
            made.append(self._tensor(f"{name}{{done}}"))
            leaves = [self._new_leaf((*self.done.leaves[leaf], made[-1])) for leaf in leaves]
        if instruction.name in self.before:
            made.append(self._tensor(f"{name}{{before}}"))
            self.ordered[instruction.name] = made[-1]
        waits = [self.ordered[n] for n in instruction.names("control-predecessors") if n in self.ordered]
        inputs = tuple(dict.fromkeys((*self.done.held(read), *waits)))
        inside = instruction.opcode in ("while", "conditional", "call", "async-start")  # their tensors take memory now
        called = [self.all.called(c) for c in self.all.module.called(instruction)] if inside else []
        effect = instruction.attributes.get("custom_call_has_side_effect", "") == "true"
        op = LoweredOp(
            name, instruction, inputs, tuple(made), self.all.costs.of_instruction(instruction),
            max((c.workspace for c in called), default=0), not effect and instruction.opcode not in _ONCE,
        )  # fmt: skip
        self._note(instruction, len(self.done.ops))
        value = formed(instruction.shape, iter(leaves))
        self.known[key] = (len(self.done.ops), value)
        self.done.ops.append(op)
        return value

    def _note(self, instruction: Instruction, op: int) -> None:
        """Append a step, and count its reads of values that have been recomputed since."""
        self.done.steps.append(op)
        for operand in instruction.operands:
            self.done.stale += self.latest.get(self.done.made_by.get(operand.name, -1), operand.name) != operand.name
        self.done.made_by[instruction.name] = op
        self.latest[op] = instruction.name

    def _new_leaf(self, tensors: tuple[int, ...]) -> int:
        self.done.leaves.append(tensors)
        return len(self.done.leaves) - 1

    def _tensor(self, name: str, size: int = 0) -> int:
        self.done.tensors.append((name, size))
        return len(self.done.tensors) - 1

    def _aliases(self, instruction: Instruction) -> tuple[list[int | None] | None, bool]:
        """Return the leaf that each array of the result aliases (None: new), and True if all depend on this op."""
        opcode, shape, operands = instruction.opcode, instruction.shape, instruction.operands
        given = [leaf for operand in operands for leaf in flat(self.values[operand.name])]
        if opcode in ("while", "call"):
            called = self.all.module.called(instruction)
            body = self.all.called(called[-1] if opcode == "while" else called[0]) if called else None
            if body is None or len(body.parameters) != len(given) or len(body.results) != shape.leaves:
                raise instruction.fault("what it calls does not take and give what it does itself")
            places = {leaf: number for number, leaf in enumerate(body.parameters)}
            passed = [places.get(leaf) for leaf in body.results]
            if opcode == "while":  # an iteration may change every leaf that is not returned in its own place
                passed = [p if p == number else None for number, p in enumerate(passed)]
            return [None if place is None else given[place] for place in passed], False
        if opcode.endswith("-done") and operands:
            return self._finished(instruction), True
        if opcode == "copy-start" and not isinstance(shape, ArrayShape):
            return self._part(instruction, 1, given), False
        if (opcode.endswith("-start") or opcode == "send") and not isinstance(shape, ArrayShape) and shape.parts:
            same = shape.parts[0].leaves == len(given) and shape.leaves > len(given)
            return (self._part(instruction, 0, given) if same else None), False
        if opcode == "async-update" and operands and same_form(shape, operands[0].shape):
            return list(given), True
        return None, False

    @staticmethod
    def _part(instruction: Instruction, number: int, leaves: list[int]) -> list[int | None] | None:
        """Return the operand's leaves for element `number` of the result, and None for the other arrays."""
        shape = instruction.shape
        assert not isinstance(shape, ArrayShape)
        if number >= len(shape.parts) or shape.parts[number].leaves != len(leaves):
            raise instruction.fault("its shape has no place for its operands")
        return [
            leaf
            for place, part in enumerate(shape.parts)
            for leaf in (leaves if place == number else [None] * part.leaves)
        ]

    def _finished(self, instruction: Instruction) -> list[int | None]:
        """Return the arrays that a ``-done`` returns: those that its ``-start`` created."""
        start = instruction.operands[0]
        value = self.values[start.name]
        wanted = instruction.shape.leaves
        if instruction.opcode == "send-done":
            return [None] * wanted
        if isinstance(value, tuple) and start.opcode != "all-reduce-start":
            place = 0 if instruction.opcode in ("copy-done", "recv-done") else 1
            value = value[place] if place < len(value) else ()
        found: list[int | None] = list(flat(value))
        if instruction.opcode == "recv-done" and len(found) == wanted - 1:
            found.append(None)
        if len(found) != wanted:
            raise instruction.fault(f"does not finish what {start.name} starts")
        return found
