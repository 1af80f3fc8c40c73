"""Assembly of the graph of an ONNX model with known shapes: folds views, separates constants, makes names unique."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from remat.errors import FormatError
from remat.graphs.formats.base import UniqueNames
from remat.graphs.formats.onnx.describing import describe, shapes_of
from remat.graphs.formats.onnx.flops import Costs
from remat.graphs.formats.onnx.network import Network, Node
from remat.graphs.formats.onnx.shape_inference import is_repeatable, is_training_dropout
from remat.graphs.graph import ComputeGraph, Op, Tensor
from remat.graphs.rewriting.descriptions import DESCRIPTION_MEMORY, described
from remat.io.limits import draw
from remat.runtime.text import printable, short, together

#: Ops whose first output is their first input in another shape.
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
#: Ops whose kernels in ONNX Runtime's CPU provider declare ``MayInplace(0, 0)`` for ``float``. Source: onnxruntime,
#: ``core/providers/cpu/activation/activations.cc``; the kernels of ``math/element_wise_ops.cc`` do not declare it.
IN_PLACE = frozenset({
    "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu", "Shrink", "Sigmoid", "Softmax",
    "Softplus", "Softsign", "Tanh", "ThresholdedRelu",
})  # fmt: skip
_SCOPES = "pkg.torch.onnx.name_scopes"
_QUOTED = re.compile(r"'([^']*)'")


class Inside(NamedTuple):
    """Needs of the graphs inside a node, in bytes and FLOPs."""

    peak: int = 0
    constants: int = 0
    cost: int = 0


class Assembly:
    """Builder of the graph of a network.

    With `fold_views`, views are other names of their base, otherwise ops that cost nothing and write a tensor. With
    `in_place`, ops of :data:`IN_PLACE` write in place of their input. `remarks` receives omissions and assumptions.
    Values in `computed` are written by ops although they depend on constants alone.
    """

    def __init__(
        self, network: Network, *, fold_views: bool, in_place: bool, remarks: list[str], computed: Collection[str] = ()
    ) -> None:
        self._network = network
        self._in_place = in_place
        self._fold_views = fold_views
        self._remarks = remarks
        self._base: dict[str, str] = {}
        self._describes = True
        self._constant = network.constant.difference(computed)
        self._nodes: list[Node] = []
        self._inner_constants = 0
        self._unknown: set[str] = set()
        self.position_of: dict[str, int] = {}
        """Node of the network by the name of its op, set by :meth:`graph`."""

    def graph(self, name: str, source: str) -> ComputeGraph:
        """Return the graph; raise FormatError or GraphError if the network has none."""
        network = self._network
        self._nodes = self._needed([node for node in network.nodes if not self._is_folded(node)])
        if not self._nodes:
            self._keep_all()
        costs = Costs(network)
        names, op_names = UniqueNames(), UniqueNames()
        tensor_of: dict[str, str] = {}
        tensors: list[Tensor] = []

        def define(value: str) -> str:
            tensor_of[value] = names.name(value)
            tensors.append(Tensor(tensor_of[value], network.values[value].bytes))
            return tensor_of[value]

        inputs = [define(value) for value in network.inputs]
        ops: list[Op] = []
        modules: dict[str, str] = {}
        attributes: dict[str, Any] = {}
        positions = {id(node): k for k, node in enumerate(network.nodes)}
        for node in self._nodes:
            written = tuple(define(value) for value in node.outputs if value)
            inside = self._inside(node)
            op = Op(
                op_names.name(node.name),
                tuple(tensor_of[value] for value in self._read(node)),
                written,
                0 if node.type in VIEWS else inside.cost if node.bodies else costs.cost(node),
                type=printable(node.type),
                workspace=inside.peak,
                recomputable=is_repeatable(node, network),
                in_place=tuple((written[0], tensor_of[source]) for source in self._places(node)),
            )
            ops.append(op)
            self.position_of[op.name] = positions[id(node)]
            module = module_path(node.proto)
            if module:
                modules[op.name] = module
            found = describe(node, network, self._root, tensor_of) if self._describes else None
            if found is not None:
                draw(DESCRIPTION_MEMORY)
                attributes[op.name] = found
        outputs = list(
            dict.fromkeys(tensor_of[value] for value in map(self._root, network.outputs) if value in tensor_of)
        )
        self._remark(costs)
        return ComputeGraph(
            name, tensors, ops, inputs, outputs,
            constant_memory=self._constant_memory(), cost_unit="flop", source=source,
            meta=({"modules": modules} if modules else {}) | described(shapes_of(network, tensor_of), attributes),
        )  # fmt: skip

    def _inside(self, node: Node) -> Inside:
        """Return what the bodies of a node need: most memory of one beyond the outputs, all constants, largest cost."""
        found = []
        for body in node.bodies:
            inner = Assembly(body, fold_views=self._fold_views, in_place=self._in_place, remarks=[])
            found.append(inner.needs())
            self._unknown |= inner._unknown
        self._inner_constants += sum(each.constants for each in found)
        cost = max((each.cost for each in found), default=0) * (1 if node.trips is None else node.trips)
        peak = max((each.peak for each in found), default=0)
        if node.type == "If":  # outputs of a branch are those of the node
            peak = max(0, peak - sum(self._network.values[value].bytes for value in node.outputs if value))
        return Inside(peak, 0, cost)

    def needs(self) -> Inside:
        """Return what an inner graph needs in the order of the file, without values of enclosing graphs."""
        network = self._network
        constants = self._bytes_of_constants(network.outputs)
        if not self._needed([node for node in network.nodes if not self._is_folded(node)]):
            return Inside(sum(network.values[value].bytes for value in network.inputs), constants)
        self._describes = False
        graph = self.graph("inner", "")
        return Inside(graph.reference_peak, constants + graph.constant_memory, graph.base_cost)

    def _keep_all(self) -> None:
        """Keep views and nodes that depend on constants alone as ops; raise FormatError if there are none."""
        self._describes = False
        self._base.clear()
        self._constant = self._constant.difference(*(node.outputs for node in self._network.nodes))
        self._nodes = self._needed(self._network.nodes)
        if not self._nodes:
            raise FormatError("nothing is computed from the inputs")
        self._remarks.append("nothing is computed but views and constants, which are kept as ops")

    def _is_folded(self, node: Node) -> bool:
        """Return True if a node does not become an op, since it is independent of the inputs or a view."""
        network = self._network
        outputs = [name for name in node.outputs if name]
        if all(name in self._constant for name in outputs):
            return True
        if not self._fold_views or not node.inputs or not node.inputs[0] or not node.outputs[0]:
            return False
        source, target = node.inputs[0], node.outputs[0]
        is_view = (
            node.type in VIEWS
            or (node.type == "Dropout" and not is_training_dropout(node, network))
            or (node.type in ("Cast", "CastLike") and network.values[source].dtype == network.values[target].dtype)
        )
        if is_view and network.values[source].bytes == network.values[target].bytes:
            self._base[target] = self._root(source)
            return True
        return False

    def _root(self, value: str) -> str:
        return self._base.get(value, value)

    def _read(self, node: Node) -> list[str]:
        """Return the non-constant values of this graph that a node reads, without duplicates."""
        roots = dict.fromkeys(self._root(value) for value in node.reads)
        return [value for value in roots if value not in self._constant and value not in self._network.outside]

    def _places(self, node: Node) -> list[str]:
        """Return the value that the first output of a node may replace in memory, if any."""
        if not self._in_place or node.type not in IN_PLACE or not node.outputs[0]:
            return []
        values, source = self._network.values, self._root(node.inputs[0])
        same = values[source].bytes == values[node.outputs[0]].bytes and values[source].dtype == "FLOAT"
        return [source] if same and source in self._read(node) else []

    def _needed(self, nodes: list[Node]) -> list[Node]:
        """Return the nodes that the outputs of the graph depend on."""
        wanted = {self._root(value) for value in self._network.outputs}
        kept: list[Node] = []
        for node in reversed(nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(self._read(node))
        if len(kept) < len(nodes):
            self._remarks.append(f"{len(nodes) - len(kept):,} nodes that no output depends on are left out")
        return kept[::-1]

    def _constant_memory(self) -> int:
        """Return the bytes of the constants that ops read, without those that only shapes depend on."""
        read = (value for node in self._nodes for value in node.reads)
        return self._bytes_of_constants(read) + self._inner_constants

    def _bytes_of_constants(self, values: Iterable[str]) -> int:
        """Return the bytes of the constants of this graph among some values."""
        network = self._network
        own = self._constant.intersection(map(self._root, values)) - network.outside.union(network.inputs)
        return sum(network.values[value].bytes for value in own)

    def _remark(self, costs: Costs) -> None:
        self._unknown |= costs.unknown
        if self._unknown:
            self._remarks.append(
                "ops without a formula cost one FLOP for each element written: "
                + together([short(each) for each in sorted(self._unknown)])
            )
        inner = {short(node.name): node for node in self._nodes if node.graphs}
        if read := [name for name, node in inner.items() if not node.unread]:
            self._remarks.append(
                "ops with graphs of their own are one op; its workspace is the peak of these graphs, in their order: "
                + together(read)
            )
        if loops := [name for name, node in inner.items() if node.trips is None]:
            self._remarks.append(f"loops without a known number of runs cost one run: {together(loops)}")
        self._remarks += [
            f"the graphs of {name} are not read, and their memory is not counted: {node.unread}"
            for name, node in inner.items()
            if node.unread
        ]
        constant = sum(self._root(value) in self._constant for value in self._network.outputs)
        if constant:
            self._remarks.append(f"{constant:,} graph outputs do not depend on the inputs and are left out")


def module_path(proto: Any) -> str:
    """Return the dotted path of a node's module; empty if the file does not contain it.

    PyTorch's exporter writes the scopes of a node into its metadata; its older exporter writes paths such as
    ``/layers.0/attention/MatMul`` into the names of nodes.
    """
    for entry in proto.metadata_props:
        if entry.key == _SCOPES:
            scopes = _QUOTED.findall(entry.value)
            return printable(scopes[-2]) if len(scopes) > 1 else ""
    if proto.name.startswith("/"):
        return printable(".".join(proto.name.strip("/").split("/")[:-1]))
    return ""
