"""Roofline model: the time of an op is that of its operations or of the bytes it moves, whichever is longer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from remat.errors import MeasurementError
from remat.graphs.devices import THIS_MACHINE, Device, find_device
from remat.torch.costs.base import CostModel
from remat.torch.costs.calls import Call, call_of, size_in_bytes, storage_key
from remat.torch.costs.flops import NOTHING, RANDOM_NUMBERS, flops_or_elements, remark_unknown
from remat.torch.costs.machine import this_machine
from remat.torch.costs.products import is_product

#: Ops that read no more of their first tensor than they write.
CHOOSING = {
    "embedding", "gather", "index", "index_select", "take", "_unsafe_index", "masked_select", "_embedding_bag",
}  # fmt: skip
#: Ops that read their first tensor twice: they need its mean first, and a batch does not fit a cache.
TWICE = {
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_batch_norm_with_update",
    "_batch_norm_with_update_functional", "cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm_backward",
    "batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
}  # fmt: skip
#: Bandwidth between devices as a share of that of memory: NVLink has 0.13 to 0.15 of an A100's or H100's.
LINK = 0.1


def bytes_moved(call: Call) -> int:
    """Return the bytes that a call reads and writes; 0 for a view or an allocation.

    Elements that a tensor repeats (stride 0) are read once. Outputs count even if no op reads them.
    """
    if call.free or call.key in NOTHING:
        return 0
    given = {storage_key(tensor) for tensor in call.inputs}
    fresh = [tensor for tensor in call.outputs if storage_key(tensor) not in given]
    written = sum(size_in_bytes(tensor) for tensor in fresh)
    if call.mutates:
        written += sum(size_in_bytes(tensor) for tensor in _written_into(call))
    read = [size_in_bytes(tensor) for tensor in call.inputs]
    if call.key in TWICE:  # the gradient and the input of a backward pass
        count = 2 if call.key.endswith("_backward") else 1
        read[:count] = [2 * size for size in read[:count]]
    elif call.key in CHOOSING and read:
        read[0] = min(read[0], written)
    return written + sum(read)


def _written_into(call: Call) -> list[torch.Tensor]:
    """Return the arguments that the schema declares as written."""
    found: list[torch.Tensor] = []
    for place, argument in enumerate(call.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = call.args[place] if place < len(call.args) else call.kwargs.get(argument.name)
            found.extend(tensor for tensor in call.inputs if tensor is value)
    return found


class Roofline(CostModel):
    """``max(operations / rate, bytes / bandwidth) + launch``, in ns (Williams, Waterman and Patterson, 2009).

    Products run at the device's rate for their type of numbers, other ops at the rate of its 32-bit vector units.
    Random numbers run at the rate of the generator, if the device has one. Views take no time.

    Parameters
    ----------
    device : str or Device
        A name of the table of devices, a :class:`Device`, or ``"this-machine"``: the machine that this runs on,
        measured the first time, for the kind of device (CPU or GPU) of the tensors.
    tf32 : bool
        True if products of 32-bit numbers may be rounded to TF32 (``torch.backends.cuda.matmul.allow_tf32``).

    Raises
    ------
    MeasurementError
        If the device is unknown, or this machine has no device of the tensors' kind.

    Examples
    --------
    >>> import torch
    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> x = torch.ones(4096, 4096)
    >>> graph = make_fx(lambda x: (x @ x).relu(), tracing_mode="fake")(x).graph
    >>> nodes = [node for node in graph.nodes if node.op == "call_function"]
    >>> Roofline("A100").costs(nodes)  # 137 GFLOP at 19.5 TFLOP/s; 134 MB at 2039 GB/s
    [7053151, 70825]
    """

    unit = "ns"

    def __init__(self, device: str | Device = THIS_MACHINE, *, tf32: bool = False) -> None:
        measured = isinstance(device, str) and device.lower() == THIS_MACHINE
        self._device = device if isinstance(device, Device) else None if measured else find_device(device)
        self.tf32, self._last = tf32, self._device
        self.name = f"roofline:{THIS_MACHINE if self._device is None else self._device.name}{':tf32' if tf32 else ''}"

    @property
    def figures(self) -> str:
        if self._last is None:
            return ""
        rate, moved = self._last.product_rate("fp32", tf32=self.tf32), self._last.bandwidth
        return f"{rate / 1e9:,.1f} GFLOP/s in 32 bits, {moved / 1e9:,.1f} GB/s, {self._last.launch:,} ns for each op"

    def costs(self, nodes: Sequence[torch.fx.Node]) -> list[int]:
        calls = [call_of(node) for node in nodes]
        remark_unknown(calls)
        return [self.nanoseconds(call) for call in calls]

    def nanoseconds(self, call: Call) -> int:
        """Return the time of one call: 0 for a view, otherwise at least 1."""
        if call.free:
            return 0
        device = self._last = self._device or this_machine(device_kind(call))
        rate = device.product_rate(precision(_dtype(call)), tf32=self.tf32) if is_product(call) else device.vector
        bandwidth = device.bandwidth * (LINK if call.communicates else 1)
        seconds = max(flops_or_elements(call) / rate, bytes_moved(call) / bandwidth)
        if device.random is not None and call.key in RANDOM_NUMBERS:
            seconds = max(seconds, call.outputs[0].numel() / device.random)
        return max(1, round(seconds * 1e9) + device.launch)


def device_kind(call: Call) -> str:
    """Return ``"cuda"`` if any tensor of a call is there, otherwise ``"cpu"``.

    Raise MeasurementError for any other kind of device.
    """
    kinds = {tensor.device.type for tensor in (*call.inputs, *call.outputs)}
    if kinds <= {"cpu"}:
        return "cpu"
    if kinds <= {"cpu", "cuda"}:
        return "cuda"
    raise MeasurementError(
        f"node {call.name!r}: nothing is known of a device {', '.join(sorted(kinds - {'cpu', 'cuda'}))!r}: "
        "give the roofline a device by name"
    )


def precision(dtype: torch.dtype) -> str:
    """Return the kind of numbers of a type; integers and complex numbers count as 32-bit floating point."""
    if dtype in {torch.float64, torch.complex128}:
        return "fp64"
    if dtype.is_floating_point and dtype.itemsize == 1:
        return "fp8"
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")


def _dtype(call: Call) -> torch.dtype:
    """Return the type of a product's factors."""
    floats = [tensor.dtype for tensor in call.inputs if tensor.dtype.is_floating_point]
    return min(floats, key=lambda dtype: dtype.itemsize, default=torch.float32)
