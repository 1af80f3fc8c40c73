"""Costs of equations of a jaxpr, in floating-point operations.

As in HLO texts: two for each multiplication of a product or convolution (except with padding), one for each element
that other ops reduce or write. A loop costs its body times its iterations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from remat.graphs.convolutions import kernel_uses

#: Primitives that move data without computing.
MOVES = frozenset({
    "broadcast_in_dim", "concatenate", "copy", "copy_p", "device_put", "dynamic_slice", "dynamic_update_slice",
    "empty", "empty2", "expand_dims", "gather", "iota", "pad", "reshape", "rev", "slice", "split", "squeeze",
    "stack", "transpose",
})  # fmt: skip
#: Prefixes of primitives that read each element once.
_REDUCERS = ("reduce_", "arg", "cum")


def cost_of(equation: Any) -> int:
    """Return the operations of one run of an equation."""
    name = equation.primitive.name
    read = [math.prod(v.aval.shape) for v in equation.invars if hasattr(v.aval, "shape")]
    written = sum(math.prod(v.aval.shape) for v in equation.outvars if hasattr(v.aval, "shape"))
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return int(2 * written * math.prod(shape[axis] for axis in contracted))
    if name == "conv_general_dilated":
        return 2 * _multiplications(equation)
    if name == "cond":
        return max((cost_of_jaxpr(branch) for branch in jaxprs_of(equation)), default=0)
    if name == "scan":
        return int(equation.params["length"]) * sum(cost_of_jaxpr(body) for body in jaxprs_of(equation))
    if name == "sort":
        length = equation.invars[0].aval.shape[equation.params["dimension"]]
        return written * max(1, math.ceil(math.log2(max(length, 2))))
    if name == "fft":
        length = math.prod(equation.params["fft_lengths"])
        return 5 * written * max(1, math.ceil(math.log2(max(2, length))))
    if name.startswith(("reduce_window", "select_and_scatter")):
        return written * math.prod(equation.params.get("window_dimensions", (1,)))
    if name.startswith(_REDUCERS) and name != "reduce_precision":
        return max(read, default=0)
    if name.startswith("scatter"):
        return read[-1] if read else written
    if name in ("cholesky", "triangular_solve", "lu", "eigh", "geqrf", "householder_product", "svd"):
        last = equation.invars[0].aval.shape[-1]
        return written * last
    inner = sum(cost_of_jaxpr(body) for body in jaxprs_of(equation))
    return max(written, inner)


def cost_of_jaxpr(jaxpr: Any) -> int:
    """Return the operations of all equations of a jaxpr, each once."""
    return sum(cost_of(equation) for equation in jaxpr.eqns)


def jaxprs_of(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs in the parameters of an equation."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(item, "jaxpr", item)  # a closed jaxpr contains a jaxpr
            if hasattr(inner, "eqns"):
                yield inner


def _multiplications(equation: Any) -> int:
    """Return the multiplications of a convolution that involve neither padding nor zeros of dilation."""
    params = equation.params
    dims = params["dimension_numbers"]
    data, kernel = (v.aval.shape for v in equation.invars)
    out = equation.outvars[0].aval.shape
    pairs = 1
    for axis, (low, _) in enumerate(params["padding"]):
        pairs *= kernel_uses(
            data[dims.lhs_spec[2 + axis]], kernel[dims.rhs_spec[2 + axis]], out[dims.out_spec[2 + axis]],
            stride=params["window_strides"][axis], low=low, data_dilation=params["lhs_dilation"][axis],
            kernel_dilation=params["rhs_dilation"][axis],
        )  # fmt: skip
    batch, features = (out[dims.out_spec[place]] for place in (0, 1))
    return int(pairs * batch * features * kernel[dims.rhs_spec[1]])
