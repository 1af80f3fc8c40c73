"""Values of an ONNX model: types, shapes, sizes in bytes, and open dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from remat.errors import FormatError
from remat.runtime.text import clipped, one_line, short, together

#: Bits of an element by type, after the names of ``TensorProto.DataType``; text has no fixed size.
BITS = {
    "FLOAT": 32, "UINT8": 8, "INT8": 8, "UINT16": 16, "INT16": 16, "INT32": 32, "INT64": 64, "BOOL": 8, "FLOAT16": 16,
    "DOUBLE": 64, "UINT32": 32, "UINT64": 64, "COMPLEX64": 64, "COMPLEX128": 128, "BFLOAT16": 16, "FLOAT8E4M3FN": 8,
    "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8, "UINT4": 4, "INT4": 4,
    "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip
#: Most axes of a tensor, which bounds inference for hostile models.
MAX_RANK = 32
#: Largest dimension, and largest value in ``dims``.
MAX_SIZE = 2**48


@dataclass(frozen=True, slots=True)
class Value:
    """Tensor of a model."""

    type: Any
    """An ``onnx.TypeProto``."""
    dtype: str
    """As in :data:`BITS`."""
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes; elements of less than a byte are packed, and the last byte is rounded up."""
        return -(-self.elements * BITS[self.dtype] // 8)


@dataclass
class Dimensions:
    """Sizes given for the open dimensions of a model.

    Their keys are the name of the dimension (``batch``), or tensor and axis (``x[0]``).
    """

    given: Mapping[str, int]
    used: set[str] = field(default_factory=set)
    missing: dict[str, list[str]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not isinstance(self.given, Mapping):
            raise FormatError(f"dims: names and their sizes are needed, not {short(self.given)}")
        for name, size in self.given.items():
            if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MAX_SIZE:
                raise FormatError(
                    f"dims: the size of {short(name)} must be a positive whole number, not {short(size)}", "dims"
                )

    def fill(self, tensor: str, type_: Any) -> bool:
        """Fill the open dimensions of a ``TypeProto``, record those without a size; return True if none remains."""
        whole = True
        for axis, dim in enumerate(type_.tensor_type.shape.dim):
            place = f"{tensor}[{axis}]"
            name = dim.dim_param if dim.WhichOneof("value") == "dim_param" else ""
            if name:
                self.named.add(name)
            key = place if place in self.given else name
            if key in self.given:
                self.used.add(key)
                dim.dim_value = self.given[key]
            elif dim.WhichOneof("value") != "dim_value" or dim.dim_value < 0:
                whole = False
                self.missing.setdefault(name or place, []).append(place)
        return whole

    def refuse_missing(self) -> None:
        """Raise FormatError with the names of open dimensions without a size, if any."""
        if self.missing:
            names = [
                name if name in places else f"{name} ({', '.join(places[:3])}{', ...' * (len(places) > 3)})"
                for name, places in self.missing.items()
            ]
            example = clipped(one_line(next(iter(self.missing))), 60)
            listed = clipped(one_line(together(names)), 500)
            raise FormatError(
                f"{'sizes' if len(names) > 1 else 'the size'} of {listed} not given: "
                f"dims={{{example!r}: ...}}, in the shell: remat convert --dim {example}=...",
                "open-dims",
            )

    def refuse_unused(self) -> None:
        """Raise FormatError with the names in `given` that the model does not have, if any."""
        unknown = [name for name in self.given if name not in self.used]
        if unknown:
            known = clipped(one_line(", ".join(sorted(self.named)[:10])), 300) or "none"
            raise FormatError(
                f"dims: {short(unknown[0])} is no open dimension of the model (named ones: {known})", "dims"
            )


def value_of(tensor: str, type_: Any, types: Mapping[int, str]) -> Value:
    """Return the value with this ``TypeProto``, whose dimensions must all be known.

    Raise FormatError, naming the tensor, if the type is not a tensor, has text elements, or has too many or too large
    dimensions.
    """
    kind = type_.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "value without a type").removesuffix("_type").replace("_", " ")
        raise FormatError(f"{short(tensor)} is a {what}, which has no size, not a tensor", "no-size")
    dtype = types.get(type_.tensor_type.elem_type, "UNDEFINED")
    if dtype not in BITS:
        raise FormatError(f"{short(tensor)} has elements of type {dtype.lower()}, which have no size", "no-size")
    dims = type_.tensor_type.shape.dim
    if len(dims) > MAX_RANK:
        raise FormatError(f"{short(tensor)} has {len(dims)} axes, more than {MAX_RANK}", "rank")
    shape = tuple(dim.dim_value for dim in dims)
    if any(size > MAX_SIZE for size in shape) or prod(shape) > 2**60:
        raise FormatError(f"{short(tensor)} has more than 2^60 elements")
    return Value(type_, dtype, shape)
