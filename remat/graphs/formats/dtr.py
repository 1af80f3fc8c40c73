"""Reader for logs of DTR: the ops that a program executed, in order, as lines of JSON.

Source: M. Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021. The format is that of its prototype for
PyTorch and of its simulator, simrd (github.com/uwsampl/dtr-prototype). The instructions of a log are:

* ``CONSTANT``, with ``MEMORY`` on the next line: a value given to the program;
* ``CALL``: an op with its results, arguments and time in nanoseconds; for each result ``MEMORY`` has its bytes and
  ``ALIAS`` the position of the argument that it is a view of, or -1;
* ``MUTATE``: an op that overwrites some of its arguments. DTR executes it on copies, so they are new tensors here;
* ``COPY`` and ``COPY_FROM``: another name of a value; ``RELEASE``: the program drops a name;
* ``ANNOTATE``: start of the part to read (``START``), and of the backward part (``BACKWARD``); ``PIN`` is ignored.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from remat.errors import FormatError, GraphError
from remat.graphs.builder import GraphBuilder
from remat.graphs.formats.base import GraphFormat
from remat.graphs.graph import ComputeGraph
from remat.io.documents import ForeignDocument, decoded
from remat.io.files import parse_json
from remat.io.formats import Source
from remat.io.limits import check_count
from remat.runtime.text import short

#: Bytes for each instruction, in addition to its text.
_LINE_MEMORY = 2000
_DIGITS = re.compile(r"-?[0-9]{1,19}")


def _whole(value: Any) -> Any:
    """Return the integer in a string of digits, as DTR writes them; return other values unchanged."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=0)]


class Instruction(ForeignDocument):
    """Instruction without relevant fields."""


class Named(Instruction):
    """``CONSTANT``, ``RELEASE`` and ``PIN``."""

    name: str = Field(alias="NAME")


class Memory(Named):
    """``MEMORY``: bytes of a value."""

    memory: Count = Field(alias="MEMORY")


class Alias(Named):
    """``ALIAS``: position of the argument that a result is a view of; -1 for none."""

    alias: Annotated[Whole, Field(ge=-1)] = Field(alias="ALIAS")


class Copy(Instruction):
    """``COPY`` and ``COPY_FROM``."""

    target: str = Field(alias="DST")
    origin: str = Field(alias="SRC")


class Mutate(Named):
    """``MUTATE``: positions of the arguments that are overwritten."""

    args: list[str] = Field(alias="ARGS")
    time: Count = Field(alias="TIME")
    mutated: list[Count] = Field(alias="MUTATE")


class Call(Named):
    """``CALL``."""

    args: list[str] = Field(alias="ARGS")
    time: Count = Field(alias="TIME")
    results: list[str] = Field(alias="RESULT")


class Annotate(Instruction):
    """``ANNOTATE``."""

    annotation: str = Field(alias="ANNOTATION")


KINDS: dict[str, type[Instruction]] = {
    "CONSTANT": Named, "MEMORY": Memory, "CALL": Call, "ALIAS": Alias, "MUTATE": Mutate, "COPY": Copy,
    "COPY_FROM": Copy, "RELEASE": Named, "PIN": Named, "ANNOTATE": Annotate,
}  # fmt: skip


class Line(NamedTuple):
    """Line of a log: its number (from 1), its instruction and the decoded document."""

    number: int
    word: str
    said: Any


class Value(NamedTuple):
    """Tensor of a name, None for a constant, and its size in bytes."""

    tensor: str | None
    size: int


def graph_from_log(text: str, name: str = "") -> ComputeGraph:
    """Return the graph of a DTR log; the order of the log is the reference order.

    Constants are constant memory. A view is another name of its base. Values that have a name at the end are graph
    outputs.

    Raise FormatError naming the line, for invalid JSON, an unknown instruction, missing or wrong fields, an undefined
    or released name. Raise GraphError if the log has no ops.

    Examples
    --------
    >>> log = '''{"INSTRUCTION": "CONSTANT", "NAME": "w"}
    ... {"INSTRUCTION": "MEMORY", "NAME": "w", "MEMORY": "64"}
    ... {"INSTRUCTION": "CALL", "NAME": "relu", "ARGS": ["w"], "RESULT": ["x"], "TIME": "500"}
    ... {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": "64"}
    ... {"INSTRUCTION": "ALIAS", "NAME": "x", "ALIAS": "-1"}'''
    >>> graph = graph_from_log(log)
    >>> graph.op_names, graph.outputs, graph.base_cost, graph.constant_memory
    (('relu/0',), ('x',), 500, 64)
    """
    log = _Log(name)
    log.read(_lines(text))
    return log.graph()


def _lines(text: str) -> deque[Line]:
    """Return the lines after START, or all lines without a START."""
    check_count(text.count("\n"), "lines", _LINE_MEMORY)
    found: deque[Line] = deque()
    started = False
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        document = parse_json(line, f"line {number}")
        word = document.get("INSTRUCTION") if isinstance(document, dict) else None
        if not isinstance(word, str) or word not in KINDS:
            raise FormatError(f"line {number}: {short(word)} is no instruction of DTR ({', '.join(KINDS)})", "dtr-word")
        said = decoded(KINDS[word], document, f"line {number}")
        if isinstance(said, Annotate) and said.annotation == "START" and not started:
            started = True
            found.clear()
            continue
        found.append(Line(number, word, said))
    return found


class _Log:
    """Ops of a log so far, and the current value of each name."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name, cost_unit="ns", source="DTR log")
        self.values: dict[str, Value] = {}
        self.released: dict[str, int] = {}  # line of the release, by name
        self.versions: dict[str, int] = {}  # number of versions, by name of a tensor
        self.ops: list[dict[str, Any]] = []
        self.begin_backward: int | None = None
        self.views = self.view_time = 0

    def read(self, lines: deque[Line]) -> None:
        while lines:
            number, word, said = line = lines.popleft()
            match said:
                case Annotate(annotation="BACKWARD"):
                    self._backward()
                case Call():
                    self._call(line, *self._sizes(lines, said.results))
                case Mutate():
                    self._mutate(line)
                case Copy():
                    self.values[said.target] = self._value(said.origin, number)
                case Named() if word == "CONSTANT":
                    sizes, _ = self._sizes(lines, [said.name])
                    self.values[said.name] = Value(None, self._size(sizes, said.name, number))
                    self.builder.constant_memory += sizes[said.name]
                case Named() if word == "RELEASE" and self.values.pop(said.name, None) is not None:
                    self.released[said.name] = number

    @staticmethod
    def _sizes(lines: deque[Line], names: list[str]) -> tuple[dict[str, int], dict[str, int]]:
        """Consume the lines that follow with the bytes and aliases of `names`, and return both."""
        sizes: dict[str, int] = {}
        aliases: dict[str, int] = {}
        wanted = set(names)
        while lines and isinstance(lines[0].said, Memory | Alias) and lines[0].said.name in wanted:
            said = lines.popleft().said
            if isinstance(said, Memory):
                sizes[said.name] = said.memory
            else:
                aliases[said.name] = said.alias
        return sizes, aliases

    @staticmethod
    def _size(sizes: dict[str, int], name: str, number: int) -> int:
        if name not in sizes:
            raise FormatError(f"line {number}: no MEMORY of {short(name)} follows", "dtr-memory")
        return sizes[name]

    def _value(self, name: str, number: int) -> Value:
        if name not in self.values:
            why = f"line {self.released[name]} releases" if name in self.released else "no line before defines"
            raise FormatError(f"line {number} uses {short(name)}, which {why}", "dtr-name")
        return self.values[name]

    def _tensor(self, name: str, size: int) -> str:
        """Declare a tensor and return its name; a name already in use gets a number."""
        tensor = name
        while tensor in self.versions:
            self.versions[name] += 1
            tensor = f"{name}${self.versions[name]}"
        self.versions[tensor] = 1
        return self.builder.tensor(tensor, size)

    def _call(self, line: Line, sizes: dict[str, int], aliases: dict[str, int]) -> None:
        number, _, call = line
        args = [self._value(name, number) for name in call.args]
        made: dict[str, Value] = {}
        for result in call.results:
            if result in made or result in self.values:
                raise FormatError(f"line {number}: {short(result)} is defined twice", "dtr-name")
            alias, size = aliases.get(result, -1), self._size(sizes, result, number)
            if alias >= len(args):
                raise FormatError(
                    f"line {number}: {short(result)} is a view of argument {alias} of {len(args)}", "dtr-alias"
                )
            made[result] = args[alias] if alias >= 0 else Value(self._tensor(result, size), size)
        outputs = [made[name].tensor for name in call.results if aliases.get(name, -1) < 0]
        if outputs:
            self._op(call, args, outputs)
        else:
            self.views += 1
            self.view_time += call.time
        self.values.update(made)

    def _mutate(self, line: Line) -> None:
        number, _, mutate = line
        args = [self._value(name, number) for name in mutate.args]
        wrong = next((position for position in mutate.mutated if position >= len(args)), None)
        if wrong is not None or not mutate.mutated:
            what = "nothing" if wrong is None else f"argument {wrong} of {len(args)}"
            raise FormatError(f"line {number}: {short(mutate.name)} overwrites {what}", "dtr-mutate")
        sizes = {mutate.args[position]: args[position].size for position in mutate.mutated}
        made = {name: Value(self._tensor(name, size), size) for name, size in sizes.items()}
        self._op(mutate, args, [value.tensor for value in made.values()])
        self.values.update(made)

    def _op(self, said: Call | Mutate, args: list[Value], outputs: list[str | None]) -> None:
        if "backward" in said.name:
            self._backward()
        inputs = [value.tensor for value in args if value.tensor is not None]
        self.ops.append({
            "name": f"{said.name}/{len(self.ops)}", "inputs": inputs, "outputs": outputs, "cost": said.time,
            "type": said.name,
        })  # fmt: skip

    def _backward(self) -> None:
        if self.begin_backward is None:
            self.begin_backward = len(self.ops)

    def graph(self) -> ComputeGraph:
        if not self.ops:
            raise GraphError("the log computes nothing")
        for number, op in enumerate(self.ops):
            phase = "" if self.begin_backward is None else "backward" if number >= self.begin_backward else "forward"
            self.builder.op(**op, phase=phase)
        self.builder.output(*dict.fromkeys(value.tensor for value in self.values.values() if value.tensor is not None))
        self.builder.meta["views"] = {"calls": self.views, "ns": self.view_time}
        return self.builder.build([op["name"] for op in self.ops])


def _recognizes(source: Source) -> bool:
    end = source.data.find(b"\n", 4096)  # the first line may be a call with thousands of arguments
    head = source.data if end < 0 else source.data[:end]
    return re.match(rb'\s*\{[^\n]*"INSTRUCTION"\s*:', head) is not None


def _read(source: Source) -> ComputeGraph:
    graph = graph_from_log(source.text, source.stem)
    views = graph.meta["views"]
    if views["calls"]:
        source.remarks.append(f"{views['calls']:,} views, {views['ns']:,} ns in all, are no ops")
    return graph


FORMAT = GraphFormat(
    name="dtr",
    description="log of DTR's prototype and simulator (JSON lines): the ops that a program ran, with their times",
    recognizes=_recognizes,
    read=_read,
)
