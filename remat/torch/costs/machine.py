"""What this machine can do, measured once by a matrix product, a copy and an empty op."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch

from remat.errors import MeasurementError
from remat.torch.costs.alone import alone
from remat.torch.costs.devices import THIS_MACHINE, Device
from remat.torch.costs.store import Store, machine_name
from remat.torch.costs.timing import times

#: Elements of the copied tensor: 32 MiB each way, more than most caches.
COPIED = 1 << 23
#: Seconds for each measurement, and rounds of all of them, so that none meets a single busy moment.
EACH, ROUNDS = 0.05, 4
#: Sides of the square factors.
SIDES = {"cpu": 768, "cuda": 8192}
TYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def this_machine(kind: str = "cpu") -> Device:
    """The CPU, or the current GPU, of this machine; measured in two seconds the first time and kept in the cache.

    Raises
    ------
    MeasurementError
        If there is no GPU.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        raise MeasurementError(
            f"{THIS_MACHINE!r} has no GPU, and tensors of the graph are on one: name a device, as 'roofline:A100'",
            "no-gpu",
        )
    return _measured(kind, machine_name(kind))


@cache
def _measured(kind: str, machine: str) -> Device:  # the machine changes with the number of threads
    store = Store(kind)
    names = [f"machine {name}" for name in (*TYPES, "bandwidth", "launch", "random")]
    if not all(name in store for name in names):
        with alone(kind):
            rounds = list(zip(*(_measure(kind) for _ in range(ROUNDS)), strict=True))
        # what else runs on the machine makes it only slower: greatest rates, and least time of a small op
        measured = [
            min(each) if name == "machine launch" else max(each) for name, each in zip(names, rounds, strict=True)
        ]
        for name, value in zip(names, measured, strict=True):
            store[name] = max(1, round(value))
        store.save()
    *rates, bandwidth, launch, random = (store[name] for name in names)
    products = dict(zip(TYPES, rates, strict=True))
    # the units for 32-bit products are those for vectors, on a CPU and on a GPU without TF32
    return Device(THIS_MACHINE, products, products["fp32"], bandwidth, launch, random)


def _measure(kind: str) -> list[float]:
    """Products' operations per second by type, bytes per second, ns of a small op, random numbers per second."""
    found = []
    for dtype in TYPES.values():
        side = SIDES[kind] // (1 if kind == "cuda" or dtype.itemsize > 2 else 4)  # some CPUs have no 16-bit units
        a = torch.full((side, side), 0.5, dtype=dtype, device=kind)
        out = torch.empty_like(a)
        found.append(2 * side**3 / _best(partial(torch.mm, a, a, out=out), kind))
    x = torch.full((COPIED,), 0.5, device=kind)
    y = torch.empty_like(x)
    bandwidth = 2 * x.nbytes / _best(partial(y.copy_, x), kind)
    tiny = torch.zeros(1, device=kind)
    launch = 1e9 * _best(partial(torch.add, tiny, tiny), kind)
    few = x[: 1 << 16 if kind == "cpu" else COPIED]
    random = few.numel() / _best(partial(torch.native_dropout, few, 0.5, True), kind)
    return [*found, bandwidth, launch, random]


def _best(call: Callable[[], object], kind: str) -> float:
    """Least seconds of a call: what else runs on the machine makes it only slower."""
    return min(times(call, kind, EACH)) / 1e9
