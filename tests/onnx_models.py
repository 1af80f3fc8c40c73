"""Small ONNX models, built node by node."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name, shape, dtype=FLOAT):
    """Return a typed name; strings in the shape are open dimensions."""
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def weight(name, *shape):
    return constant(name, np.zeros(shape, dtype=np.float32))


def model(  # noqa: PLR0913 - the parts of a model
    nodes, inputs, outputs, constants=(), *, opset=21, functions=(), value_info=(), domains=()
):
    """Return the bytes of a model; ONNX infers the types of outputs given by name."""
    graph = helper.make_graph(
        nodes, "model", inputs, [each if not isinstance(each, str) else _named(each) for each in outputs],
        list(constants), value_info=list(value_info),
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(each, 1) for each in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions)).SerializeToString()


def _named(name):
    info = onnx.ValueInfoProto()
    info.name = name
    info.type.tensor_type.elem_type = FLOAT
    return info


node = helper.make_node
