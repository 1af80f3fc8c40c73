"""Rates of devices from their data sheets."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from remat.errors import MeasurementError

#: Kinds of numbers with a rate of their own.
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
#: Time to start a kernel from eager PyTorch, in ns. No data sheet has it; empty kernels take 3 to 8 µs on these GPUs.
GPU_LAUNCH = 5_000
#: The same on a CPU: a dispatch and an allocation.
CPU_LAUNCH = 1_000
#: Random numbers per second of a dropout on a CPU with any number of threads; measured on an AMD EPYC.
CPU_RANDOM = 1e8


@dataclass(frozen=True)
class Device:
    """A device in the roofline model."""

    name: str
    products: Mapping[str, float]
    """Peak operations per second of dense matrix products, by kind of numbers (:data:`PRECISIONS`)."""
    vector: float
    """Peak operations per second of other ops, in 32-bit floating point."""
    bandwidth: float
    """Bytes per second between memory and the device."""
    launch: int = GPU_LAUNCH
    """Least time of any op, in nanoseconds."""
    random: float | None = None
    """Random numbers per second of a sequential generator (PyTorch's on a CPU); None: limited by operations alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "products", MappingProxyType(dict(self.products)))
        unknown = set(self.products) - set(PRECISIONS)
        rates = (self.vector, self.bandwidth, *self.products.values(), *([] if self.random is None else [self.random]))
        if unknown or not all(rate > 0 for rate in rates) or self.launch < 0:
            raise MeasurementError(f"device {self.name!r}: rates must be positive, of {', '.join(PRECISIONS)}", "rates")

    def product_rate(self, kind: str, *, tf32: bool = False) -> float:
        """Return operations per second of matrix products of a kind of numbers; the 32-bit rate if it has none.

        `tf32`: 32-bit products may be rounded to TF32.
        """
        if kind == "fp32" and tf32:
            kind = "tf32"
        if kind == "fp8" and kind not in self.products:
            kind = "fp16"
        return self.products.get(kind, self.products.get("fp32", self.vector))


def _device(name: str, bandwidth: float, vector: float, launch: int = GPU_LAUNCH, **products: float) -> Device:
    """Make a device from rates in TFLOP/s and bandwidth in GB/s."""
    rates = {kind: rate * 1e12 for kind, rate in products.items()}
    random = CPU_RANDOM if launch == CPU_LAUNCH else None
    return Device(name, rates, vector * 1e12, bandwidth * 1e9, launch, random)


#: Dense rates (half of those "with sparsity" in data sheets); 16-bit products with sums of 32 bits.
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        # NVIDIA Tesla V100 data sheet, SXM2
        _device("V100", 900, 15.7, fp64=7.8, fp32=15.7, fp16=125),
        # NVIDIA T4 data sheet; fp64 is 1/32 of fp32 (Turing)
        _device("T4", 320, 8.1, fp64=0.253, fp32=8.1, fp16=65),
        # NVIDIA A100 data sheet, SXM, 40 and 80 GB
        _device("A100-40GB", 1555, 19.5, fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312),
        _device("A100", 2039, 19.5, fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312),
        # NVIDIA H100 and H200 data sheets, SXM
        _device("H100", 3350, 67, fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979),
        _device("H200", 4800, 67, fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979),
        # NVIDIA Ampere GA102 and Ada GPU architectures, appendices A
        _device("RTX3090", 936, 35.6, fp64=0.56, fp32=35.6, tf32=35.6, fp16=71.2, bf16=71.2),
        _device("RTX4090", 1008, 82.6, fp64=1.29, fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3),
        # cores x base clock x operations per cycle: two 256-bit (or one 512-bit) units, each a product and a sum
        # Intel Core i7-1185G7: 4 x 3.0 GHz x 32, LPDDR4x-4266
        _device("laptop-cpu", 68.3, 0.384, CPU_LAUNCH, fp64=0.192, fp32=0.384),
        # Intel Xeon Platinum 8358: 32 x 2.6 GHz x 64 (two 512-bit units), eight channels of DDR4-3200
        _device("server-cpu", 204.8, 5.32, CPU_LAUNCH, fp64=2.66, fp32=5.32),
    )
}
#: Name of the machine that this runs on, measured once.
THIS_MACHINE = "this-machine"


def find_device(name: str) -> Device:
    """Return a device of the table; case, spaces and dashes do not matter.

    Raise MeasurementError if the name is unknown; with all names.

    Examples
    --------
    >>> find_device("a100 40gb").bandwidth / 1e9
    1555.0
    """
    plain = {_plain(known): known for known in DEVICES}
    if _plain(name) in plain:
        return DEVICES[plain[_plain(name)]]
    near = difflib.get_close_matches(_plain(name), [*plain, _plain(THIS_MACHINE)], n=1)
    hint = f" (did you mean {plain.get(near[0], THIS_MACHINE)!r}?)" if near else ""
    raise MeasurementError(f"unknown device {name!r}{hint}; known: {', '.join([*DEVICES, THIS_MACHINE])}", "device")


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")
