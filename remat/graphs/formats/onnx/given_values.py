"""Contents given for inputs of an ONNX model, which the reader treats as initializers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from remat.errors import FormatError
from remat.io.files import read_bytes
from remat.io.limits import draw
from remat.runtime.text import clipped, one_line, short, together

#: Suffixes of tensor files: a ``TensorProto``, or an array of NumPy.
TENSOR_SUFFIXES = (".pb", ".npy")


@dataclass
class GivenValues:
    """Contents of inputs by name: arrays, numbers or lists of numbers."""

    given: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.given, Mapping):
            raise FormatError(f"values: names of inputs and their values are needed, not {short(self.given)}", "values")

    def refuse_unknown(self, inputs: Sequence[str]) -> None:
        """Raise FormatError if a name is none of the inputs that the model has no value for."""
        unknown = [name for name in self.given if name not in inputs]
        if unknown:
            known = together([short(name) for name in inputs]) or "none"
            raise FormatError(f"values: the model has no open input {short(unknown[0])} (it has {known})", "values")

    def content(self, name: str, type_: Any, dtype: Any) -> Any:
        """Return the array for an input with this ``TypeProto`` and NumPy `dtype`.

        An array must have the type and shape of the input. Plain numbers are converted if no value changes, and a flat
        list fills the shape of the input. Open dimensions have the size of the value. Raise FormatError otherwise.
        """
        given = self.given[name]
        try:
            array = np.asarray(given)
        except (ValueError, OverflowError, TypeError):
            raise FormatError(f"the value of input {short(name)} is no array: {short(given)}", "values") from None
        draw(array.nbytes)
        has_shape = type_.tensor_type.HasField("shape")
        dims = [
            each.dim_value if each.WhichOneof("value") == "dim_value" else -1 for each in type_.tensor_type.shape.dim
        ]
        if not isinstance(given, np.ndarray):
            array = _converted(array, dtype)
            if has_shape and array.ndim < 2 and dims.count(-1) < 2 and _fits(array.size, dims):
                array = array.reshape(dims)
        same = not has_shape or (
            len(dims) == array.ndim and all(dim in (-1, size) for dim, size in zip(dims, array.shape, strict=True))
        )
        if array.dtype != dtype or not same:
            wanted = ["?" if dim < 0 else str(dim) for dim in dims]
            raise FormatError(
                f"the value of input {short(name)} is {array.dtype}[{','.join(map(str, array.shape))}], "
                f"but the model needs {dtype}[{','.join(wanted) if has_shape else '...'}]",
                "values",
            )
        return array


def _fits(size: int, dims: Sequence[int]) -> bool:
    """Return True if `size` elements fill a shape with at most one open dimension, -1."""
    product = 1
    for dim in dims:
        product *= dim if dim >= 0 else 1
    return size == product if -1 not in dims else product > 0 and size % product == 0


def _converted(array: Any, dtype: Any) -> Any:
    """Return numbers in another type if that changes none of them, otherwise the array as it is."""
    if array.size and array.dtype.kind not in "biuf":
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
    return converted if dtype.kind not in "biu" or np.array_equal(converted, array) else array


def read_tensor(path: str) -> Any:
    """Return the array in a file: ``.npy``, or ``.pb`` with a ``TensorProto``.

    Raise FormatError with the path if it contains something else; nothing in it is unpickled.
    """
    data = read_bytes(path)
    try:
        if Path(path).suffix.lower() == ".npy":
            array = np.load(BytesIO(data), allow_pickle=False)
        else:
            from onnx import TensorProto, numpy_helper

            tensor = TensorProto.FromString(data)
            if tensor.data_location == TensorProto.EXTERNAL:
                raise ValueError("its content is in another file")
            array = numpy_helper.to_array(tensor)
    except ImportError:
        raise FormatError(
            "reading a TensorProto needs the package onnx: pip install 'remat[onnx]'", "package"
        ) from None
    except Exception as error:
        reason = clipped(one_line(str(error)), 200) or type(error).__name__
        raise FormatError(f"{path}: no tensor: {reason}", "tensor-file") from None
    if not isinstance(array, np.ndarray):
        raise FormatError(f"{path}: no tensor, but an archive", "tensor-file")
    return array
