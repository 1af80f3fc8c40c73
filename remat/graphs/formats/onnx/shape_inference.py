"""Shapes of all values of an ONNX model, node by node: ONNX's rules, with remat's limits.

``onnx.shape_inference.infer_shapes`` handles a whole model at once. A model of a few hundred bytes (a vector
concatenated with itself thirty times) can make it take gigabytes and minutes. Inference node by node stays bounded,
and its errors name the node. It also yields the content of small tensors that depend only on constants and shapes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat.errors import FormatError
from remat.graphs.formats.onnx.corrections import correct, range_length, with_defaults
from remat.graphs.formats.onnx.given_values import GivenValues
from remat.graphs.formats.onnx.inner_graphs import CONTROL_FLOW, InnerReader, free_names, named_graphs
from remat.graphs.formats.onnx.network import InnerGraph, Network, Node
from remat.graphs.formats.onnx.quantised import output_types
from remat.graphs.formats.onnx.values import Dimensions, value_of
from remat.io.limits import draw
from remat.runtime.text import clipped, one_line, printable, short

#: Largest tensor whose content is computed, in elements.
MAX_CONTENT = 4096
#: Most elements stored for all small tensors together.
MAX_TOTAL_CONTENT = 10_000_000
#: Most nodes of a model, with functions expanded.
MAX_NODES = 300_000
#: Bytes for each node; seconds that ONNX takes to copy a name of an outer graph into an inner one.
_NODE_MEMORY, _COPY_SECONDS = 2000, 2e-7
#: Ops that are evaluated if their inputs are known: the arithmetic of shapes.
ARITHMETIC = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand",
    "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less",
    "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Range", "ReduceMax", "ReduceMin",
    "ReduceProd", "ReduceSum", "Relu", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split", "Sqrt", "Squeeze",
    "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
#: Ops whose result differs between runs.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
#: Ops whose shapes depend on the elements that they read, and follow if these are known.
BY_CONTENT = frozenset({"Compress", "NonZero", "Unique"})
#: Kinds of errors in an inner graph that leave its node to ONNX's rule.
_UNREADABLE = ("no-size", "unknown-shape", "open-dims")
_STANDARD = ("", "ai.onnx")
_TERM = rb"[A-Za-z ]*+(?:\.\.\.)?+[A-Za-z ]*+"
_EQUATION = re.compile(rb"%s(?:,%s)*(?:->%s)?" % (_TERM, _TERM, _TERM))
_CONTENT_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


@dataclass
class _Stored:
    """Number of stored elements, in all graphs of a model."""

    elements: int = 0


class Inference:
    """Inference over the graph of a model with expanded functions, from its inputs to its outputs."""

    def __init__(self, model: Any, dims: Dimensions, given: GivenValues, control_flow: str) -> None:
        import onnx

        self._onnx = onnx
        self._graph = model.graph
        self._dims = dims
        self._given = given
        self._control_flow = control_flow
        self._opsets = list(model.opset_import)
        self._versions = {each.domain if each.domain != "ai.onnx" else "": each.version for each in self._opsets}
        self._types = {number: name for name, number in onnx.TensorProto.DataType.items()}
        self._declared: dict[str, Any] = {}
        self._stored = _Stored()
        self.network = Network()

    def run(self) -> Network:
        """Return the network.

        Raise FormatError, naming the node or the tensor, for any fault and any unknown type or shape.
        """
        if len(self._graph.node) > MAX_NODES:
            raise FormatError(f"{len(self._graph.node):,} nodes, more than the {MAX_NODES:,} that are read")
        self._read_constants()
        self._read_inputs()
        self._read_nodes()
        self._dims.refuse_unused()
        return self.network

    def _inner(self, graph: InnerGraph, types: Sequence[Any], known: Mapping[str, Any]) -> Network:
        """Return the network of an inner graph with inputs of these types, some of which have a known content."""
        inner, outer = copy.copy(self), self.network
        inner._graph, inner._declared, inner.network = graph.proto, {}, Network(outside=graph.free)
        for name in graph.free:
            inner.network.values[name] = outer.values[name]
            if name in outer.content:
                inner.network.content[name] = outer.content[name]
        inner.network.constant |= graph.free & outer.constant
        inner._read_constants()
        for name, type_ in zip((info.name for info in graph.proto.input), types, strict=True):
            inner._define(name, type_)
            inner.network.inputs.append(name)
            if name in known:
                inner._keep(name, known[name])
                inner.network.constant.add(name)
        inner._read_nodes()
        return inner.network

    def _read_nodes(self) -> None:
        """Read the nodes and the outputs of the graph."""
        for info in (*self._graph.value_info, *self._graph.output):
            self._declared.setdefault(info.name, info.type)
        later = {name for node in self._graph.node for name in node.output}
        for position, proto in enumerate(self._graph.node):
            draw(_NODE_MEMORY)
            node = self._node(proto, position)
            for name in filter(None, (*node.inputs, *node.captured)):
                if name not in self.network.values:
                    raise FormatError(
                        f"node {short(node.name)} reads {short(name)}, which "
                        + ("only it or a node after it writes (a cycle?)" if name in later else "nothing writes")
                    )
            self._infer(node)
            self.network.nodes.append(node)
        for info in self._graph.output:
            if info.name not in self.network.values:
                raise FormatError(f"graph output {short(info.name)} is written by no node")
            self.network.outputs.append(info.name)

    def _read_constants(self) -> None:
        for tensor in self._graph.initializer:
            self._define_constant(tensor.name, tensor.dims, tensor.data_type)
            self._keep_content(tensor.name, tensor)
        for sparse in self._graph.sparse_initializer:
            self._define_constant(sparse.values.name, sparse.dims, sparse.values.data_type)

    def _define_constant(self, name: str, dims: Any, dtype: int) -> None:
        type_ = self._onnx.helper.make_tensor_type_proto(dtype, list(dims))
        if any(size < 0 for size in dims):
            raise FormatError(f"initializer {short(name)} has a negative dimension")
        self._define(name, type_)
        self.network.constant.add(name)

    def _read_inputs(self) -> None:
        open_inputs = [info for info in self._graph.input if info.name not in self.network.values]
        self._given.refuse_unknown([info.name for info in open_inputs])
        for info in open_inputs:
            if info.name in self._given.given:
                self._read_given(info.name, info.type)
        open_inputs = [info for info in open_inputs if info.name not in self.network.values]
        for info in open_inputs:
            if info.type.WhichOneof("value") == "tensor_type" and not info.type.tensor_type.HasField("shape"):
                raise FormatError(f"graph input {short(info.name)} has no shape, not even an open one")
        for info in open_inputs:
            self._dims.fill(info.name, info.type)
        self._dims.refuse_missing()
        for info in open_inputs:
            self._define(info.name, info.type)
            self.network.inputs.append(info.name)

    def _read_given(self, name: str, type_: Any) -> None:
        self._dims.fill(name, type_)
        self._dims.missing.clear()  # the value has sizes of its own
        value_of(name, type_, self._types)
        elements = type_.tensor_type.elem_type
        content = self._given.content(name, type_, self._onnx.helper.tensor_dtype_to_np_dtype(elements))
        self._define_constant(name, content.shape, elements)
        if content.size <= MAX_CONTENT:
            self._keep(name, content)

    def _define(self, name: str, type_: Any) -> None:
        if name in self.network.values:
            raise FormatError(f"{short(name)} is defined twice")
        self.network.values[name] = value_of(name, type_, self._types)

    def _keep_content(self, name: str, tensor: Any) -> None:
        """Store the content of a small tensor; other contents are removed from the model, or are in another file."""
        if self._is_external(tensor) or self.network.values[name].elements > MAX_CONTENT:
            return
        if not any(getattr(tensor, field) for field in _CONTENT_FIELDS):
            return
        try:
            content = self._onnx.numpy_helper.to_array(tensor)
        except Exception as error:
            raise FormatError(f"what tensor {short(name)} contains does not fit it: {_reason(error)}") from None
        self._keep(name, content)

    def _keep(self, name: str, content: Any) -> None:
        """Store the content of `name`, unless it exceeds the limit or is not numeric."""
        is_number = content.dtype.kind in "biuf" or content.dtype.name == "bfloat16"
        if is_number and self._stored.elements + content.size <= MAX_TOTAL_CONTENT:
            self._stored.elements += content.size
            self.network.content[name] = content

    def _node(self, proto: Any, position: int) -> Node:
        domain = "" if proto.domain in _STANDARD else proto.domain
        kind = printable(f"{domain}.{proto.op_type}" if domain else proto.op_type)
        name = proto.name or f"{proto.op_type or 'node'}_{position}"
        if domain not in self._versions:
            raise FormatError(
                f"node {short(name)} is of domain {short(domain or 'ai.onnx')}, which the model does not import"
            )
        attributes: dict[str, Any] = {}
        for attribute in proto.attribute:
            try:
                attributes[attribute.name] = self._onnx.helper.get_attribute_value(attribute)
            except Exception as error:
                raise FormatError(f"node {short(name)}, attribute {short(attribute.name)}: {_reason(error)}") from None
        node = Node(proto, name, kind, attributes, list(proto.input), list(proto.output))
        graphs = list(named_graphs(proto))
        if graphs and self._control_flow != "op":
            raise FormatError(
                f'node {short(name)} ({kind}) has graphs of its own, which control_flow="refuse" refuses; '
                'control_flow="op" takes it as one op',
                "control-flow",
            )
        for attribute_name, graph in graphs:
            free: set[str] = set()
            node.copies += free_names(graph, set(), free)
            node.graphs.append(InnerGraph(attribute_name, graph, free))
        node.captured = sorted(set[str]().union(*(each.free for each in node.graphs)) - set(node.inputs))
        return node

    def _infer(self, node: Node) -> None:
        network = self.network
        types = self._inferred(node)
        for name in node.outputs:
            if not name:
                continue
            if name in network.values:
                raise FormatError(f"{short(name)} is written twice, by node {short(node.name)} too")
            self._define(name, self._whole(node, name, types.get(name)))
        if node.type in ("Shape", "Size"):
            self._shape(node)
        elif node.type == "If" and len(node.bodies) == 1:
            self._take_branch(node, node.bodies[0])
        elif all(name in network.constant for name in node.reads) and is_repeatable(node, network):
            network.constant.update(name for name in node.outputs if name)
            self._evaluate(node)

    def _take_branch(self, node: Node, branch: Network) -> None:
        """Take constants and contents from the only branch that runs."""
        for name, result in zip(node.outputs, branch.outputs, strict=False):
            if name and result in branch.constant and is_repeatable(node, self.network):
                self.network.constant.add(name)
                if result in branch.content:
                    self._keep(name, branch.content[result])

    def _inferred(self, node: Node) -> dict[str, Any]:
        """Return the types of the outputs, as far as inner graphs, contents or ONNX's rules fix them."""
        proto, values = node.proto, self.network.values
        if node.graphs and (found := self._by_inner_graphs(node)) is not None:
            return found
        make = self._onnx.helper.make_tensor_type_proto
        length = range_length(node, self.network.content)
        if length is not None:
            return {node.outputs[0]: make(values[node.inputs[0]].type.tensor_type.elem_type, [length])}
        if node.type in BY_CONTENT and (results := self._results(node)) is not None:
            number = self._onnx.helper.np_dtype_to_tensor_dtype
            pairs = zip(node.outputs, results, strict=False)
            return {name: make(number(result.dtype), result.shape) for name, result in pairs if name}
        domain = "" if proto.domain in _STANDARD else proto.domain
        try:
            schema = self._onnx.defs.get_schema(proto.op_type, max(1, min(self._versions[domain], 2**31 - 1)), domain)
        except self._onnx.defs.SchemaError:
            if not domain:
                raise FormatError(f"node {short(node.name)}: ONNX has no op {short(proto.op_type)}") from None
            try:
                return output_types(node, values)
            except Exception as error:
                raise FormatError(f"node {short(node.name)} ({node.type}): {_reason(error)}") from None
        if proto.op_type == "Einsum":
            equation = node.attributes.get("equation")
            if not isinstance(equation, bytes) or not _EQUATION.fullmatch(equation):
                # ONNX's rule never returns for an equation with a single dot
                raise FormatError(f"node {short(node.name)} (Einsum): {short(equation)} is no equation")
        data = {
            name: self._onnx.numpy_helper.from_array(self.network.content[name], name)
            for name in node.inputs
            if name in self.network.content
        }
        try:
            result: dict[str, Any] = self._onnx.shape_inference.infer_node_outputs(
                schema,
                with_defaults(node),
                {name: values[name].type for name in (*node.inputs, *node.captured) if name},
                data,
                opset_imports=self._opsets,
            )
        except Exception as error:
            raise FormatError(f"node {short(node.name)} ({node.type}): {_reason(error)}") from None
        correct(node, result, values)
        return result

    def _by_inner_graphs(self, node: Node) -> dict[str, Any] | None:
        """Read the inner graphs of a node; return the types of its outputs, or None if that is left to ONNX's rule."""
        if node.type not in CONTROL_FLOW:
            node.unread = "the op is unknown"
        else:
            make = self._onnx.helper.make_tensor_type_proto
            reader = InnerReader(node, self.network, self._versions[""], make, self._inner)
            try:
                return dict(zip(node.outputs, reader.outputs(), strict=False))
            except FormatError as error:
                self._dims.missing.clear()
                if error.kind.rpartition(".")[2] not in _UNREADABLE:
                    raise
                node.unread, node.bodies, node.trips = str(error), [], 1
        draw(seconds=_COPY_SECONDS * node.copies)
        return None

    def _whole(self, node: Node, name: str, inferred: Any) -> Any:
        """Return the type of an output by its rule; open dimensions come from the file's declaration or from `dims`."""
        declared = self._declared.get(name)
        kinds = [each for each in (inferred, declared) if each is not None and each.WhichOneof("value")]
        if not kinds:
            raise FormatError(
                f"the type and shape of {short(name)}, written by node {short(node.name)} ({node.type}), are "
                "not known: ONNX has no rule for this op, and the file does not contain them",
                "unknown-shape",
            )
        for type_ in kinds:
            if type_.WhichOneof("value") != "tensor_type":
                return type_  # the caller refuses it by name
            if type_.tensor_type.HasField("shape") and self._dims.fill(name, type_):
                self._dims.missing.clear()
                return type_
        if not any(each.tensor_type.HasField("shape") for each in kinds):
            raise FormatError(
                f"the shape of {short(name)}, written by node {short(node.name)} ({node.type}), is not known: "
                "it depends on data, or the rule of this op needs what is not there",
                "unknown-shape",
            )
        try:
            self._dims.refuse_missing()
        except FormatError as error:
            raise FormatError(
                f"node {short(node.name)} ({node.type}), output {short(name)}: {error}", "open-dims"
            ) from None
        raise AssertionError("no dimension is open")

    def _shape(self, node: Node) -> None:
        """Store the content of a shape without computing anything: shapes are known by now."""
        import numpy as np

        shape = self.network.values[node.inputs[0]].shape
        if node.type == "Size":
            content = np.array(self.network.values[node.inputs[0]].elements, dtype=np.int64)
        else:
            first, last = node.attributes.get("start", 0), node.attributes.get("end")
            if not isinstance(first, int) or not isinstance(last, int | None):
                raise FormatError(f"node {short(node.name)} (Shape): start and end must be whole numbers")
            content = np.array(shape[first:last], dtype=np.int64)
        self._keep(node.outputs[0], content)
        self.network.constant.add(node.outputs[0])

    def _evaluate(self, node: Node) -> None:
        """Store the content of the outputs if they and their inputs are small and known."""
        network, attributes = self.network, node.attributes
        if node.type == "Constant":
            tensor = attributes.get("value")
            if tensor is not None:
                self._keep_content(node.outputs[0], tensor)
                return
        elif node.type == "CastLike" and node.inputs[0] in network.content and node.inputs[1] in network.content:
            content = network.content[node.inputs[0]].astype(network.content[node.inputs[1]].dtype)
            self._keep(node.outputs[0], content)
            return
        elif node.type not in ARITHMETIC | BY_CONTENT:
            return
        if any(network.values[name].elements > MAX_CONTENT for name in node.outputs if name):
            return
        # without a result its shape is known; an op whose shape depends on its content reports the missing content
        for name, result in zip(node.outputs, self._results(node) or (), strict=False):
            if name and getattr(result, "shape", None) == network.values[name].shape:
                self._keep(name, result)

    def _results(self, node: Node) -> list[Any] | None:
        """Return the outputs of a node that reads known contents; None if they cannot be computed."""
        content = self.network.content
        if not all(name in content for name in node.reads) or any(map(self._is_external, node.attributes.values())):
            return None
        from onnx.reference import ReferenceEvaluator

        try:
            evaluator = ReferenceEvaluator(node.proto, opsets=dict(self._versions))
            results: list[Any] = evaluator.run(None, {name: content[name] for name in node.reads})
        except Exception:
            return None
        return results

    def _is_external(self, value: Any) -> bool:
        tensor = self._onnx.TensorProto
        return isinstance(value, tensor) and value.data_location == tensor.EXTERNAL


def is_repeatable(node: Node, network: Network) -> bool:
    """Return True if equal inputs always give equal outputs, as far as known."""
    if node.type in RANDOM or node.unread or is_training_dropout(node, network):
        return False
    return all(is_repeatable(inner, body) for body in node.bodies for inner in body.nodes)


def is_training_dropout(node: Node, network: Network) -> bool:
    """Return True if a node is a dropout that drops elements, or may do so."""
    if node.type != "Dropout":
        return False
    if len(node.inputs) > 2 and node.inputs[2]:
        mode = network.content.get(node.inputs[2])
        return mode is None or bool(mode.any())
    return not node.attributes.get("is_test", 1)


def _reason(error: Exception) -> str:
    return clipped(one_line(str(error)), 300) or type(error).__name__
