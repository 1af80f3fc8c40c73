"""Automatic differentiation: from forward ops to a training graph, op by op.

It derives the inputs and outputs of backward ops, the costs of all ops, and the accumulation of gradients of values
with several readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple, get_args

from remat.errors import GraphError
from remat.graphs.builder import GraphBuilder
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.derivatives import LOSSES, RANDOM, RULES

FLOAT = 4  # bytes of float32
COMPLEX = 8  # bytes of a complex number of two float32
INDEX = 8  # bytes of int64
FLAG = 1  # bytes of bool
#: FLOPs that a device computes in the time to move a byte: NVIDIA's P100, 9.3 TFLOP/s (float32) and 732 GB/s.
FLOPS_PER_BYTE = 13
LOSS = "loss"

#: Accumulation of gradients from several readers: separate ops that each add two, as in PyTorch's captured graphs, or
#: one buffer that the backward op of every reader writes, as in Rockmate.
Accumulation = Literal["sums", "buffers"]


@dataclass(frozen=True, slots=True)
class Value:
    """Tensor of the forward pass."""

    name: str
    """Empty for inputs of the network, which are part of the constant memory."""
    shape: tuple[int, ...]
    itemsize: int = FLOAT
    """Bytes of an element."""
    differentiable: bool = True
    """True if it needs a gradient."""

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True)
class Output:
    """Output of an op: suffix (empty for the first), shape, bytes of an element; `kept` for graph outputs."""

    suffix: str
    shape: tuple[int, ...]
    itemsize: int = FLOAT
    differentiable: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    """Recorded op of the forward pass."""

    name: str
    kind: str
    module: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    flops: int
    params: int
    workspace: int


class _Work(NamedTuple):
    """Work of an op."""

    flops: int = 0
    fixed: int = 0
    """Bytes of parameters and their gradients."""
    workspace: int = 0
    """Bytes."""
    moved: int | None = None
    """Bytes of inputs and outputs that the op moves; None: all."""


#: Work of an op that reads inputs and writes outputs, without arithmetic.
_MOVE = _Work()


class Tape:
    """Recorder of a forward pass and builder of its training graph: forward, loss and backward ops.

    Costs are in FLOPs, by the roofline: the larger of two numbers. One is the FLOPs of matrix products and convolutions
    (a multiply-add is two FLOPs), the other :data:`FLOPS_PER_BYTE` times the bytes of inputs and outputs (inputs of the
    network included). Bytes of parameters and their gradients are added at the same rate, so that costs are affine in
    the batch. A backward op has its forward op's FLOPs once for each input with a gradient and once for parameters.
    Tensors are float32.

    Constant memory is the inputs of the network, the parameters, their gradients and other state. Backward ops add to
    gradients of parameters in place, so these are not tensors. The loss and the values that an op keeps (running
    statistics) are graph outputs.

    ``meta`` has the dotted module paths of ops (``modules``) and the shapes of tensors (``shapes``), by name;
    ``params`` and ``batch``; and ``flops``, of matrix products and convolutions only, in the order of the ops.
    ``random_ops`` must repeat their random numbers when they are recomputed; ``overhead`` splits the constant memory.

    Parameters
    ----------
    batch : int
        Samples.
    accumulation : {"sums", "buffers"}
        Accumulation of gradients of a value with several readers: ops that add two, or a buffer with several writers.

    Examples
    --------
    >>> tape = Tape("tiny", 2)
    >>> x = tape.source((2, 3))
    >>> with tape.module("mlp"):
    ...     (h,) = tape.apply("linear", "up", [x], [Output("", (2, 5))], flops=60, params=20)
    ...     (y,) = tape.apply("gelu", "gelu", [h], [Output("", (2, 5))])
    >>> graph = tape.build("mse_loss", y)
    >>> [(op.name, op.inputs) for op in graph.ops]  # doctest: +NORMALIZE_WHITESPACE
    [('mlp.up', ()), ('mlp.gelu', ('mlp.up',)), ('loss', ('mlp.gelu',)), ('grad_loss', ('loss', 'mlp.gelu')),
     ('grad_mlp.gelu', ('grad_loss', 'mlp.up')), ('grad_mlp.up', ('grad_mlp.gelu',))]
    """

    def __init__(self, name: str, batch: int, *, accumulation: Accumulation = "sums") -> None:
        self.name = name
        self.batch = checked_size(name, "batch", batch)
        if accumulation not in get_args(Accumulation):
            known = " or ".join(get_args(Accumulation))
            raise GraphError(f"{name}: the accumulation of gradients is {known}, not {accumulation!r}", "zoo")
        self.accumulation = accumulation
        self.input_bytes = 0
        self.state_bytes = 0
        self.calls: list[_Call] = []
        self.kept: list[str] = []  # tensors that are graph outputs
        self._path: list[str] = []

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Assign the ops recorded inside to submodule `name` (which may have dots) of the current module."""
        self._path.append(name)
        try:
            yield
        finally:
            self._path.pop()

    def source(self, shape: Sequence[int], itemsize: int = FLOAT) -> Value:
        """Add an input of the network: part of the constant memory, without a gradient."""
        value = Value("", tuple(shape), itemsize, differentiable=False)
        self.input_bytes += value.size
        return value

    def apply(
        self,
        kind: str,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[Output],
        *,
        flops: int = 0,
        params: int = 0,
        workspace: int = 0,
    ) -> tuple[Value, ...]:
        """Record an op and return its outputs.

        The first output has a gradient if an input has one or the op has parameters; the others only if marked as well.

        Parameters
        ----------
        kind : str
            One of :data:`~remat.graphs.zoo.derivatives.RULES`.
        name : str
            Name of the op within the current module.
        outputs : sequence of Output
            The first has the name of the op, the others ``op.suffix``.
        flops : int
            FLOPs of matrix products and convolutions, for the whole batch.
        params : int
            Number of parameters.
        workspace : int
            Bytes, for the forward and for the backward op.
        """
        if kind not in RULES:
            raise GraphError(f"{self.name}: there is no rule for the backward pass of {kind!r}", "no-backward")
        path = ".".join(self._path)
        full = f"{path}.{name}" if path else name
        needed = params > 0 or any(value.differentiable for value in inputs)
        made = tuple(
            Value(
                f"{full}.{output.suffix}" if output.suffix else full,
                tuple(output.shape),
                output.itemsize,
                needed and (position == 0 or output.differentiable),
            )
            for position, output in enumerate(outputs)
        )
        self.kept += [value.name for value, output in zip(made, outputs, strict=True) if output.kept]
        self.calls.append(_Call(full, kind, path, tuple(dict.fromkeys(inputs)), made, flops, params, workspace))
        return made

    def build(self, loss: str, *predictions: Value, **meta: Any) -> ComputeGraph:
        """Return the training graph for a scalar loss of type `loss`, which reads `predictions`.

        Raises
        ------
        GraphError
            If the loss is unknown, two ops have one name, or sizes become too large for exact sums.
        """
        if loss not in LOSSES:
            raise GraphError(f"{self.name}: the loss is {' or '.join(LOSSES)}, not {loss!r}", "loss")
        return _Differentiation(self, loss, predictions, meta).graph()

    @property
    def params(self) -> int:
        """Number of parameters of all ops."""
        return sum(call.params for call in self.calls)


class _Differentiation:
    """Builder of the ops of a training graph, forward and backward, with their costs."""

    def __init__(self, tape: Tape, loss: str, predictions: Sequence[Value], meta: dict[str, Any]) -> None:
        self.tape, self.loss, self.predictions = tape, loss, predictions
        param_bytes = FLOAT * tape.params
        overhead = {
            "input_bytes": tape.input_bytes,
            "param_bytes": param_bytes,
            "param_gradient_bytes": param_bytes,
            "state_bytes": tape.state_bytes,
        }
        self.modules: dict[str, str] = {}
        self.shapes: dict[str, list[int]] = {}
        self.flops: list[int] = []
        self.builder = GraphBuilder(
            f"{tape.name}-b{tape.batch}",
            cost_unit="flop",
            source="built op by op by remat.graphs.zoo",
            constant_memory=sum(overhead.values()),
            meta={
                "batch": tape.batch,
                **meta,
                "params": tape.params,
                "flops_per_byte": FLOPS_PER_BYTE,
                "overhead": overhead,
                "random_ops": [call.name for call in tape.calls if call.kind in RANDOM],
                "modules": self.modules,
                "shapes": self.shapes,
                "flops": self.flops,
            },
        )
        self.gradients: dict[str, str] = {}  # sum of the contributions so far, by value
        self.sums: dict[str, int] = {}
        self.readers: dict[str, int] = {}

    def graph(self) -> ComputeGraph:
        for call in self.tape.calls:
            for value in call.inputs:
                self.readers[value.name] = self.readers.get(value.name, 0) + 1
            read = 0 if RULES[call.kind].gathers else FLOAT * call.params
            self._op(
                call.name, call.kind, call.inputs, call.outputs, _Work(call.flops, read, call.workspace),
                module=call.module, phase="forward",
            )  # fmt: skip
        loss = Value(LOSS, (1,))
        whole = LOSSES[self.loss]
        moved = None if whole else sum(prod(value.shape[:-1]) * value.itemsize for value in self.predictions)
        self._op(LOSS, self.loss, self.predictions, [loss], _Work(moved=moved), module=LOSS, phase="loss")
        made = [Value(self._gradient_name(LOSS, i, len(self.predictions)), value.shape, value.itemsize)
                for i, value in enumerate(self.predictions)]  # fmt: skip
        self._op(
            f"grad_{LOSS}",
            f"{self.loss}_backward",
            [loss, *(self.predictions if whole else ())],
            made,
            module=LOSS,
            phase="backward",
        )
        for value, gradient in zip(self.predictions, made, strict=True):
            self.gradients[value.name] = gradient.name
        for call in reversed(self.tape.calls):
            self._backward(call)
        self.builder.output(LOSS, *self.tape.kept)
        return self.builder.build(self.modules)  # in the order of insertion, which is topological

    def _backward(self, call: _Call) -> None:
        incoming = [
            Value(self.gradients[v.name], v.shape, v.itemsize) for v in call.outputs if v.name in self.gradients
        ]
        wanted = [value for value in call.inputs if value.differentiable]
        if not incoming or not (wanted or call.params):
            return
        rule = RULES[call.kind]
        buffers = self.tape.accumulation == "buffers"
        if rule.passes:
            copied = [value for value in wanted if buffers and self.readers[value.name] > 1]
            for value in wanted:
                if value not in copied:
                    self._contribute(value, incoming[0].name, call)
            wanted = copied
            if not wanted:
                return
        saved = [call.inputs[position] for position in rule.inputs if position < len(call.inputs)]
        saved += [call.outputs[position] for position in rule.outputs]
        times = len(wanted) + (call.params > 0) if rule.flops is None else rule.flops
        written = []
        for position, value in enumerate(wanted):
            shared = buffers and self.readers[value.name] > 1
            name = f"grad_of_{value.name}" if shared else self._gradient_name(call.name, position, len(wanted))
            written.append(Value(name, value.shape, value.itemsize))
        both = 2 * FLOAT * call.params  # the op reads parameters and writes their gradients
        self._op(
            f"grad_{call.name}", f"{call.kind}_backward", [*incoming, *saved], written,
            _Work(int(call.flops * times), both, call.workspace), module=call.module, phase="backward",
        )  # fmt: skip
        for value, gradient in zip(wanted, written, strict=True):
            self._contribute(value, gradient.name, call)

    def _contribute(self, value: Value, gradient: str, call: _Call) -> None:
        """Record `gradient` as the gradient of `value`, or as a contribution to it."""
        before = self.gradients.get(value.name)
        if before is None or before == gradient:  # the first, or a buffer
            self.gradients[value.name] = gradient
            return
        number = self.sums[value.name] = self.sums.get(value.name, 0) + 1
        name = f"sum_{value.name}" if number == 1 else f"sum_{value.name}.{number}"
        terms = [Value(term, value.shape, value.itemsize) for term in (before, gradient)]
        self._op(name, "add", terms, [Value(name, value.shape, value.itemsize)], module=call.module, phase="backward")
        self.gradients[value.name] = name

    def _op(
        self, name: str, kind: str, inputs: Sequence[Value], outputs: Sequence[Value], work: _Work = _MOVE, *,
        module: str, phase: str,
    ) -> None:  # fmt: skip
        """Add an op; its cost follows from its work and the sizes of inputs and outputs."""
        if name in self.modules:
            raise GraphError(f"{self.tape.name}: two ops are named {name!r}", "name-taken")
        for value in outputs:
            if value.name not in self.shapes:
                self.shapes[value.name] = list(value.shape)
                self.builder.tensor(value.name, value.size)
        moved = sum(value.size for value in (*inputs, *outputs)) if work.moved is None else work.moved
        self.modules[name] = module
        self.flops.append(work.flops)
        self.builder.op(
            name,
            inputs=[value.name for value in inputs if value.name],
            outputs=[value.name for value in outputs],
            cost=max(work.flops, FLOPS_PER_BYTE * moved) + FLOPS_PER_BYTE * work.fixed,
            workspace=work.workspace,
            type=kind,
            phase=phase,
        )

    @staticmethod
    def _gradient_name(op: str, position: int, count: int) -> str:
        return f"grad_{op}" if count == 1 else f"grad_{op}.{position}"


def checked_size(network: str, what: str, size: Any) -> int:
    """Return `size`; raise GraphError with the network and `what` if it is not a positive integer."""
    if type(size) is not int or size < 1:
        raise GraphError(f"{network}: {what} must be a whole number from 1, not {size!r}", "zoo")
    return size


def check_sizes(network: str, sizes: Mapping[str, Any]) -> None:
    """Raise GraphError with the network and the name of a size if one is not a positive integer."""
    for what, size in sizes.items():
        checked_size(network, what, size)
