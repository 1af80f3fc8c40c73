"""Small ONNX models, built node by node."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: Iterable[int | str | None], dtype: int = FLOAT) -> Any:
    """Return a typed name; strings in the shape are open dimensions."""
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def weight(name: str, *shape: int) -> Any:
    return constant(name, np.zeros(shape, dtype=np.float32))


def model(  # noqa: PLR0913 - the parts of a model
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    constants: Iterable[Any] = (),
    *,
    opset: int = 21,
    functions: Iterable[Any] = (),
    value_info: Iterable[Any] = (),
    domains: Iterable[str] = (),
) -> bytes:
    """Return the bytes of a model; ONNX infers the types of outputs given by name."""
    graph = helper.make_graph(
        nodes, "model", inputs, [each if not isinstance(each, str) else _named(each) for each in outputs],
        list(constants), value_info=list(value_info),
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(each, 1) for each in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions)).SerializeToString()


def _named(name: str) -> Any:
    info = onnx.ValueInfoProto()
    info.name = name
    info.type.tensor_type.elem_type = FLOAT
    return info


node = helper.make_node
