"""Costs of HLO instructions, in floating-point operations.

A multiply-add counts two. Other instructions count one per element that they write or reduce. A loop counts its body
once per iteration. A fusion counts what it fuses, but at least one per element that it writes.
"""

from __future__ import annotations

import math
import re

from remat.graphs.convolutions import kernel_uses
from remat.graphs.formats.hlo.shapes import ArrayShape, arrays
from remat.graphs.formats.hlo.text import Computation, Instruction, Module
from remat.graphs.graph import MAX_TOTAL
from remat.runtime.text import short

#: Instructions that only rename, move or create values, at no cost.
FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency", "opt-barrier",
    "domain", "partition-id", "replica-id", "async-update", "send-done", "recv-done",
})  # fmt: skip
#: Instructions that move data; within a fusion they cost nothing.
MOVES = frozenset({
    "broadcast", "copy", "reshape", "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate",
    "pad", "iota", "reverse", "gather", "bitcast-convert",
})  # fmt: skip
_DIM_LABELS = re.compile(r"([a-z0-9?]+)_([a-z0-9?]+)->([a-z0-9?]+)")
_WINDOW = re.compile(r"-?[0-9]{1,18}(?:[x_]-?[0-9]{1,18})*")
_GEMM_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([0-9",]*)\]')


class Costs:
    """Costs of the instructions and computations of one module, each computed once."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, int] = {}
        self.remarks: list[str] = []
        """Assumptions made where the text is incomplete."""

    def of_computation(self, computation: Computation, *, fused: bool = False) -> int:
        """Return the sum over the instructions of a computation, each counted once."""
        key = computation.name + (" fused" if fused else "")
        if key not in self._known:
            steps = (i for i in computation.instructions.values() if not fused or i.opcode not in MOVES)
            self._known[key] = sum(self.of_instruction(i) for i in steps)
        return self._known[key]

    def of_instruction(self, instruction: Instruction) -> int:
        """Return the operations of one execution of an instruction.

        Raise FormatError, naming the line, for more than 2^62 operations, and for dimensions that the operands do not
        have.
        """
        cost = self._cost(instruction)
        if cost >= MAX_TOTAL:
            raise instruction.fault("takes 2^62 operations or more")
        return cost

    def _cost(self, instruction: Instruction) -> int:
        opcode = instruction.opcode
        elements = instruction.shape.elements
        called = [c for c in self._module.called(instruction) if c.instructions]
        if opcode in FREE or opcode.endswith("-done"):
            return 0
        if opcode == "dot":
            return 2 * elements * self._contracted(instruction, "lhs_contracting_dims")
        if opcode == "convolution":
            return 2 * self._convolution(instruction)
        if opcode == "fft":
            length = math.prod(min(n, MAX_TOTAL) for n in instruction.numbers("fft_length")[:3])
            return 5 * elements * max(1, math.ceil(math.log2(max(2, length))))
        if opcode == "fusion":
            return max(elements, sum(self.of_computation(c, fused=True) for c in called))
        if opcode == "while":
            trips = instruction.trip_count
            if trips is None:
                self.remarks.append(f"{instruction.name}: the number of its iterations is not said; it is taken as 1")
            return (1 if trips is None else trips) * sum(self.of_computation(c) for c in called)
        if opcode == "conditional":
            return max((self.of_computation(c) for c in called), default=0)
        if opcode in ("call", "async-start"):
            return sum(self.of_computation(c) for c in called)
        if opcode == "custom-call":
            return max(elements, self._library_call(instruction))
        inner = max(1, sum(self.of_computation(c) for c in called))
        if opcode in ("reduce", "all-reduce", "reduce-scatter"):
            return inner * max((operand.shape.elements for operand in instruction.operands), default=0)
        if opcode in ("reduce-window", "select-and-scatter"):
            return inner * elements * math.prod(self._window(instruction)[0])
        if opcode in ("scatter", "map"):
            return inner * max(1, instruction.operands[-1].shape.elements if instruction.operands else elements)
        return elements

    def _array(self, instruction: Instruction, number: int) -> ArrayShape:
        if len(instruction.operands) <= number:
            raise instruction.fault(f"{instruction.opcode} has no operand {number}")
        shape = instruction.operands[number].shape
        if not isinstance(shape, ArrayShape):
            raise instruction.fault(f"operand {number} is a tuple, not an array")
        return shape

    def _contracted(self, instruction: Instruction, attribute: str) -> int:
        dims = self._array(instruction, 0).dims
        axes = instruction.numbers(attribute)
        if any(axis >= len(dims) for axis in axes):
            raise instruction.fault(f"{attribute} names axis {max(axes)} of an operand of {len(dims)} axes")
        return math.prod(dims[axis] for axis in axes)

    @staticmethod
    def _window(instruction: Instruction) -> tuple[list[int], dict[str, list[list[int]]]]:
        """Return the sizes of a window, and its other parts by name, such as ``pad`` with low and high numbers."""
        parts: dict[str, list[list[int]]] = {}
        for piece in instruction.attributes.get("window", "").strip("{} ").split():
            name, _, text = piece.partition("=")
            if _WINDOW.fullmatch(text) is None:
                raise instruction.fault(f"window: {short(piece)} is no list of numbers")
            parts[name] = [[int(number) for number in part.split("_")] for part in text.split("x")]
        return [size for size, *_ in parts.get("size", [])], parts

    def _convolution(self, instruction: Instruction) -> int:
        """Return the multiplications of a convolution, without those with padding or zeros between elements."""
        data, kernel = self._array(instruction, 0), self._array(instruction, 1)
        out = instruction.shape
        found = _DIM_LABELS.fullmatch(instruction.attributes.get("dim_labels", ""))
        if found is None or not isinstance(out, ArrayShape):
            raise instruction.fault("convolution without dim_labels")
        labels = found.groups()
        for label, shape in zip(labels, (data, kernel, out), strict=True):
            if len(label) != len(shape.dims):
                raise instruction.fault(f"dim_labels {label} do not fit an array of {len(shape.dims)} axes")
        if "i" not in labels[1] or "o" not in labels[1]:
            raise instruction.fault(f"dim_labels {labels[1]} name no input and output features")
        sizes, window = self._window(instruction)
        pairs = 1
        for axis, size in enumerate(sizes):
            places = [label.find(str(axis)) for label in labels]
            if min(places) < 0:
                raise instruction.fault(f"dim_labels do not name axis {axis} of the window")

            def part(name: str, default: int, axis: int = axis) -> int:
                given = window.get(name, [])
                return given[axis][0] if axis < len(given) else default

            pairs *= kernel_uses(
                data.dims[places[0]], size, out.dims[places[2]], stride=part("stride", 1), low=part("pad", 0),
                data_dilation=part("lhs_dilate", 1), kernel_dilation=part("rhs_dilate", 1),
            )  # fmt: skip
        # dimensions outside the window: batch and features of the result, input features of the kernel
        axes = [
            d for d, label in zip(out.dims, labels[2], strict=True) if not (label.isdigit() and int(label) < len(sizes))
        ]
        return pairs * math.prod(axes) * kernel.dims[labels[1].index("i")]

    def _library_call(self, instruction: Instruction) -> int:
        """Return the operations of a library's matrix product or convolution; 0 for other calls."""
        target = instruction.attributes.get("custom_call_target", "")
        made = next(arrays(instruction.shape), None)
        if made is None or len(instruction.operands) < 2:
            return 0
        if "gemm" in target or "matmul" in target:
            found = _GEMM_CONTRACTED.search(instruction.attributes.get("backend_config", ""))
            axes = [int(axis) for axis in re.findall(r"[0-9]{1,4}", found[1])] if found else []
            dims = self._array(instruction, 0).dims
            return 2 * made.elements * math.prod(dims[axis] for axis in axes if axis < len(dims)) if axes else 0
        if "__cudnn$conv" in target:
            found = _DIM_LABELS.fullmatch(instruction.attributes.get("dim_labels", ""))
            first, second = self._array(instruction, 0), self._array(instruction, 1)
            out, kernel = made, second
            if "BackwardInput" in target:
                out, kernel = first, second
            elif "BackwardFilter" in target:
                out, kernel = second, made
            place = found[2].find("o") if found else -1
            if 0 <= place < len(kernel.dims):
                return 2 * out.elements * (kernel.elements // max(1, kernel.dims[place]))
        return 0
