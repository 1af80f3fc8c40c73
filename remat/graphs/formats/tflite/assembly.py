"""Assembly of the graph of a subgraph of a TensorFlow Lite model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from remat.errors import FormatError
from remat.graphs.formats.base import UniqueNames
from remat.graphs.formats.tflite.describing import describe
from remat.graphs.formats.tflite.macs import cost, products
from remat.graphs.formats.tflite.tables import ModelTables, OperatorEntry
from remat.graphs.graph import ComputeGraph, Op, Tensor
from remat.graphs.rewriting.descriptions import DESCRIPTION_MEMORY, Description, Site, described, is_usable
from remat.io.limits import draw
from remat.runtime.text import clipped, together

#: Ops whose output is their first input in another shape.
VIEWS = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})
#: Ops that run other subgraphs.
CONTROL_FLOW = frozenset({"IF", "WHILE", "CALL", "CALL_ONCE", "STABLEHLO_WHILE", "STABLEHLO_COMPOSITE"})
#: Ops that read or change state other than tensors of the file; they keep their order.
RESOURCES = frozenset({"CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "HASHTABLE",
                       "HASHTABLE_FIND", "HASHTABLE_IMPORT"})  # fmt: skip
#: First words of the remark on ops that run subgraphs.
BODIES_REMARK = "the largest peak of their subgraphs is the workspace"
#: Largest nesting depth of subgraphs.
MAX_DEPTH = 16
RANDOM = frozenset({"RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR"})
#: Reference kernels of TensorFlow Lite Micro that give the same numbers if an offline plan puts a FLOAT32 output
#: on an input of the same shape: tested with tflite_micro 0.dev20261023. Other kernel libraries need their own lists.
IN_PLACE = frozenset({"RELU", "RELU6", "LEAKY_RELU", "HARD_SWISH", "LOGISTIC", "TANH", "SOFTMAX", "ADD", "MUL"})
#: Types of quantised tensors; biases are INT32 or INT64.
QUANTISED = frozenset({"INT8", "UINT8", "INT16", "INT4"})
_FROM_SHAPES = frozenset({"SHAPE", "RANK"})


class Need(NamedTuple):
    """Peak and constant memory of a subgraph in bytes, and its cost."""

    peak: int
    constants: int
    cost: int


@dataclass(eq=False)
class Bodies:
    """Subgraphs that ops run."""

    tables: Callable[[int], ModelTables]
    needs: dict[int, Need] = field(default_factory=dict)
    """Needs of the subgraphs read so far, by position."""
    running: list[int] = field(default_factory=list)
    """Subgraphs that are being read, each run by the one before it."""

    def need(self, subgraph: int, fold_views: bool) -> Need:
        """Return what a subgraph needs; raise FormatError if it is ill-formed or runs itself."""
        if subgraph in self.needs:
            return self.needs[subgraph]
        if subgraph in self.running or len(self.running) >= MAX_DEPTH:
            raise FormatError(f"subgraphs run each other more than {MAX_DEPTH} deep", "subgraph")
        self.running.append(subgraph)
        graph = Assembly(self.tables(subgraph), fold_views, True, [], bodies=self).graph()
        self.running.pop()
        found = Need(graph.reference_peak if graph.ops else 0, graph.constant_memory, graph.base_cost)
        self.needs[subgraph] = found
        return found


@dataclass(eq=False)
class Assembly:
    """Builder of the graph of a subgraph; its fields then map the graph to the file."""

    tables: ModelTables
    fold_views: bool
    control_flow: bool
    remarks: list[str]
    in_place: bool = False
    copied: frozenset[int] = frozenset()
    """Outputs of views, by position, that are tensors of their own even with `fold_views`."""
    quantised: bool = False
    """Describe quantised ops too, for estimates: rewriting does not give the same numbers."""
    bodies: Bodies | None = None
    """Subgraphs, for the memory and cost of ops that run them; None: these are not counted."""
    tensors: list[Tensor] = field(default_factory=list)
    name_of: dict[int, str] = field(default_factory=dict)
    """Tensor of the graph, by position in the file."""
    base: dict[int, int] = field(default_factory=dict)
    """Tensor whose memory a folded view shares, both by position."""
    position_of: dict[str, int] = field(default_factory=dict)
    """Operator of the file by the name of its op."""
    names: UniqueNames = field(default_factory=UniqueNames)
    constant: set[int] = field(init=False)
    """Tensors that are the same in every run, by position."""
    variable: set[int] = field(init=False)
    """Tensors that keep their content between runs, by position."""
    held: set[int] = field(default_factory=set)
    """Constants and variables that ops read or write, by position."""
    ops: list[Op] = field(default_factory=list)
    macs: int = 0
    called: set[int] = field(default_factory=set)
    """Subgraphs that ops run."""
    state: tuple[str, ...] = ()
    """Output, without bytes, of the last op with resources: the next one reads it, so that they keep their order."""
    modules: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Description] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tables = self.tables
        written = {*tables.inputs, *(p for operator in tables.operators for p in operator.outputs)}
        self.variable = {p for p, tensor in enumerate(tables.tensors) if tensor.is_variable}
        self.constant = {
            p
            for p, tensor in enumerate(tables.tensors)
            if not tensor.is_variable and (tensor.data or (0 in tensor.shape and p not in written))
        }

    def graph(self) -> ComputeGraph:
        """Return the graph; raise FormatError if the subgraph is ill-formed."""
        entries = [p for p in dict.fromkeys(self.tables.inputs) if p >= 0 and not self._is_apart(p)]
        if entries:
            self.ops.append(Op("inputs", (), self._define(entries), type="inputs", recomputable=False))
        for position, operator in enumerate(self.tables.operators):
            label = f"op {position} ({operator.kind})"
            self._check(operator, label)
            if self._is_constant(operator):
                self.constant.update(p for p in operator.outputs if p >= 0)
            elif self._is_view(operator):
                self.base[operator.outputs[0]] = self._root(operator.inputs[0])
            else:
                self._add(operator, position, label)
        self._remark()
        return self._made()

    def _is_apart(self, position: int) -> bool:
        """Return True for constants and variables, which are no tensors of the graph."""
        return position in self.constant or position in self.variable

    def _add(self, operator: OperatorEntry, position: int, label: str) -> None:
        """Add an op to the graph."""
        name = f"{operator.kind}_{position}"
        read = dict.fromkeys(self._root(p) for p in operator.inputs if p >= 0)
        apart = {p for p in (*read, *operator.outputs) if self._is_apart(p)}
        self.held |= apart
        price = self._price(operator, label)
        written = self._define(p for p in operator.outputs if p >= 0 and p not in self.variable)
        places = dict.fromkeys(self._places(operator))
        in_place = tuple((written[0], self.name_of[p]) for p in places)
        inputs = tuple(self.name_of[p] for p in read if p not in apart)
        self.position_of[name] = position
        needs = [self.bodies.need(k, self.fold_views) for k in operator.calls] if self.bodies else []
        if needs:
            price = (max if operator.kind == "IF" else sum)(each.cost for each in needs)
            self.called.update(operator.calls)
        if operator.kind in RESOURCES:
            inputs += self.state
            self.state = (self.names.name(f"{name} keeps resources"),)
            self.tensors.append(Tensor(self.state[0], 0))
            written += self.state
        changes = operator.kind in RESOURCES or not apart.isdisjoint(self.variable)
        self.ops.append(
            Op(
                name, inputs, written, price, type=operator.kind, in_place=in_place,
                workspace=max((each.peak for each in needs), default=0),
                recomputable=not changes and operator.kind not in RANDOM,
            )
        )  # fmt: skip
        self._describe(operator, name)

    def _price(self, operator: OperatorEntry, label: str) -> int:
        """Return the cost of an op, and count its multiply-accumulates."""
        tensors = self.tables.tensors
        try:
            price = 0 if operator.kind in VIEWS else cost(operator, tensors)
            self.macs += products(operator, tensors) or 0
        except FormatError as error:
            raise FormatError(f"{label}: {error}") from None
        return price

    def _describe(self, operator: OperatorEntry, name: str) -> None:
        """Note what rewriting has to know of an op, and its module."""
        site = self._site(operator)
        found = None if site is None else describe(operator, site)
        if found is not None:
            draw(DESCRIPTION_MEMORY)
            self.attributes[name] = found
        # a path in the name of a tensor, such as ``model/block_1/relu;model/block_1/conv``
        path_name = self.tables.tensors[operator.outputs[0]].name if operator.outputs else ""
        if path := ".".join(path_name.partition(";")[0].strip("/").split("/")[:-1]):
            self.modules[name] = path

    def _made(self) -> ComputeGraph:
        """Return the graph of all ops added."""
        tables, bodies = self.tables, self.bodies
        outputs = dict.fromkeys(self._root(p) for p in tables.outputs if p >= 0)
        missing = [p for p in outputs if p not in self.name_of and not self._is_apart(p)]
        if missing:
            raise FormatError(f"{tables.tensors[missing[0]].label} is an output of the graph that no op writes")
        shapes = {name: tables.tensors[p].shape for p, name in self.name_of.items()}
        stored = (tables.tensors[p] for p in self.held)
        inner = sum(bodies.needs[k].constants for k in self.called) if bodies else 0
        meta = {"macs": self.macs, "tflite": self._plan_positions()}
        return ComputeGraph(
            clipped(tables.name, 200), self.tensors, self.ops,
            outputs=[self.name_of[p] for p in outputs if p in self.name_of],
            constant_memory=sum(entry.data or entry.bytes() for entry in stored) + inner,
            cost_unit="mac", source="TensorFlow Lite",
            meta=meta | ({"modules": self.modules} if self.modules else {}) | described(shapes, self.attributes),
        )  # fmt: skip

    def _plan_positions(self) -> dict[str, Any]:
        """Return the positions of tensors in an offline memory plan, which counts over all subgraphs of the file.

        ``tensors`` is the number of tensors. ``positions`` has, for each tensor of the graph, its position and those of
        its folded views. ``idle`` has unused positions, for which the runtime would nevertheless allocate memory.
        ``packed`` names a tensor that needs more bytes in TensorFlow Lite Micro than in this graph.
        """
        tables = self.tables
        first = sum(tables.counts[: tables.position])
        shares: dict[int, list[int]] = {p: [first + p] for p in self.name_of}
        position = {name: p for p, name in self.name_of.items()}
        for view in self.base:
            shares.get(self._root(view), []).append(first + view)
        touched = {p for operator in tables.operators for p in (*operator.inputs, *operator.outputs)}
        idle = set(range(len(tables.tensors))) - touched - self.constant - self.variable - self.name_of.keys()
        entries = ((name, tables.tensors[p]) for p, name in self.name_of.items())
        packed = [name for name, entry in entries if entry.bytes() < entry.bytes(packed=False)]
        return {
            "tensors": sum(tables.counts),
            "positions": [shares[position[t.name]] if t.name in position else [] for t in self.tensors],
            "idle": sorted(first + p for p in idle),
        } | ({"packed": packed[0]} if packed else {})

    def _define(self, positions: Iterable[int]) -> tuple[str, ...]:
        """Declare and return the tensors of the graph for these positions, which the current op writes."""
        result = []
        for position in positions:
            entry = self.tables.tensors[position]
            if position in self.name_of or position in self.base or entry.data:
                raise FormatError(f"{entry.label} is written twice")
            self.name_of[position] = self.names.name(entry.name or f"tensor_{position}")
            self.tensors.append(Tensor(self.name_of[position], entry.bytes()))
            result.append(self.name_of[position])
        return tuple(result)

    def _places(self, operator: OperatorEntry) -> list[int]:
        """Return the inputs that the only output of an op may replace in memory."""
        if not self.in_place or operator.kind not in IN_PLACE or len(operator.outputs) != 1:
            return []
        output = self.tables.tensors[operator.outputs[0]]
        found = []
        for p in operator.inputs if operator.kind in ("ADD", "MUL") else operator.inputs[:1]:
            if p >= 0 and not self._is_apart(p) and not self._is_apart(operator.outputs[0]):
                entry = self.tables.tensors[p]
                if entry.kind == output.kind == "FLOAT32" and entry.shape == output.shape:
                    found.append(self._root(p))
        return found

    def _site(self, operator: OperatorEntry) -> Site | None:
        """Return the inputs and output of an op; None unless all are plain tensors of floating-point numbers."""
        plain = {"FLOAT32", "INT32", "INT64", *QUANTISED} if self.quantised else {"FLOAT32"}
        tensors, inputs = self.tables.tensors, list(operator.inputs)
        while inputs and inputs[-1] < 0:
            inputs.pop()
        touched = {*operator.outputs, *(p for p in inputs if p >= 0)}
        if len(operator.outputs) != 1 or min(touched, default=-1) < 0 or touched & self.variable:
            return None
        data = [p for p in inputs if p >= 0 and p not in self.constant]
        for p in touched:
            if tensors[p].kind not in plain or tensors[p].is_sparse or not is_usable(tensors[p].shape):
                return None
        if any(tensors[self._root(p)].shape != tensors[p].shape for p in data):
            return None
        return Site(
            tuple(tensors[p].shape if p >= 0 else None for p in inputs),
            tuple(self.name_of[self._root(p)] if p in data else None for p in inputs),
            tensors[operator.outputs[0]].shape,
        )

    def _root(self, position: int) -> int:
        return self.base.get(position, position)

    def _check(self, operator: OperatorEntry, label: str) -> None:
        if operator.kind in CONTROL_FLOW and not self.control_flow:
            raise FormatError(
                f'{label} runs other subgraphs, which control_flow="refuse" refuses; '
                'control_flow="op" takes it as one op',
                "control-flow",
            )
        for position in operator.inputs:
            if position >= 0 and self._root(position) not in self.name_of and not self._is_apart(position):
                raise FormatError(
                    f"{label} reads {self.tables.tensors[position].label}, which no input and no op before it writes"
                )

    def _is_constant(self, operator: OperatorEntry) -> bool:
        """Return True if the outputs of an op are independent of the inputs."""
        if operator.kind in RANDOM or operator.kind in CONTROL_FLOW or not operator.outputs:
            return False
        if any(p >= 0 and self.tables.tensors[p].is_variable for p in operator.outputs):
            return False
        if operator.kind in _FROM_SHAPES:
            return True
        return bool(operator.inputs) and all(p in self.constant for p in operator.inputs if p >= 0)

    def _is_view(self, operator: OperatorEntry) -> bool:
        if not self.fold_views or operator.kind not in VIEWS or not operator.inputs or len(operator.outputs) != 1:
            return False
        source, target = operator.inputs[0], operator.outputs[0]
        if min(source, target) < 0 or self._is_apart(source) or self._is_apart(target):
            return False
        if target in self.name_of or target in self.copied:
            return False
        tensors = self.tables.tensors
        return tensors[source].bytes() == tensors[target].bytes()

    def _remark(self) -> None:
        tables = self.tables
        open_ = [tensor.label for tensor in tables.tensors if tensor.is_open and not tensor.data]
        if open_:
            self.remarks.append(f"open dimensions are taken as in the file's shapes (mostly 1): {together(open_)}")
        custom = sorted(
            {operator.kind for operator in tables.operators if operator.kind.startswith(("custom.", "operator"))}
        )
        if custom:
            self.remarks.append(f"ops without a formula cost one for each element written: {together(custom)}")
        inner = [operator for operator in tables.operators if operator.kind in CONTROL_FLOW]
        if unknown := {operator.kind for operator in inner if not (operator.calls and self.bodies)}:
            self.remarks.append(f"what subgraphs cost and hold is not counted: {together(sorted(unknown))}")
        if known := {operator.kind for operator in inner if operator.calls and self.bodies}:
            self.remarks.append(f"{BODIES_REMARK}, and the cost that of one run: {together(sorted(known))}")
