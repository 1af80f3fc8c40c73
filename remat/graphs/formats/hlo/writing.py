"""Writer of an HLO module in another order: repeated instructions become clones, named as XLA names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from remat.graphs.formats.hlo.lowering import INCIDENTAL, Lowered, ModuleLowering, base_name
from remat.graphs.formats.hlo.text import ATTRIBUTE, CALLS, HEADER, NAME, Instruction, Module, ModuleReader, read_module
from remat.io.formats import reading
from remat.io.limits import draw

#: Opcodes of values that exist from the start.
_GIVEN = ("parameter", "constant")
#: Opcodes whose instructions call computations that no other instruction may call.
_OWNERS = frozenset({"fusion", "while", "conditional", "call", "async-start"})
#: Bytes for each written instruction, in addition to its text.
_LINE_MEMORY = 400


@reading()
def scheduled_text(text: str, steps: Sequence[str]) -> str:
    """Return the text of a module whose entry computation runs its ops in the order of `steps`.

    The first execution of an op keeps the name of its instruction; further ones are clones, ``add.remat``,
    ``add.remat2``. A clone of a fusion calls a clone of the fused computation. Parameters and constants come first.
    Views (tuples and their elements, bitcasts) come right before their readers, as clones if they view a clone. Clones
    in `text` that no step needs are dropped. The module is marked ``is_scheduled=true``.

    `steps` names ops of :func:`~remat.graphs.formats.hlo.program_from_text`: each at least once, after its inputs.
    Raise FormatError, naming the wrong line of `text`, or an instruction that runs too early: it reads a value that
    another one (such as a loop) has yet to pass on unchanged.

    Examples
    --------
    >>> text = '''HloModule tiny, is_scheduled=true
    ... ENTRY main {
    ...   x = f32[4] parameter(0)
    ...   y = f32[4] negate(x)
    ...   z = f32[4] exponential(y)
    ...   ROOT w = f32[4] add(y, z)
    ... }
    ... '''
    >>> print(scheduled_text(text, ["y", "z", "y", "w"]), end="")
    HloModule tiny, is_scheduled=true
    ENTRY main {
      x = f32[4] parameter(0)
      y = f32[4] negate(x)
      z = f32[4] exponential(y)
      y.remat = f32[4] negate(x)
      ROOT w = f32[4] add(y.remat, z)
    }
    """
    module = read_module(text)
    writer = _Writer(text, module, ModuleLowering(module).entry())
    writer.run(steps)
    start, body, end = module.entry.span
    found = HEADER.search(text)
    assert found is not None
    mark = "" if module.is_scheduled else ", is_scheduled=true"
    return "".join((
        text[: found.end()], mark, text[found.end() : start], *writer.computations, text[start:body],
        *writer.lines(), text[end:],
    ))  # fmt: skip


class _Writer:
    """Writer of the instructions of the entry computation, one at a time."""

    def __init__(self, text: str, module: Module, done: Lowered) -> None:
        self.text, self.module, self.done = text, module, done
        self.reader = ModuleReader(text)
        self.instructions = module.entry.instructions
        self.same = _first_of_each_value(module, done)
        self.computations: list[str] = []
        self.written: list[tuple[str, str]] = []  # names and texts of instructions
        self.latest: dict[str, str] = {}  # name of the last clone, by instruction
        self.operands: dict[str, list[str]] = {}  # names that the last clone reads, by view
        self.clones: dict[str, int] = {}  # number of clones, by stem of a name
        self.taken = {*self.same.values(), *module.computations}
        for computation in module.computations.values():
            if computation is not module.entry:
                self.taken.update(computation.instructions)

    def run(self, steps: Iterable[str]) -> None:
        """Write the instructions of the steps, and all that they and the result require."""
        for instruction in self.instructions.values():
            if instruction.opcode in _GIVEN:
                self._write(instruction, [operand.name for operand in instruction.operands])
        ops = {op.name: op.instruction for op in self.done.ops}
        for step in steps:
            self._write(ops[step], self._current(ops[step], ops[step].operands))
        result = self.module.entry.result
        (self.root,) = self._current(result, [result])

    def lines(self) -> list[str]:
        """Return the lines of the entry computation."""
        return [f"  {'ROOT ' * (name == self.root)}{text}\n" for name, text in self.written]

    def _current(self, reader: Instruction, operands: Iterable[Instruction]) -> list[str]:
        """Return the names of the last clones of `operands`, after writing the views among them."""
        fresh: set[str] = set()
        found: list[str] = []
        for operand in operands:
            waiting = [self.same[operand.name]]
            while waiting:
                name = waiting[-1]
                here = self.instructions[name]
                if here.opcode in _GIVEN or name in fresh or name in self.done.made_by:
                    if name not in self.latest:
                        raise reader.fault(f"cannot run before {name}, through which passes what it reads", "hlo-order")
                    waiting.pop()
                    continue
                read = [self.same[each.name] for each in here.operands]
                views = (n for n in read if n not in self.done.made_by and self.instructions[n].opcode not in _GIVEN)
                if missing := [view for view in views if view not in fresh]:
                    waiting += missing
                    continue
                fresh.add(name)
                if unknown := next((each for each in read if each not in self.latest), None):
                    raise reader.fault(f"cannot run before {unknown}, through which passes what it reads", "hlo-order")
                names = [self.latest[each] for each in read]
                if self.operands.get(name) != names:
                    self.operands[name] = names
                    self._write(here, names)
            found.append(self.latest[self.same[operand.name]])
        return found

    def _write(self, instruction: Instruction, operands: list[str]) -> None:
        """Write an instruction, or a clone of it if it has already been written."""
        name, (begin, start, middle, end) = instruction.name, instruction.span
        draw(_LINE_MEMORY + end - begin)
        is_clone = name in self.latest
        new = self._fresh(f"{base_name(name)}.remat") if is_clone else name
        inside = self.text[start:middle]
        if operands != [operand.name for operand in instruction.operands]:
            pieces = [piece.strip() for piece in self.reader.pieces(start, name, "operands")[0]]
            inside = ", ".join(map(_renamed, pieces, operands)) + ")"
        attributes = self._attributes(instruction, self.same, is_clone)
        mark = "%" if self.text[begin - 1] == "%" else ""
        self.written.append((new, mark + new + self.text[begin + len(name) : start] + inside + attributes))
        self.latest[name] = new

    def _attributes(self, instruction: Instruction, same: Mapping[str, str], is_clone: bool) -> str:
        """Return the attributes of an instruction; a clone that owns its computations calls clones of them."""
        pieces, _ = self.reader.pieces(instruction.span[2], instruction.name, "attributes")
        owns = is_clone and instruction.opcode in _OWNERS
        for number, piece in enumerate(pieces):
            found = ATTRIBUTE.match(piece)
            if found and found[1] == "control-predecessors":
                pieces[number] = piece[: found.end()] + _names(piece[found.end() :], lambda name: same.get(name, name))
            elif found and found[1] in CALLS and owns:
                pieces[number] = piece[: found.end()] + _names(piece[found.end() :], self._computation)
        return ",".join(pieces).rstrip()

    def _computation(self, name: str) -> str:
        """Write a clone of a computation and of those that its instructions own; return its name."""
        computation = self.module.computations[name]
        start, body, end = computation.span
        draw(_LINE_MEMORY + 2 * (end - start))
        new = self._fresh(f"{name}.clone")
        parts, place = [self.text[start:body].replace(name, new, 1)], body
        for instruction in computation.instructions.values():
            if instruction.opcode in _OWNERS:
                parts += [self.text[place : instruction.span[2]], self._attributes(instruction, {}, is_clone=True)]
                place = instruction.span[3]
        self.computations.append("".join([*parts, self.text[place:end], "}\n\n"]))
        return new

    def _fresh(self, stem: str) -> str:
        """Return a name that is unused in the module."""
        name = stem
        while name in self.taken:
            self.clones[stem] = self.clones.get(stem, 1) + 1
            name = f"{stem}{self.clones[stem]}"
        self.taken.add(name)
        return name


def _first_of_each_value(module: Module, done: Lowered) -> dict[str, str]:
    """Map each instruction of the entry computation to the first one with the same value."""
    same: dict[str, str] = {}
    views: dict[tuple[object, ...], str] = {}
    for name, instruction in module.entry.instructions.items():
        if name in done.made_by:
            same[name] = done.ops[done.made_by[name]].instruction.name
        elif instruction.opcode in _GIVEN:
            same[name] = name
        else:
            plain = sorted((key, said) for key, said in instruction.attributes.items() if key not in INCIDENTAL)
            read = tuple(same[operand.name] for operand in instruction.operands)
            same[name] = views.setdefault((instruction.opcode, read, tuple(plain)), name)
    return same


def _renamed(piece: str, name: str) -> str:
    """Return an operand such as ``f32[4]{0} %x`` with `name` in place of its own."""
    last = piece.rsplit(maxsplit=1)[-1]
    return piece[: len(piece) - len(last)] + "%" * last.startswith("%") + name


def _names(piece: str, new: Callable[[str], str]) -> str:
    """Return the value of an attribute with each name replaced by ``new(name)``."""
    return NAME.sub(lambda found: "%" * found[0].startswith("%") + new(found[1]), piece)
