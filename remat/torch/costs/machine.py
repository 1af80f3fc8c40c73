"""Rates of this machine, measured with matrix products, copies and small ops; stale rates are measured again."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial

import torch

from remat.errors import MeasurementError
from remat.graphs.devices import THIS_MACHINE, Device
from remat.runtime.resources import available_cpus
from remat.torch.costs.base import CostRemark
from remat.torch.costs.measuring import Store, alone, machine_name, times

#: Elements of the copied tensor: 32 MiB each way, more than most caches.
COPIED = 1 << 23
#: Seconds per measurement, and rounds of all of them, so that no measurement depends on a single busy moment.
EACH, ROUNDS = 0.05, 4
#: Largest number of rounds, and tolerated ratio of the best two; rounds continue until they agree.
MOST_ROUNDS, AGREE = 12, 1.5
#: Lifetime of a table in seconds: drivers, clock rates and neighbours of a virtual machine change. An implausible
#: table has a short one, during which other processes use it, since each measurement takes up to ten seconds.
AGE, SHORT = 30 * 24 * 3600, 600
#: Version of the measuring method; tables of other versions are stale.
METHOD = 3
#: Plausible rates and times: operations and bytes per second, and ns of a small op.
LIMITS = {"fp32": (1e8, 1e16), "bandwidth": (1e8, 1e14), "launch": (1, 1e7)}
#: Side lengths of the square factors.
SIDES = {"cpu": 768, "cuda": 8192}
TYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


#: Names of the figures in turn; "lone" ones are those of one thread.
FIGURES = (*TYPES, "bandwidth", "lone fp32", "lone bandwidth", "launch", "random")
#: Quantity and unit of a lone figure.
LONE = {"fp32": ("products", 1e9, "GFLOP/s"), "bandwidth": ("copies", 1e9, "GB/s")}


def this_machine(kind: str = "cpu") -> Device:
    """Return the CPU, or the current GPU, of this machine; measured in two seconds the first time and cached.

    It is measured again after :data:`AGE`, or if PyTorch, the processor, the number of threads or CPUs, or the
    measuring method has changed.

    Raise MeasurementError if there is no GPU.

    Warns
    -----
    CostRemark
        If the figures are implausible, as on a busy machine: they are kept for :data:`SHORT` seconds.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        raise MeasurementError(
            f"{THIS_MACHINE!r} has no GPU, and tensors of the graph are on one: name a device, as 'roofline:A100'",
            "no-gpu",
        )
    return _measured(kind, machine_name(kind))


@cache
def _measured(kind: str, machine: str) -> Device:  # `machine` changes with the number of threads
    store = Store(kind)
    facts = {"method": METHOD, "cpus": available_cpus()}
    table = {name: store.get(f"machine {name}", 0) for name in (*FIGURES, *facts, "time")}
    is_stale = not 0 <= time.time() - table["time"] <= AGE or any(table[name] != fact for name, fact in facts.items())
    if is_stale or doubt(table):
        rounds, agree = _rounds(kind)
        # The greatest rate, and the least time of a small op: other load on the machine can only slow it down.
        best = {name: min(each) if name == "launch" else max(each) for name, each in rounds.items()}
        table = {**{name: max(1, round(figure)) for name, figure in best.items()}, **facts, "time": int(time.time())}
        why = doubt(table) or ("" if agree else f"rounds differ by more than {AGREE:g} times")
        table |= {name: max(table[name], table[f"lone {name}"]) for name in LONE}
        if why:
            table["time"] += SHORT - AGE
            warnings.warn(
                f"the roofline of {machine} is not plausible: {why}. The machine is busy, or has fewer CPUs than "
                f"threads; it is measured again after {SHORT // 60} minutes. Capture on a quiet machine, call "
                "torch.set_num_threads, or name a device, as costs='roofline:laptop-cpu'",
                CostRemark,
                stacklevel=2,
            )
        store.update({f"machine {name}": value for name, value in table.items()})
        store.save()
    products = {name: float(table[name]) for name in TYPES}
    # the units for 32-bit products are those for vectors, on a CPU and on a GPU without TF32
    return Device(THIS_MACHINE, products, products["fp32"], table["bandwidth"], table["launch"], table["random"])


def doubt(table: Mapping[str, float]) -> str:
    """Return why a table is implausible; empty if it is plausible.

    Examples
    --------
    >>> table = {"fp32": 5e10, "lone fp32": 4e10, "bandwidth": 3.4e9, "lone bandwidth": 26.8e9, "launch": 1000}
    >>> doubt(table)
    'copies run at 3.4 GB/s with all threads and at 26.8 GB/s with one'
    >>> doubt({**table, "bandwidth": 40e9})
    ''
    """
    for name, (least, most) in LIMITS.items():
        if not least <= table[name] <= most:
            return f"{name} is {table[name]:,.0f}"
    for name, (what, unit, word) in LONE.items():
        if 2 * table[name] < table[f"lone {name}"]:
            every, one = (f"{table[each] / unit:,.1f} {word}" for each in (name, f"lone {name}"))
            return f"{what} run at {every} with all threads and at {one} with one"
    return ""


def _rounds(kind: str) -> tuple[dict[str, list[float]], bool]:
    """Measure until the best two rounds agree; return the figures of all rounds, and whether they agree."""
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    with alone(kind):
        for number in range(1, MOST_ROUNDS + 1):
            for name, figure in zip(FIGURES, _measure(kind), strict=True):
                found[name].append(figure)
            if number >= ROUNDS and all(_agree(name, found[name]) for name in LIMITS):
                return found, True
    return found, False


def _agree(name: str, figures: list[float]) -> bool:
    """Return True if the best two figures differ by at most :data:`AGREE`."""
    best = sorted(figures)[:2] if name == "launch" else sorted(figures)[-2:]
    return max(best) <= AGREE * min(best)


def _measure(kind: str) -> list[float]:
    """Return the figures in turn: operations, bytes and random numbers per second, and nanoseconds of a small op."""
    found = [_product_rate(kind, dtype) for dtype in TYPES.values()]
    x = torch.full((COPIED,), 0.5, device=kind)
    copy = partial(torch.empty_like(x).copy_, x)
    found.append(2 * x.nbytes / _best(copy, kind))
    threads = torch.get_num_threads()
    if kind == "cpu" and threads > 1:
        torch.set_num_threads(1)
        try:
            found += [_product_rate(kind, torch.float32), 2 * x.nbytes / _best(copy, kind)]
        finally:
            torch.set_num_threads(threads)
    else:
        found += [found[list(TYPES).index("fp32")], found[-1]]
    tiny = torch.zeros(1, device=kind)
    launch = 1e9 * _best(partial(torch.add, tiny, tiny), kind)
    few = x[: 1 << 16 if kind == "cpu" else COPIED]
    random = few.numel() / _best(partial(torch.native_dropout, few, 0.5, True), kind)
    return [*found, launch, random]


def _product_rate(kind: str, dtype: torch.dtype) -> float:
    """Return the operations per second of a matrix product."""
    side = SIDES[kind] // (1 if kind == "cuda" or dtype.itemsize > 2 else 4)  # some CPUs have no 16-bit units
    a = torch.full((side, side), 0.5, dtype=dtype, device=kind)
    return 2 * side**3 / _best(partial(torch.mm, a, a, out=torch.empty_like(a)), kind)


def _best(call: Callable[[], object], kind: str) -> float:
    """Return the least seconds of a call: other load on the machine can only slow it down."""
    return min(times(call, kind, EACH)) / 1e9
