"""Parser of FlatZinc: untrusted text to a flat model of integers, Booleans and reals.

Source: *FlatZinc specification*, MiniZinc 2.6 handbook, section 4.5. Set variables are unsupported: MiniZinc's
``nosets.mzn`` turns them into Booleans first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.model import Argument, Constraint, FlatZinc, IntSet, Output, Variable, VarKind

#: Longest accepted number, in characters.
MAX_DIGITS = 400
#: Largest magnitude of an integer.
MAX_INT = 2**63 - 1


# Possessive quantifiers prevent backtracking on any input.
_BLANK = re.compile(r"(?:\s++|%[^\n]*+)*+")
_ITEM = re.compile(r'(?:[^";%]++|"(?:[^"\\\n]|\\.)*+"|%[^\n]*+)*+;')
_TOKEN = re.compile(
    r"(?:\s++|%[^\n]*+)*+("
    r"[A-Za-z_][A-Za-z0-9_]*+"
    r"|-?0x[0-9a-fA-F]++|-?0o[0-7]++|-?\d++(?:\.\d++)?+(?:[eE][-+]?\d++)?+"
    r'|"(?:[^"\\\n]|\\.)*+"|\.\.|::|\S)'
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = frozenset({
    "array", "bool", "constraint", "float", "int", "maximize", "minimize", "of", "predicate", "satisfy", "set", "solve",
    "var",
})  # fmt: skip

_AFTER = frozenset(",)")
_DEPTH = {"(": 1, "[": 1, ")": -1, "]": -1}


def parse(text: str, name: str = "input") -> FlatZinc:
    """Parse FlatZinc text.

    Raises
    ------
    FlatZincError
        With one line that names `name`, the line and the fault.

    Examples
    --------
    >>> model = parse("var 1..3: x :: output_var; constraint int_le(2, x); solve minimize x;")
    >>> model.constraints[0].name, model.goal, model.objective.name
    ('int_le', 'minimize', 'x')
    """
    return _Parser(text, name).run()


class _Parser:
    """Parser item by item; :attr:`tokens` holds the tokens of one item, :attr:`at` the position of the next."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.model = FlatZinc()
        self.values: dict[str, Any] = {"true": True, "false": False}  # cache of names and numbers
        self.names: set[str] = set()  # tokens known to be names
        self.tokens: list[str] = []  # the last one is ";"
        self.at = 0
        self.line = 1
        self.solved = False

    def run(self) -> FlatZinc:
        for tokens in self._items():
            self.tokens, self.at = tokens, 1
            head = tokens[0]
            if head == "constraint":
                self._constraint()
            elif head == "var":
                self._variable()
            elif head == "array":
                self._array()
            elif head == "solve":
                self._solve()
            elif head in {"bool", "int", "float", "set"}:
                self._parameter()
            elif head != "predicate":  # the solver checks the arguments of predicates
                self.at = 0
                self._fail("expected an item")
        if not self.solved:
            self._fail("there is no solve item", at_token=False)
        return self.model

    def _items(self) -> Iterator[list[str]]:
        text, place, counted = self.text, 0, 0
        while True:
            blank = _BLANK.match(text, place)
            place = blank.end() if blank else place
            self.line += text.count("\n", counted, place)
            counted = place
            if place == len(text):
                return
            item = _ITEM.match(text, place)
            if item is None:
                self._fail("an item does not end with ';'", at_token=False)
            yield _TOKEN.findall(item.group())
            place = item.end()

    # -- errors and tokens -----------------------------------------------------------------------------------------

    def _fail(self, problem: str, at_token: bool = True) -> NoReturn:
        found = ""
        if at_token:
            found = f", not {_shown(self.tokens[self.at])}" if self.at < len(self.tokens) else ", not the end"
        raise FlatZincError(f"{self.name}: line {self.line}: {problem}{found}")

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            self._fail(f"expected {token!r}")
        self.at += 1

    def _accept(self, token: str) -> bool:
        if self._peek() == token:
            self.at += 1
            return True
        return False

    def _identifier(self) -> str:
        token = self._peek()
        if token not in self.names:
            if not _NAME.fullmatch(token) or token in _KEYWORDS:
                self._fail("expected a name")
            self.names.add(token)
        self.at += 1
        return token

    def _define(self, name: str, value: Any) -> None:
        if name in self.values:
            self._fail(f"name {_shown(name)} is declared twice", at_token=False)
        self.values[name] = value

    def _end(self) -> None:
        self._expect(";")
        if self.at != len(self.tokens):
            self._fail("expected the end of the item")

    # -- expressions -----------------------------------------------------------------------------------------------

    def _number(self) -> int | float:
        token = self._peek()
        digits = token[1:] if token[:1] == "-" else token
        if not digits[:1].isdecimal():
            self._fail("expected a number")
        if len(token) > MAX_DIGITS:
            self._fail(f"a number of {len(token)} characters is too long", at_token=False)
        value: int | float
        if digits[:2] in {"0x", "0o"}:
            value = int(digits[2:], 16 if digits[1] == "x" else 8) * (-1 if token[0] == "-" else 1)
        elif digits.isdecimal():
            value = int(token)
        else:
            value = float(token)
        if (isinstance(value, int) and abs(value) > MAX_INT) or (isinstance(value, float) and not math.isfinite(value)):
            self._fail(f"number {_shown(token)} is too large", at_token=False)
        self.at += 1
        if len(token) < 12:
            self.values[token] = value
        return value

    def _integer(self) -> int:
        value = self._number()
        if not isinstance(value, int):
            self.at -= 1
            self._fail("expected a whole number")
        return value

    def _range(self) -> tuple[Any, Any]:
        low = self._number()
        self._expect("..")
        return low, self._number()

    def _scalar(self) -> Any:
        """Parse a number, truth value, name or set."""
        token = self._peek()
        following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        if following == "..":
            low, high = self._range()
            if not (isinstance(low, int) and isinstance(high, int)):
                self._fail("sets of reals are not supported", at_token=False)
            return IntSet.between(low, high)
        if token == "{":
            return self._listed()
        value = self.values.get(token)
        if value is not None:
            self.at += 1
            if following == "[":
                return self._access(value)
            return value
        if _NAME.fullmatch(token):
            self._fail(f"unknown name {_shown(token)}", at_token=False)
        if token[:1] == '"':
            self._fail("a text has no place here", at_token=False)
        return self._number()

    def _access(self, array: Any) -> Any:
        """Parse ``name[i]`` for a number i."""
        self._expect("[")
        index = self._integer()
        self._expect("]")
        if not isinstance(array, list) or not 1 <= index <= len(array):
            self._fail(f"there is no element {index}", at_token=False)
        return array[index - 1]

    def _listed(self) -> IntSet:
        self._expect("{")
        members: list[int] = []
        while not self._accept("}"):
            members.append(self._integer())
            if self._peek() != "}":
                self._expect(",")
        return IntSet.of(members)

    def _argument(self) -> Argument:
        tokens, first = self.tokens, self.at + 1
        if tokens[first - 1] != "[":
            return self._scalar()
        try:
            last = tokens.index("]", first)
        except ValueError:
            self._fail("'[' is not closed", at_token=False)
        try:  # most arrays contain only cached names and numbers
            result = [self.values[token] for token in tokens[first:last:2]]
        except KeyError:
            pass
        else:
            between = tokens[first + 1 : last : 2]
            if between.count(",") == len(between) and len(between) + bool(result) == len(result):
                self.at = last + 1
                return result
        self.at = first
        result = []
        while not self._accept("]"):
            result.append(self._scalar())
            if self._peek() != "]":
                self._expect(",")
        return result

    def _annotations(self) -> dict[str, list[str]]:
        """Return names of the annotations, with the tokens of their arguments."""
        found: dict[str, list[str]] = {}
        tokens = self.tokens
        while self._accept("::"):
            name = self._identifier()
            first, depth = self.at, 0
            while depth or tokens[self.at] == "(":
                token = tokens[self.at]
                if token == ";":
                    self._fail("an annotation is not closed", at_token=False)
                depth += _DEPTH.get(token, 0)
                self.at += 1
                if not depth:
                    break
            found[name] = tokens[first : self.at]
        return found

    # -- items -----------------------------------------------------------------------------------------------------

    def _constraint(self) -> None:
        name = self._identifier()
        self._expect("(")
        tokens, values = self.tokens, self.values
        arguments: list[Argument] = []
        while not self._accept(")"):
            # Most arguments are cached names or numbers; parsing spends most of its time here.
            value = values.get(tokens[self.at])
            if value is not None and tokens[self.at + 1] in _AFTER:
                self.at += 1
            else:
                value = self._argument()
            arguments.append(value)
            if tokens[self.at] == ",":
                self.at += 1
            elif tokens[self.at] != ")":
                self._expect(",")
        if tokens[self.at] != ";":
            self._annotations()
        self._end()
        self.model.constraints.append(Constraint(name, arguments, self.line))

    def _type(self) -> tuple[VarKind, IntSet | tuple[float, float] | None]:
        token = self._peek()
        if token in {"bool", "int", "float"}:
            self.at += 1
            return VarKind(token), None
        if token == "set":
            self._fail("set variables are not supported", at_token=False)
        if token == "{":
            return VarKind.INT, self._listed()
        low, high = self._range()
        if isinstance(low, int) and isinstance(high, int):
            return VarKind.INT, IntSet.between(low, high)
        return VarKind.FLOAT, (float(low), float(high))

    def _variable(self) -> None:
        kind, domain = self._type()
        self._expect(":")
        name = self._identifier()
        variable = Variable(name, kind, len(self.model.variables), domain)
        annotations = self._annotations()
        if self._accept("="):
            value = self._scalar()
            self.model.constraints.append(Constraint(f"{kind.value}_eq", [variable, value], self.line))
        self._end()
        self._define(name, variable)
        self.model.variables.append(variable)
        if "output_var" in annotations:
            self.model.outputs.append(Output(name, (variable,)))

    def _array(self) -> None:
        self._expect("[")
        first, last = self._integer(), 0
        self._expect("..")
        last = self._integer()
        self._expect("]")
        self._expect("of")
        if self._accept("var"):
            self._type()
        else:
            self._parameter_type()
        self._expect(":")
        name = self._identifier()
        annotations = self._annotations()
        self._expect("=")
        value = self._argument()
        self._end()
        if not isinstance(value, list) or first != 1 or len(value) != max(0, last):
            self._fail(f"array {_shown(name)} does not have the elements {first}..{last}", at_token=False)
        self._define(name, value)
        if "output_array" in annotations:
            self.model.outputs.append(Output(name, tuple(value), self._shape(annotations["output_array"], value)))

    def _shape(self, tokens: list[str], value: list[Any]) -> tuple[tuple[int, int], ...]:
        """Return the index ranges of ``output_array([1..2, 1..3])``."""
        self.tokens, self.at = tokens, 0
        self._expect("(")
        self._expect("[")
        shape: list[tuple[int, int]] = []
        while not self._accept("]"):
            low, high = self._range()
            shape.append((int(low), int(high)))
            if self._peek() != "]":
                self._expect(",")
        if not 1 <= len(shape) <= 6 or math.prod(max(0, high - low + 1) for low, high in shape) != len(value):
            self._fail("an output_array annotation does not fit its array", at_token=False)
        return tuple(shape)

    def _parameter_type(self) -> None:
        if self._accept("set"):
            self._expect("of")
        self._type()

    def _parameter(self) -> None:
        self.at = 0
        self._parameter_type()
        self._expect(":")
        name = self._identifier()
        self._annotations()
        self._expect("=")
        value = self._argument()
        self._end()
        self._define(name, value)

    def _solve(self) -> None:
        if self.solved:
            self._fail("there is a second solve item", at_token=False)
        self._annotations()
        goal = self._peek()
        if goal not in {"satisfy", "minimize", "maximize"}:
            self._fail("expected satisfy, minimize or maximize")
        self.at += 1
        self.model.goal = goal
        if goal != "satisfy":
            self.model.objective = self._scalar()
            if isinstance(self.model.objective, (bool, IntSet, list)):
                self._fail("the objective is not a number", at_token=False)
        self._end()
        self.solved = True


def _shown(token: str) -> str:
    return repr(token if len(token) <= 40 else token[:37] + "...")
