"""Graph of an exported program with memory as ExecuTorch counts it, and the addresses that ExecuTorch gave its tensors.

Two stages of a program are read. After ``torch.export`` each node's ``meta["val"]`` has the sizes. After ExecuTorch's
``SpecPropPass`` and ``ToOutVarPass`` they are in its tensor specs, which are planned. This module needs torch alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx

from remat.errors import CaptureError
from remat.graphs import ComputeGraph, Op, Tensor
from remat.schedule import Addresses, Memory, Schedule, schedule_buffers
from remat.torch.private import OpOverload

#: Default alignment of ExecuTorch in bytes: offsets are multiples of it, and sizes are rounded up to it.
ALIGNMENT = 16
#: Operators other than elementwise ones whose portable kernel may write its first output over its first input.
_IN_PLACE = {"aten::_native_batch_norm_legit_no_training"}
#: Elementwise operators of :mod:`torch`, by the name of the out-variant's overload.
_FUNCTIONAL = {"": ("default", "Tensor"), "out": ("default", "Tensor")}
#: Views that share the memory of their base; ExecuTorch copies all others.
_VIEWS = ("aten::view", "aten::_unsafe_view", "aten::alias", "aten::detach")


def is_memory(node: fx.Node, kind: str) -> bool:
    """Return True if a node is ExecuTorch's ``memory.alloc``, ``memory.view`` or ``memory.free``."""
    target = node.target
    return getattr(target, "__module__", "") == "executorch.exir.memory" and getattr(target, "__name__", "") == kind


def is_leader(node: fx.Node) -> bool:
    """Return True if a node computes nothing and stands before its first reader: memory, a view or a constant."""
    return node.op == "get_attr" or is_memory(node, "alloc") or is_memory(node, "view")


def is_item(node: fx.Node) -> bool:
    """Return True if a node is an item of the one before it."""
    return node.target is operator.getitem


def computing(graph: fx.Graph) -> Iterator[fx.Node]:
    """Yield the nodes that are ops of the graph."""
    for node in graph.nodes:
        if node.op.startswith("call_") and not is_leader(node) and not is_item(node):
            yield node


def sources(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that a node reads: ops, items and placeholders, with leaders replaced by what they read."""
    found: dict[fx.Node, None] = {}
    waiting = list(node.all_input_nodes)
    while waiting:
        each = waiting.pop()
        if is_leader(each):
            waiting.extend(each.all_input_nodes)
        else:
            found[each] = None
    return list(found)


def producer(node: fx.Node) -> fx.Node:
    """Return the op of which a node is an item; for an item of a list of allocations, the op that writes them."""
    while is_item(node):
        base = node.args[0]
        assert isinstance(base, fx.Node)
        node = next((each for each in base.users if not is_item(each)), base) if is_memory(base, "alloc") else base
    return node


def root(spec: Any) -> Any:
    """Return the tensor spec in whose memory a tensor spec lies."""
    while spec.storage_base is not None:
        spec = spec.storage_base
    return getattr(spec, "_base", spec)


def specs_of(node: fx.Node) -> tuple[Any, ...]:
    """Return the tensor specs of a node, in order; those of its base for a view."""
    while is_memory(node, "view"):
        base = node.args[0]
        assert isinstance(base, fx.Node)
        node = base
    specs = node.meta.get("spec")
    several = specs if isinstance(specs, list | tuple) else (specs,)
    return tuple(spec for spec in several if hasattr(spec, "storage_base"))


@dataclass(frozen=True, eq=False)
class Storages:
    """Memory of the values of an fx graph.

    Attributes
    ----------
    of : callable
        Returns the keys of a node's values, one per tensor.
    size : mapping
        Bytes of each key; others are not planned.
    resident : set
        Keys that are held from start to end.
    in_place : bool
        True: an op may write its result over an input that it reads last, if its kernel allows it.
    """

    of: Callable[[fx.Node], tuple[Hashable, ...]]
    size: Mapping[Hashable, int]
    resident: frozenset[Hashable] = frozenset()
    in_place: bool = False


@dataclass(frozen=True, eq=False)
class ProgramGraph:
    """Graph of a program, and the node of each op and the storage of each tensor."""

    graph: ComputeGraph
    nodes: Mapping[str, fx.Node]
    storage: Mapping[str, Hashable]


@dataclass(eq=False)
class _Op:
    node: fx.Node
    reads: dict[str, None] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    runs_once: bool = False


class _Reader:
    """Reads an fx graph; see :func:`read_nodes`."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._name: dict[Hashable, str] = {}
        self.size: dict[str, int] = {}
        self._ops: dict[fx.Node, _Op] = {}
        self._writer: dict[Hashable, _Op] = {}
        self._readers: dict[Hashable, list[_Op]] = {}
        self._last_effect: dict[Hashable, _Op] = {}

    def tensor(self, name: str, key: Hashable) -> str:
        """Add the tensor of a storage; return its name."""
        self._name[key] = name
        self.size[name] = self._storages.size.get(key, 0)
        return name

    def place(self, graph: fx.Graph) -> list[str]:
        """Add the tensors of planned inputs and of variables; return their names."""
        found = []
        for node in graph.find_nodes(op="placeholder"):
            for key in self._storages.of(node):
                if key in self._storages.size and key not in self._name:
                    found.append(self.tensor(node.name, key))
        return found

    def names(self, nodes: Iterable[fx.Node]) -> dict[str, None]:
        """Return the tensors in which the values of nodes lie."""
        keys = (key for node in nodes for key in self._storages.of(node))
        return {self._name[key]: None for key in keys if key in self._name}

    def _after(self, op: _Op, before: _Op) -> None:
        """Make an op run after another one, without reading what that wrote."""
        name = f"{before.node.name} done"
        if name not in self.size:
            before.writes.append(name)
            self.size[name] = 0
        if before is not op:
            op.reads[name] = None

    def run(self, node: fx.Node) -> None:
        """Add an op."""
        op = self._ops[node] = _Op(node)
        read = sources(node)
        op.reads.update(self.names(read))
        own = self._storages.of(node)
        mutated = dict.fromkeys(key for each in changed(node) for key in self._storages.of(each))
        mutated.update((key, None) for key in own if key in self._name)
        accessed = dict.fromkeys(key for each in read for key in self._storages.of(each))
        for each in read:
            before = self._ops.get(producer(each))
            if before is not None and not op.reads.keys() & set(before.writes):
                self._after(op, before)
        for key in accessed | mutated:
            if key in self._writer:
                self._after(op, self._writer[key])
            if key in mutated:
                for reader in self._readers.pop(key, []):
                    self._after(op, reader)
                self._writer[key] = op
            else:
                self._readers.setdefault(key, []).append(op)
        new = [key for key in dict.fromkeys(own) if key not in self._name]
        names = [node.name] if len(own) == 1 else [f"{node.name}.{own.index(key)}" for key in new]
        op.writes += [self.tensor(name, key) for name, key in zip(names, new, strict=False)]
        for cause in effects(node):
            if cause in self._last_effect:
                self._after(op, self._last_effect[cause])
            self._last_effect[cause] = op
            op.runs_once = True
        op.runs_once |= bool(mutated)
        if self._storages.in_place and own and own[0] in new:
            op.pairs = [(self._name[own[0]], name) for name in self._replaceable(node, own[0])]
        if not op.writes:
            self._after(op, op)

    def _replaceable(self, node: fx.Node, output: Hashable) -> Iterator[str]:
        """Yield the tensors in whose place the first output may be written."""
        size = self._storages.size
        candidates = [each for each in node.args if isinstance(each, fx.Node)]
        if output not in size or not size[output] or not may_write_over(node):
            return
        keys = [self._storages.of(each) for each in node.all_input_nodes]
        for each in candidates:
            (key,) = self._storages.of(each) or (None,)
            alone = sum(key in other for other in keys) == 1
            free = key in self._name and key not in self._storages.resident and size.get(key) == size[output]
            if alone and free and _same_elements(node, each):
                yield self._name[key]

    def ops(self) -> list[Op]:
        """Return the ops."""
        return [
            Op(
                op.node.name, tuple(op.reads), tuple(op.writes), type=str(op.node.target),
                recomputable=not op.runs_once, in_place=tuple(op.pairs),
            )
            for op in self._ops.values()
        ]  # fmt: skip

    def storage(self) -> dict[str, Hashable]:
        """Return the storage of each tensor."""
        return {name: key for key, name in self._name.items()}


def read_nodes(graph: fx.Graph, storages: Storages, name: str) -> ProgramGraph | None:
    """Return the graph of an fx graph; None if it computes nothing.

    Views, allocations and items are not ops. Planned inputs and variables are written by an op ``inputs``. Tensors of 0
    bytes keep the order of accesses to a mutated storage, of ops with effects, and of an op after another one whose
    result is no tensor.
    """
    reader = _Reader(storages)
    given = reader.place(graph)
    for node in computing(graph):
        reader.run(node)
    ops = reader.ops()
    if not ops:
        return None
    if given:
        word = "inputs"
        while any(op.name == word for op in ops):
            word += "_"
        ops.insert(0, Op(word, outputs=tuple(given), type="inputs", recomputable=False))
    kept = reader.names(sources(graph.output_node()))
    storage = reader.storage()
    kept.update((each, None) for each, key in storage.items() if key in storages.resident)
    found = ComputeGraph(
        name, [Tensor(each, size) for each, size in reader.size.items()], ops, outputs=tuple(kept),
        source=f"torch {torch.__version__}, memory as in ExecuTorch",
    )  # fmt: skip
    return ProgramGraph(found, {node.name: node for node in computing(graph)}, storage)


def changed(node: fx.Node) -> list[fx.Node]:
    """Return the arguments that an op changes: mutable ones, and outputs that are no memory of their own."""
    schema = getattr(node.target, "_schema", None)
    found = []
    for k, argument in enumerate(schema.arguments if schema is not None else ()):
        value = node.kwargs.get(argument.name, node.args[k] if k < len(node.args) else None)
        if argument.alias_info is not None and argument.alias_info.is_write:
            nodes = value if isinstance(value, list | tuple) else (value,)
            found += [each for each in nodes if isinstance(each, fx.Node) and not is_memory(each, "alloc")]
    return found


def effects(node: fx.Node) -> list[Hashable]:
    """Return the causes for which an op keeps its place among others with the same cause.

    fx counts all ops with a mutable argument as impure, thus all out-variants; what these change is known from their
    schema. Calls of one delegate keep their order, since it may have a state.
    """
    target, found = node.target, []
    mutable = getattr(getattr(target, "_schema", None), "is_mutable", False)
    random = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    causes = random or (not node.users and not changed(node)) or (node.is_impure() and not mutable)
    for each in node.args:
        if isinstance(each, fx.Node) and each.op == "get_attr":
            value = operator.attrgetter(str(each.target))(each.graph.owning_module)
            if isinstance(value, fx.GraphModule):
                causes = causes or any(effects(inner) or changed(inner) for inner in computing(value.graph))
            elif not isinstance(value, torch.Tensor):
                found.append(each.target)
    return [*found, "effects"] if causes else found


def may_write_over(node: fx.Node) -> bool:
    """Return True if the kernel of an op computes each element of its first output from the same element of inputs."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    if target._schema.name in _IN_PLACE:
        return True
    overload = target._schema.overload_name
    names = _FUNCTIONAL.get(overload, (overload.removesuffix("_out"),))
    functional = (getattr(target.overloadpacket, name, None) for name in (overload or "default", *names))
    return any(torch.Tag.pointwise in each.tags for each in functional if each is not None)


def _same_elements(node: fx.Node, source: fx.Node) -> bool:
    """Return True if an input has shape, type, order of elements and memory of the first output."""

    def layout(of: fx.Node) -> Any:
        spec = of.meta.get("spec", of.meta.get("val"))
        first = spec[0] if isinstance(spec, list | tuple) else spec
        order = getattr(first, "dim_order", None)
        order = order() if callable(order) else order
        place = [getattr(first, name, None) for name in ("mem_id", "device", "device_index")]
        return first.dtype, list(first.shape), list(order) if order is not None else None, place

    return bool(layout(node) == layout(source))


def is_mutable_buffer(node: fx.Node, signature: Any) -> bool:
    """Return True if a placeholder is a buffer that the program changes, which ExecuTorch keeps to the end."""
    name = signature.inputs_to_buffers.get(node.target) if signature is not None else None
    return name is not None and name in signature.buffers_to_mutate.values()


def planned_storages(graph: fx.Graph, signature: Any, specs: Iterable[Any], *, in_place: bool = False) -> Storages:
    """Return the storages of an fx graph after out-variants; `specs`: the tensor specs that are planned."""
    size: dict[Hashable, int] = {}
    for spec in specs:
        size[root(spec)] = max(size.get(root(spec), 0), spec.allocated_memory)

    def of(node: fx.Node) -> tuple[Hashable, ...]:
        return tuple(root(spec) for spec in specs_of(node))

    variables = (node for node in graph.find_nodes(op="placeholder") if is_mutable_buffer(node, signature))
    resident = frozenset(key for node in variables for key in of(node) if key in size)
    return Storages(of, size, resident, in_place)


def exported_storages(program: torch.export.ExportedProgram, alignment: int = ALIGNMENT) -> Storages:
    """Return the storages of a program after ``torch.export``, with sizes rounded up to `alignment`.

    Raises
    ------
    CaptureError
        With the name of the node whose size is not fixed.
    """
    signature = program.graph_signature
    size: dict[Hashable, int] = {}
    keys: dict[fx.Node, tuple[Hashable, ...]] = {}
    resident: set[Hashable] = set()
    fixed = {*signature.inputs_to_parameters, *signature.inputs_to_buffers}
    fixed.update(signature.inputs_to_lifted_tensor_constants)
    for node in program.graph.nodes:
        keys[node] = _values(node, keys)
    written = {key for node in program.graph.nodes for each in changed(node) for key in keys[each]}
    for node in program.graph.nodes:
        in_graph = node.target in fixed and not written.isdisjoint(keys[node])
        variable = node.op == "placeholder" and (in_graph or is_mutable_buffer(node, signature))
        if node.op in ("get_attr", "output") or (node.op == "placeholder" and node.target in fixed and not variable):
            continue
        val = node.meta.get("val")
        for key, value in zip(keys[node], val if isinstance(val, list | tuple) else (val,), strict=False):
            if isinstance(value, torch.Tensor) and key not in size and _is_new(key, node):
                if not all(isinstance(length, int) for length in value.shape):
                    raise CaptureError(
                        f"the size of {node.name} is not fixed: export the program with fixed sizes", "dynamic-size",
                        node.name,
                    )  # fmt: skip
                size[key] = -(-value.numel() * value.element_size() // alignment) * alignment
        if variable:
            resident.update(keys[node])
    return Storages(lambda node: tuple(key for key in keys[node] if key is not None), size, frozenset(resident))


def _is_new(key: Hashable, node: fx.Node) -> bool:
    return isinstance(key, tuple) and key[0] is node


def _values(node: fx.Node, keys: Mapping[fx.Node, tuple[Hashable, ...]]) -> tuple[Hashable, ...]:
    """Return the keys of a node's values: those of an argument for a view, an item or a changed argument."""
    schema = getattr(node.target, "_schema", None)
    base = node.args[0] if node.args else None
    if isinstance(base, fx.Node):
        if is_item(node) and isinstance(node.args[1], int) and len(keys[base]) > node.args[1]:
            return (keys[base][node.args[1]],)
        if schema is not None and schema.name in _VIEWS:
            return keys[base]
    written = changed(node)
    if written and schema is not None and not any(argument.is_out for argument in schema.arguments):
        return tuple(key for each in written for key in keys[each])
    val = node.meta.get("val")
    several = val if isinstance(val, list | tuple) else (val,)
    return tuple((node, k) if isinstance(value, torch.Tensor) else None for k, value in enumerate(several))


def program_graph(program: torch.export.ExportedProgram, *, alignment: int = ALIGNMENT) -> ComputeGraph:
    """Return the graph of a program with memory as ExecuTorch counts it, in the program's order.

    A program that ``to_executorch`` has planned has ExecuTorch's tensors. One from ``torch.export`` has a tensor for
    each result but those of ``aten.view``; ExecuTorch copies other views. Inputs are written by an op ``inputs`` and
    free after their last use; variables are held to the end. The bodies of control flow are not counted.

    Parameters
    ----------
    program : torch.export.ExportedProgram
    alignment : int
        Bytes; sizes are rounded up to it.

    Raises
    ------
    CaptureError
        If a size is not fixed, or the program computes nothing.

    Examples
    --------
    >>> import torch
    >>> program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
    >>> graph = program_graph(program)
    >>> [(op.name, op.outputs) for op in graph.ops], graph.reference_peak
    ([('inputs', ('input',)), ('linear', ('linear',))], 80)
    """
    return _read(program, alignment).graph


def _read(program: torch.export.ExportedProgram, alignment: int) -> ProgramGraph:
    graph, specs = program.graph, [spec for node in program.graph.nodes for spec in specs_of(node)]
    if specs:
        planned = [spec for spec in specs if spec.mem_offset is not None]
        storages = planned_storages(graph, program.graph_signature, planned)
    else:
        storages = exported_storages(program, alignment)
    found = read_nodes(graph, storages, "program")
    if found is None:
        raise CaptureError("the program computes nothing")
    return found


def planned_addresses(program: torch.export.ExportedProgram, *, alignment: int = ALIGNMENT) -> Addresses:
    """Return the addresses that ExecuTorch, or :class:`MemoryPlanning`, gave the tensors of a program.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        ``manager.exported_program()`` of the manager that ``to_executorch`` returns. Its graph is
        :func:`program_graph`, in reference order.

    Raises
    ------
    CaptureError
        If the program has no addresses.
    """
    found = _read(program, alignment)
    buffers = schedule_buffers(found.graph, Schedule.reference(found.graph))
    if not any(hasattr(each, "mem_offset") for each in found.storage.values()):
        raise CaptureError("the program has no addresses: call to_executorch first", "not-planned")
    specs: list[Any] = [found.storage[found.graph.tensor_names[tensor]] for tensor in buffers.tensor.tolist()]
    used = sorted({spec.mem_id for spec in specs})
    return Addresses(
        buffers,
        np.array([spec.mem_offset for spec in specs], dtype=np.int64),
        np.array([used.index(spec.mem_id) for spec in specs], dtype=np.int64),
        tuple(Memory(f"memory {number}") for number in used) or (Memory(),),
        alignment,
        "ExecuTorch",
    )
