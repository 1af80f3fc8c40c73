"""Tables of the papers next to ours, from ``studies/results`` and the records of the reference library."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from remat import Problem
from remat.experiments.library.instances import LibraryProblem, instance
from remat.experiments.library.ledger import Ledger, Standing
from remat.experiments.library.pages import table
from remat.experiments.library.published import PUBLISHED, Published
from remat.formulations.checkmate import Checkmate
from remat.formulations.retention_intervals import RetentionIntervals
from remat.graphs.layered import layered
from remat.graphs.zoo import swiftnet_cell
from remat.ordering.instance import OrderInstance
from remat.ordering.sampling import sample_peaks
from remat.studies.statistics import shifted_geometric_mean

RESULTS = Path(__file__).resolve().parent.parent / "studies" / "results"
#: Line of a page that a table replaces.
MARKER = re.compile(r"^<!-- table: ([\w-]+) -->$", re.MULTILINE)

Row = dict[str, str]
#: Devices of POET by the computing rate in their settings.
DEVICES = {"83333": "MKR1000", "3184947": "nRF52840", "1G": "Raspberry Pi 4"}
#: Ops of the graphs whose models are counted.
SIZES = (25, 50, 100, 250, 500)
#: Orders of the sample.
ORDERS = 5000
#: Ratios to the optimum in Table 2 of Checkmate: geometric means over budgets.
CHECKMATE = {
    "mobilenet": (1.14, 1.07, 7.07, 1.06), "vgg16": (1.28, 1.06, 1.44, 1.01), "vgg19": (1.54, 1.39, 1.75, 1.00),
    "unet": (1.27, 1.23, None, 1.03), "resnet50": (1.20, 1.25, None, 1.05),
}  # fmt: skip
CHECKMATE_METHODS = ("Chen √n", "Chen greedy", "Griewank log n", "LP rounding")
#: Table 3 of HiRemate: ops forward and backward, minutes of solving, and peak and time in % of training without
#: recomputation.
HIREMATE = {
    "gpt-medium": (734, 7.9, 36.6, 122.3), "gpt-largest": (2894, 15, 47.2, 119.6), "unet-ops": (101, 9, 51.3, 113.5),
    "mlp-mixer": (250, 1.5, 53.3, 107.3), "regnet-32": (347, 5, 41.1, 107.0), "resnet101-ops": (423, 5.5, 42.6, 115.3),
    "transformer": (417, 20, 46.9, 117.6), "transformer-36": (2457, 147, 44.6, 118.4), "fno-1d": (82, 2.5, 53.1, 114.7),
    "fno-3d": (121, 5.3, 47.2, 117.4), "u-fno": (221, 16.3, 56.7, 116.3), "uno": (229, 46, 58.5, 121.9),
}  # fmt: skip


def with_tables(markdown: str) -> str:
    """Replace the markers of a page by their tables."""
    return MARKER.sub(lambda found: "\n".join(TABLES[found[1]]()), markdown)


def results(study: str) -> list[Row]:
    """Return the cells of a study; none if it was not run."""
    path = RESULTS / f"{study}.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def moccasin() -> list[str]:
    """Return Tables 2 and 3 of Moccasin with the numbers of FastSA: published overheads, ours, and bounds."""
    rows = []
    ledgers = {name: Ledger(instance(name)) for name, _ in PUBLISHED}
    for (name, percent), told in PUBLISHED.items():
        numbers = {each.who: each for each in (Published(*one) for one in told)}
        problems = (LibraryProblem(instance(name), kind, percent) for kind in ("fixed", "free"))
        fixed, free = map(ledgers[name].standing, problems)
        printed = (str(numbers[who].overhead) + numbers[who].remark if who in numbers else "–"
                   for who in ("Checkmate", "Moccasin", "FastSA"))  # fmt: skip
        rows.append((f"[{name}](library/{name}.md)", f"{percent}", *printed, *_pair(fixed), *_pair(free)))
    head = (
        "graph",
        "budget %",
        "Checkmate",
        "Moccasin",
        "FastSA",
        "ours, input order",
        "bound",
        "ours, any order",
        "bound",
    )
    return _table(head, rows)


def stand_ins() -> list[str]:
    """Return the study of Moccasin's Table 2 on generated graphs: overhead and seconds by method."""
    return _by_method(results("moccasin-table-2"), _overhead)


def progress() -> list[str]:
    """Return the study of Moccasin's Figure 5: the last overhead, and when it was found."""

    def found(row: Row) -> str:
        if not row["overhead_percent"]:
            return row["status"]
        return f"{float(row['overhead_percent']):.2f}, {float(row['to_best_seconds']):.1f} s"

    return _by_method(results("moccasin-figure-5"), found)


def depths() -> list[str]:
    """Return the study of HiRemate's Figures 4 and 6: overhead and seconds by depth of the hierarchy."""
    return _by_method(results("hiremate-figure-6"), _overhead)


def exponents() -> list[str]:
    """Return the study of HiRemate's Figure 10: overhead and seconds by the exponent of the partitioner's score."""
    return _by_method(results("hiremate-figure-10"), _overhead)


def input_sizes() -> list[str]:
    """Return the study of HiRemate's Figures 11 to 15: overhead and seconds by batch and size of the input."""
    return _by_method(results("hiremate-figures-11-15"), _overhead)


def energies() -> list[str]:
    """Return the study of POET's devices: extra energy in %, by network, device and budget."""

    def named(row: Row) -> Row:
        budget, _, machine = row["problem"].partition(" machine=")
        rate = machine.partition("compute=")[2].partition(",")[0]
        return {**row, "problem": f"{budget}, {DEVICES[rate]}"}

    def shown(row: Row) -> str:
        return f"{float(row['overhead_percent']):.4f}" if row["overhead_percent"] else row["status"]

    return _by_method([named(row) for row in results("poet")], shown)


def scaling() -> list[str]:
    """Return the study of Moccasin's Figure 6."""
    return _by_method(results("moccasin-figure-6"), _overhead)


def model_sizes() -> list[str]:
    """Return the sizes of our models on random layered graphs (Table 1 of Moccasin)."""
    rows = []
    for n in SIZES:
        problem = Problem(layered(n, seed=3), "90%", max_computes=2)
        edges = sum(map(len, problem.graph.arrays.op_predecessors.lists()))
        models = (Checkmate(problem).build(), RetentionIntervals(problem).build())
        sizes = [f"{size:,}" for model in models for size in (model.num_vars, model.num_constraints)]
        per = [f"{model.num_vars / over:.2f}" for model, over in zip(models, (n * n + n * edges, 2 * n), strict=True)]
        rows.append((f"{n}", f"{edges:,}", *sizes, *per))
    head = ("n", "m", *(f"{who}, {what}" for who in ("Checkmate", "Moccasin") for what in ("variables", "constraints")))
    return _table((*head, "Checkmate's variables / (n² + nm)", "Moccasin's / Cn"), rows)


def hierarchy() -> list[str]:
    """Return the study of HiRemate's Table 2: overhead and seconds by method."""
    return _by_method(results("hiremate-table-2"), _overhead)


def trade_offs() -> list[str]:
    """Return overheads by budget and method, with the best known ones (Figure 5 of Checkmate)."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in results("checkmate-table-2"):
        if row["instance"] in ("vgg16", "mobilenet", "unet"):
            shown = f"{float(row['overhead_percent']):.2f}" if row["overhead_percent"] else "–"
            lines.setdefault((row["instance"], row["problem"]), {})[row["method"]] = shown
    rows = []
    for (name, budget), line in lines.items():
        ledger = Ledger(instance(name))
        best = ledger.standing(LibraryProblem(ledger.instance, "fixed", int(budget.rstrip("%"))))
        if best.infeasible:
            continue
        rows.append((name, budget, *(line.get(method, "–") for method in CHECKMATE_METHODS), *_pair(best)))
    return _table(("network", "budget", *CHECKMATE_METHODS, "best known", "bound"), rows)


def input_orders() -> list[str]:
    """Return the peaks of random input orders, by network."""
    peaks: dict[str, list[int]] = {}
    for row in results("moccasin-orders"):
        peaks.setdefault(row["instance"].partition(" order ")[0], []).append(int(row["budget_bytes"]))  # of 100 %
    rows = [
        (name, f"{len(found)}", f"{found[0] / 2**30:.3f}", f"{min(found) / 2**30:.3f}", f"{max(found) / 2**30:.3f}",
         f"{100 * (max(found) - min(found)) / found[0]:.2f}")
        for name, found in peaks.items()
    ]  # fmt: skip
    return _table(("network", "orders", "its own, GiB", "least", "largest", "spread %"), rows)


def checkmate() -> list[str]:
    """Return the ratios of Checkmate's Table 2: published, and ours against the best known cost."""
    found = results("checkmate-table-2")
    rows = []
    for name, printed in CHECKMATE.items():
        ledger = Ledger(instance(name))
        ratios, cells = [], []
        for method in CHECKMATE_METHODS:
            mine = [row for row in found if row["instance"] == name and row["method"] == method and row["cost"]]
            ratios.append(shifted_geometric_mean([_ratio(ledger, row) for row in mine], 0.0))
            cells.append(len(mine))
        rows.append(
            (
                name,
                *("–" if value is None else f"{value:.2f}" for value in printed),
                *(f"{ratio:.3f} ({n})" if ratio else "–" for ratio, n in zip(ratios, cells, strict=True)),
            )
        )
    return _table(("network", *CHECKMATE_METHODS, *(f"ours: {method}" for method in CHECKMATE_METHODS)), rows)


def serenity() -> list[str]:
    """Return the peaks of orders without recomputation, in KB, by method."""

    def shown(row: Row) -> str:
        if not row["peak"]:
            return "–"
        proved = "**" if row["status"] == "optimal" else ""
        return f"{proved}{int(row['peak']) / 1000:.1f}{proved}, {float(row['total_seconds']):.1f} s"

    return _by_method(results("serenity-orders"), shown)


def random_orders() -> list[str]:
    """Return the shares of random orders of SwiftNet's cell A within a budget (Figure 3 of Serenity)."""
    sample = sample_peaks(OrderInstance.of(Problem(swiftnet_cell(cell="a", fold_concats=True))), ORDERS)
    rows = [
        (name, f"{printed} %", f"{100 * sample.share_within(size):.2f} %", f"{exact} %")
        for name, size, printed, exact in (
            ("within 250 KiB", 250 * 1024, 4.1, 4.66),
            ("optimal", 200_704, 0.04, 0.0129),
        )
    ]
    return _table(("peak", "the paper's orders", f"ours, {ORDERS:,} orders", f"all {sample.orders:,} orders"), rows)


def hiremate() -> list[str]:
    """Return Table 3 of HiRemate with our best known schedules at 50 %."""
    rows = []
    for name, (ops, minutes, peak, time) in HIREMATE.items():
        ledger = Ledger(instance(name))
        standing = ledger.standing(LibraryProblem(ledger.instance, "fixed", 50))
        best, bound = standing.best, standing.relative(standing.bound.value)
        assert best is not None and bound is not None
        ours = (f"{100 + (standing.relative(best.cost) or 0):.2f}", f"{100 + bound:.2f}",
                "–" if best.origin.seconds is None else f"{best.origin.seconds:.1f}")  # fmt: skip
        rows.append((f"[{name}](library/{name}.md)", f"{ops}", f"{ledger.instance.ops}", f"{peak}", f"{time}",
                     f"{60 * minutes:,.0f}", *ours))  # fmt: skip
    head = ("network", "ops", "our ops", "its peak %", "its time %", "its seconds",
            "our cost %", "bound %", "our seconds")  # fmt: skip
    return _table(head, rows)


TABLES: dict[str, Callable[[], list[str]]] = {
    "moccasin": moccasin, "stand-ins": stand_ins, "scaling": scaling, "input-orders": input_orders,
    "model-sizes": model_sizes, "checkmate": checkmate, "trade-offs": trade_offs, "serenity": serenity,
    "random-orders": random_orders, "hiremate": hiremate, "hierarchy": hierarchy,
    "progress": progress, "depths": depths, "exponents": exponents, "input-sizes": input_sizes, "energies": energies,
}  # fmt: skip


def _pair(standing: Standing) -> tuple[str, str]:
    """Return best and bound; bold if proved."""
    if standing.infeasible:
        return "infeasible", ""
    best, bound = (standing.relative(value) for value in (standing.value, standing.bound.value))
    mark = "**" if standing.closed else ""
    return "–" if best is None else f"{mark}{best:.3f}{mark}", "" if bound is None else f"{bound:.3f}"


def _overhead(row: Row) -> str:
    if not row["overhead_percent"]:
        return f"{row['status']}, {float(row['total_seconds'] or 0):.0f} s"
    mark = "**" if row["status"] == "optimal" else ""
    return f"{mark}{float(row['overhead_percent']):.2f}{mark}, {float(row['total_seconds']):.0f} s"


def _by_method(found: Sequence[Row], shown: Callable[[Row], str]) -> list[str]:
    """Return a table with one line for each instance and problem, and one column for each method."""
    if not found:
        return ["*Not run.*"]
    methods = list(dict.fromkeys(row["method"] for row in found))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in found:
        lines.setdefault((row["instance"], row["problem"]), {})[row["method"]] = shown(row)
    if not any(problem for _, problem in lines):  # no budgets
        return _table(("graph", *methods), [(name, *line.values()) for (name, _), line in lines.items()])
    rows = [(*key, *(line.get(method, "–") for method in methods)) for key, line in lines.items()]
    return _table(("graph", "budget", *methods), rows)


def _ratio(ledger: Ledger, row: Row) -> float:
    """Return the cost of a cell relative to the best known one."""
    percent = int(row["problem"].rstrip("%"))
    value = ledger.standing(LibraryProblem(ledger.instance, "fixed", percent)).value
    assert value is not None
    return int(row["cost"]) / value


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = table(head, rows)
    return lines if len(lines) > 2 else ["*Not run.*"]
