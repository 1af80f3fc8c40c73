"""Parser of HLO text: computations and their instructions, checked as far as schedules depend on them.

Parsing takes a bounded number of passes over every position, for any input. Errors name the line that cannot be parsed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from remat.errors import FormatError
from remat.graphs.formats.hlo.shapes import MAX_DIGITS, Shape, ShapeReader
from remat.io.limits import ReadLimitError, check_count, draw
from remat.runtime.text import clipped, short

HEADER = re.compile(r"HloModule\s+([^\s,]+)")
_TABLE = re.compile(r"(?:FileNames|FunctionNames|FileLocations|StackFrames)\s*$|[0-9]+\s|//")
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
#: Tokens that matter within operands and attributes: brackets, strings, commas, comments and line ends.
_MARK = re.compile(r'[(){}\[\],\n]|"(?:[^"\\\n]|\\.)*"|"|/\*(?s:.*?)\*/|/\*|\Z')
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
ATTRIBUTE = re.compile(r"\s*([\w\-]+)=")
NAME = re.compile(r"%?([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TRIPS = re.compile(rf'"known_trip_count":\{{"n":"([0-9]{{1,{MAX_DIGITS}}})"\}}')
#: Largest nesting of calls.
MAX_CALLS = 64
#: Bytes for each instruction, in addition to its text.
_INSTRUCTION_MEMORY = 2500
#: Attributes that name computations.
CALLS = (
    "calls", "to_apply", "condition", "body", "branch_computations", "true_computation", "false_computation",
    "called_computations", "select", "scatter", "comparator",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Instruction:
    """Instruction of a computation."""

    name: str
    opcode: str
    shape: Shape
    """Shape of its result."""
    operands: tuple[Instruction, ...]
    literal: str
    """Text between the brackets if it is not a list of operands: a constant's value, a parameter's number."""
    attributes: Mapping[str, str]
    """Attributes after the brackets, as text."""
    line: int
    """Line in the text, from 1."""
    span: tuple[int, int, int, int]
    """Positions in the text: of its name, of its operands, of its attributes, and of the end of its line."""

    def names(self, attribute: str) -> list[str]:
        """Return the names in an attribute such as ``calls`` or ``control-predecessors``."""
        said = self.attributes.get(attribute)
        return NAME.findall(said) if said else []

    def numbers(self, attribute: str) -> list[int]:
        """Return the numbers in an attribute such as ``lhs_contracting_dims={1,2}``; refuse huge ones."""
        found = re.findall(r"[0-9]+", self.attributes.get(attribute, ""))
        if any(len(number) > MAX_DIGITS for number in found):
            raise self.fault(f"{attribute} holds a number of more than {MAX_DIGITS} digits")
        return [int(number) for number in found]

    @cached_property
    def called(self) -> list[str]:
        """Names of the computations that it calls."""
        return [name for attribute in CALLS for name in self.names(attribute)]

    @property
    def trip_count(self) -> int | None:
        """Iterations of a loop; None if the compiler did not record them."""
        found = _TRIPS.search(self.attributes.get("backend_config", ""))
        return int(found[1]) if found else None

    @property
    def op_name(self) -> str:
        """Name of the operation in the source program, from the metadata; empty if not recorded."""
        found = _OP_NAME.search(self.attributes.get("metadata", ""))
        return found[1].replace("\\'", "'") if found else ""

    def fault(self, message: str, kind: str = "") -> FormatError:
        """Return an error that names the line and the instruction."""
        return FormatError(f"line {self.line}: {self.name}: {message}", kind)


@dataclass(eq=False)
class Computation:
    """List of instructions, each after its operands."""

    name: str
    is_entry: bool
    line: int
    span: tuple[int, int, int]
    """Positions in the text: of its head, of its first instruction, and of its closing line."""
    instructions: dict[str, Instruction] = field(default_factory=dict)
    """In the order of the text, which is the execution order of a scheduled module."""
    root: Instruction | None = None
    """Instruction whose result is that of the computation."""
    depth: int = 0
    """Largest nesting of calls."""

    @property
    def result(self) -> Instruction:
        """Root instruction."""
        assert self.root is not None
        return self.root


@dataclass(frozen=True, eq=False)
class Module:
    """Parts of a module; each computation comes before its callers."""

    name: str
    header: str
    computations: Mapping[str, Computation]
    entry: Computation

    @cached_property
    def is_scheduled(self) -> bool:
        """True when the order of instructions is the execution order."""
        return re.search(r",\s*is_scheduled=true\b", self.header) is not None

    def called(self, instruction: Instruction) -> list[Computation]:
        """Return the computations that an instruction calls; the reader has checked that they exist."""
        return [self.computations[name] for name in instruction.called]


def read_module(text: str) -> Module:
    """Parse the module in a text.

    Raise FormatError, naming the line that cannot be parsed or is wrong. Examples are duplicate names, operands or
    computations that are not yet defined, numbers or nesting beyond the limits, no entry computation, and more than one
    module.
    """
    check_count(text.count("\n"), "lines")
    return ModuleReader(text).module()


class ModuleReader:
    """Parser that passes over a text once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.shapes = ShapeReader(text)
        self.computations: dict[str, Computation] = {}
        self.current: Computation | None = None
        self._counted = (0, 1)  # a position and its line; positions are requested in ascending order

    def line(self, position: int) -> int:
        before, line = self._counted
        line += self.text.count("\n", before, position)
        self._counted = (position, line)
        return line

    def fault(self, position: int, message: str) -> FormatError:
        return FormatError(f"line {self.text.count(chr(10), 0, position) + 1}: {message}")

    def end_of_line(self, position: int) -> int:
        end = self.text.find("\n", position)
        return len(self.text) if end < 0 else end

    def module(self) -> Module:
        position = len(self.text) - len(self.text.lstrip())
        found = HEADER.match(self.text, position)
        if found is None:
            raise self.fault(position, "an HLO module begins with 'HloModule' and its name")
        name, end = found[1], self.end_of_line(position)
        header, position = self.text[position:end], end + 1
        while position < len(self.text):
            end = self.end_of_line(position)
            line = self.text[position:end].strip()
            if self.current is None:
                self._outside(line, position)
            elif line.startswith("}"):
                if self.current.root is None:
                    raise self.fault(position, f"computation {short(self.current.name)} ends without a ROOT")
                self.current.span = (*self.current.span[:2], position)
                self.current = None
            elif line:
                end = self._instruction(position)
            position = end + 1
        if self.current is not None:
            raise self.fault(len(self.text), f"computation {short(self.current.name)} is not closed")
        entries = [computation for computation in self.computations.values() if computation.is_entry]
        if len(entries) != 1:
            raise FormatError(f"the module has {len(entries)} ENTRY computations, not one")
        return Module(name, header, self.computations, entries[0])

    def _outside(self, line: str, position: int) -> None:
        """Parse a line between computations: the head of one, or of a table of source lines."""
        if not line or (_TABLE.match(line) and not line.endswith("{")):
            return
        if line.startswith("HloModule"):
            raise self.fault(position, "a second module; one is read from a file")
        found = _COMPUTATION.match(line)
        if found is None:
            raise self.fault(position, f"no computation begins with {short(line)}")
        if found[2] in self.computations:
            raise self.fault(position, f"two computations are named {short(found[2])}")
        span = (position, self.end_of_line(position) + 1, len(self.text))
        self.current = Computation(found[2], found[1] is not None, self.line(position), span)
        self.computations[found[2]] = self.current

    def _instruction(self, position: int) -> int:
        """Parse the instruction at `position` into the current computation, and return its end."""
        here = self.current
        assert here is not None
        found = _INSTRUCTION.match(self.text, position)
        if found is None:
            shown = self.text[position : min(self.end_of_line(position), position + 200)].strip()
            raise self.fault(position, f"no instruction: {short(shown)}")
        is_root, name = found[1] is not None, found[2]
        begin, position = found.start(2), found.end()
        if name in here.instructions:
            raise self.fault(position, f"two instructions of {short(here.name)} are named {short(name)}")
        try:
            shape, end = self.shapes.read(position)
        except ReadLimitError:
            raise
        except FormatError as error:
            raise self.fault(position, f"{clipped(name, 80)}: {error}") from None
        opcode = _OPCODE.match(self.text, end)
        if opcode is None:
            raise self.fault(end, f"{clipped(name, 80)}: no opcode after its shape")
        pieces, end = self.pieces(opcode.end(), name, "operands")
        attributes, stop = self.pieces(end, name, "attributes")
        line = self.line(position)
        draw(_INSTRUCTION_MEMORY + 2 * (stop - position))
        literal = ""
        operands: tuple[Instruction, ...] = ()
        if opcode[1] in ("constant", "parameter"):
            literal = ",".join(pieces)
            if len(literal) > 64:  # only its identity matters
                literal = ("..." if "..." in literal else "") + hashlib.sha256(literal.encode()).hexdigest()
        else:
            operands = tuple(self._operand(piece, name, position) for piece in pieces if piece.strip())
        given = dict(self._attribute(piece, name, position) for piece in attributes if piece.strip())
        span = (begin, opcode.end(), end, stop)
        instruction = Instruction(name, opcode[1], shape, operands, literal, given, line, span)
        for called in instruction.called:
            if called not in self.computations or called == here.name:
                raise instruction.fault(f"calls {short(called)}, which is no computation above it")
            here.depth = max(here.depth, self.computations[called].depth + 1)
            if here.depth > MAX_CALLS:
                raise instruction.fault(f"calls within calls, more than {MAX_CALLS} deep")
        here.instructions[name] = instruction
        if is_root:
            if here.root is not None:
                raise instruction.fault("a second ROOT")
            here.root = instruction
        return stop

    def _operand(self, piece: str, name: str, position: int) -> Instruction:
        assert self.current is not None
        found = NAME.fullmatch(piece.rsplit(maxsplit=1)[-1])
        operand = self.current.instructions.get(found[1]) if found else None
        if operand is None:
            shown = short(found[1] if found else piece.strip())
            raise self.fault(position, f"{clipped(name, 80)}: operand {shown} is no instruction above it")
        return operand

    def _attribute(self, piece: str, name: str, position: int) -> tuple[str, str]:
        found = ATTRIBUTE.match(piece)
        if found is None:
            raise self.fault(position, f"{clipped(name, 80)}: no attribute: {short(piece.strip())}")
        return found[1], piece[found.end() :].strip()

    def pieces(self, start: int, name: str, what: str) -> tuple[list[str], int]:
        """Return the comma-separated pieces up to the bracket that closes operands, or the end of the line."""
        operands = what == "operands"
        ends = (")",) if operands else ("\n", "")
        depth = 0
        pieces: list[str] = []
        for found in _MARK.finditer(self.text, start):
            mark, at = found[0], found.start()
            if mark in ('"', "/*"):
                kind = "string" if mark == '"' else "comment"
                raise self.fault(at, f"{clipped(name, 80)}: a {kind} that does not end")
            if mark in ("(", "{", "["):
                depth += 1
            elif mark in (")", "}", "]") and depth:
                depth -= 1
            elif not depth and (mark == "," or mark in ends):
                pieces.append(_COMMENT.sub("", self.text[start:at]) if operands else self.text[start:at])
                start = found.end()
                if mark != ",":
                    return pieces, start if operands else at
            elif mark in (")", "}", "]", "") or (mark == "\n" and not operands):
                raise self.fault(at, f"{clipped(name, 80)}: brackets of its {what} are not closed")
        raise AssertionError("the end of the text is a mark")
