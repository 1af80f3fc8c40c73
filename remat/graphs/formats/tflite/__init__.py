"""Reader of TensorFlow Lite models: the inference graph of a subgraph, in the order of the file.

``docs/formats.md`` lists the supported parts of models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from remat.errors import FormatError
from remat.graphs.formats.base import GraphFormat, UniqueNames, check_model_options
from remat.graphs.formats.tflite.describing import describe
from remat.graphs.formats.tflite.macs import cost, products
from remat.graphs.formats.tflite.tables import ModelTables, OperatorEntry, model_tables
from remat.graphs.graph import ComputeGraph, Op, Tensor
from remat.graphs.rewriting.descriptions import DESCRIPTION_MEMORY, Description, Site, described, is_usable
from remat.io.formats import reading
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


@reading()
def graph_from_tflite(
    data: bytes,
    *,
    subgraph: int | str = 0,
    views: str = "fold",
    control_flow: str = "op",
    in_place: bool = False,
    remarks: list[str] | None = None,
) -> ComputeGraph:
    """Return the graph of a TensorFlow Lite model.

    Raise FormatError if the package ``tflite`` is missing or the file is ill-formed, naming the op or the tensor.

    Sizes are in bytes, costs in multiply-accumulates. An op that runs only once writes the inputs, so that their memory
    can be freed after their last use. Weights and variables are constant memory.

    Parameters
    ----------
    data : bytes
        The file.
    subgraph : int or str
        Position or name of the subgraph; 0 is the main one.
    views : {"fold", "keep"}
        Treat reshapes as names of their input (fold), or as ops that write a tensor (keep).
    control_flow : {"op", "refuse"}
        Treat an op that runs other subgraphs as one op, whose workspace is the largest peak of these, or refuse it.
    in_place : bool
        Let ops write in place of an input, as TensorFlow Lite Micro's reference kernels do under an offline plan.
    remarks : list of str, optional
        Receives omissions and assumptions.
    """
    check_model_options(views, control_flow, in_place)
    notes = [] if remarks is None else remarks
    tables = model_tables(data, subgraph)
    bodies = Bodies(partial(model_tables, data))
    assembly = Assembly(tables, views == "fold", control_flow == "op", notes, in_place, bodies=bodies)
    graph = assembly.graph()
    others = len(tables.subgraphs) - 1 - len(bodies.needs)
    if others and subgraph == 0:
        notes.append(f"{others:,} more subgraphs are not read")
    return graph


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
    """What each subgraph that has been read needs, in the order of the file."""
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

    def graph(self) -> ComputeGraph:
        """Return the graph; raise FormatError if the subgraph is ill-formed."""
        tables = self.tables
        defined = {*tables.inputs, *(p for operator in tables.operators for p in operator.outputs)}
        constant = {
            p
            for p, tensor in enumerate(tables.tensors)
            if not tensor.is_variable and (tensor.data or (0 in tensor.shape and p not in defined))
        }
        variable = {p for p, tensor in enumerate(tables.tensors) if tensor.is_variable}
        entries = [p for p in dict.fromkeys(tables.inputs) if p >= 0 and p not in constant | variable]
        ops: list[Op] = []
        modules: dict[str, str] = {}
        attributes: dict[str, Description] = {}
        held: set[int] = set()
        called: set[int] = set()
        macs = 0
        state: tuple[str, ...] = ()
        if entries:
            ops.append(Op("inputs", (), self._define(entries), type="inputs", recomputable=False))
        for position, operator in enumerate(tables.operators):
            label = f"op {position} ({operator.kind})"
            name = f"{operator.kind}_{position}"
            self._check(operator, label, constant | variable)
            if self._is_constant(operator, constant):
                constant.update(p for p in operator.outputs if p >= 0)
                continue
            if self._is_view(operator, constant | variable):
                self.base[operator.outputs[0]] = self._root(operator.inputs[0])
                continue
            read = dict.fromkeys(self._root(p) for p in operator.inputs if p >= 0)
            held.update(p for p in (*read, *operator.outputs) if p in constant or p in variable)
            try:
                price = 0 if operator.kind in VIEWS else cost(operator, tables.tensors)
                macs += products(operator, tables.tensors) or 0
            except FormatError as error:
                raise FormatError(f"{label}: {error}") from None
            written = self._define(p for p in operator.outputs if p >= 0 and p not in variable)
            places = dict.fromkeys(self._places(operator, constant | variable))
            changes = operator.kind in RESOURCES or any(p in variable for p in (*read, *operator.outputs))
            self.position_of[name] = position
            needs = [self.bodies.need(k, self.fold_views) for k in operator.calls] if self.bodies else []
            if needs:
                price = (max if operator.kind == "IF" else sum)(each.cost for each in needs)
                called.update(operator.calls)
            before = state
            if operator.kind in RESOURCES:
                state = (self.names.name(f"{name} keeps resources"),)
                self.tensors.append(Tensor(state[0], 0))
                written += state
            ops.append(
                Op(
                    name,
                    tuple(self.name_of[p] for p in read if p not in constant and p not in variable)
                    + (before if state != before else ()),
                    written,
                    price,
                    type=operator.kind,
                    workspace=max((each.peak for each in needs), default=0),
                    recomputable=not changes and operator.kind not in RANDOM,
                    in_place=tuple((written[0], self.name_of[p]) for p in places),
                )
            )
            site = self._site(operator, constant, variable)
            found = None if site is None else describe(operator, site)
            if found is not None:
                draw(DESCRIPTION_MEMORY)
                attributes[name] = found
            # a path in the name of a tensor, such as ``model/block_1/relu;model/block_1/conv``
            path_name = tables.tensors[operator.outputs[0]].name if operator.outputs else ""
            if path := ".".join(path_name.partition(";")[0].strip("/").split("/")[:-1]):
                modules[name] = path
        outputs = dict.fromkeys(self._root(p) for p in tables.outputs if p >= 0)
        missing = [p for p in outputs if p not in self.name_of and p not in constant and p not in variable]
        if missing:
            raise FormatError(f"{tables.tensors[missing[0]].label} is an output of the graph that no op writes")
        self._remark()
        shapes = {name: tables.tensors[p].shape for p, name in self.name_of.items()}
        stored = (tables.tensors[p] for p in held)
        plan = {"tflite": self._plan_positions(constant | variable)}
        return ComputeGraph(
            clipped(tables.name, 200), self.tensors, ops,
            outputs=[self.name_of[p] for p in outputs if p in self.name_of],
            constant_memory=sum(entry.data or entry.bytes() for entry in stored)
            + sum(self.bodies.needs[k].constants for k in called if self.bodies), cost_unit="mac",
            source="TensorFlow Lite",
            meta={"macs": macs} | plan | ({"modules": modules} if modules else {}) | described(shapes, attributes),
        )  # fmt: skip

    def _plan_positions(self, apart: set[int]) -> dict[str, Any]:
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
        idle = set(range(len(tables.tensors))) - touched - apart - self.name_of.keys()
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

    def _places(self, operator: OperatorEntry, apart: set[int]) -> list[int]:
        """Return the inputs that the only output of an op may replace in memory."""
        if not self.in_place or operator.kind not in IN_PLACE or len(operator.outputs) != 1:
            return []
        output = self.tables.tensors[operator.outputs[0]]
        found = []
        for p in operator.inputs if operator.kind in ("ADD", "MUL") else operator.inputs[:1]:
            if p >= 0 and p not in apart and operator.outputs[0] not in apart:
                entry = self.tables.tensors[p]
                if entry.kind == output.kind == "FLOAT32" and entry.shape == output.shape:
                    found.append(self._root(p))
        return found

    def _site(self, operator: OperatorEntry, constant: set[int], variable: set[int]) -> Site | None:
        """Return the inputs and output of an op; None unless all are plain tensors of floating-point numbers."""
        plain = {"FLOAT32", "INT32", "INT64", *QUANTISED} if self.quantised else {"FLOAT32"}
        tensors, inputs = self.tables.tensors, list(operator.inputs)
        while inputs and inputs[-1] < 0:
            inputs.pop()
        touched = {*operator.outputs, *(p for p in inputs if p >= 0)}
        if len(operator.outputs) != 1 or min(touched, default=-1) < 0 or touched & variable:
            return None
        data = [p for p in inputs if p >= 0 and p not in constant]
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

    def _check(self, operator: OperatorEntry, label: str, there: set[int]) -> None:
        if operator.kind in CONTROL_FLOW and not self.control_flow:
            raise FormatError(
                f'{label} runs other subgraphs, which control_flow="refuse" refuses; '
                'control_flow="op" takes it as one op',
                "control-flow",
            )
        for position in operator.inputs:
            if position >= 0 and self._root(position) not in self.name_of and position not in there:
                raise FormatError(
                    f"{label} reads {self.tables.tensors[position].label}, which no input and no op before it writes"
                )

    def _is_constant(self, operator: OperatorEntry, constant: set[int]) -> bool:
        """Return True if the outputs of an op are independent of the inputs."""
        if operator.kind in RANDOM or operator.kind in CONTROL_FLOW or not operator.outputs:
            return False
        if any(p >= 0 and self.tables.tensors[p].is_variable for p in operator.outputs):
            return False
        if operator.kind in _FROM_SHAPES:
            return True
        return bool(operator.inputs) and all(p in constant for p in operator.inputs if p >= 0)

    def _is_view(self, operator: OperatorEntry, apart: set[int]) -> bool:
        if not self.fold_views or operator.kind not in VIEWS or not operator.inputs or len(operator.outputs) != 1:
            return False
        source, target = operator.inputs[0], operator.outputs[0]
        if min(source, target) < 0 or source in apart or target in apart or target in self.name_of:
            return False
        if target in self.copied:
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


FORMAT = GraphFormat(
    name="tflite",
    description="TensorFlow Lite models (read only)",
    recognizes=lambda source: source.data[4:8] == b"TFL3",
    read=lambda source: graph_from_tflite(source.data, remarks=source.remarks, **source.options),
    options=("subgraph", "views", "control_flow", "in_place"),
)
