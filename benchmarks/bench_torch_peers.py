"""Peak against extra time: torch's partitioner at its budgets, and a method at the peaks that torch reaches.

Both use the same captured step, costs and validator. For each budget of torch's partitioner
(``activation_memory_budget``) the method solves with torch's peak as its budget. A last run minimizes the peak.

    python benchmarks/bench_torch_peers.py --models gpt2,resnet50 --size small --seconds 20
    python benchmarks/bench_torch_peers.py --size full --seconds 60 --output results.json --plots pictures
    python benchmarks/bench_torch_peers.py --size full --costs torch  # the table by which torch chooses
    python benchmarks/bench_torch_peers.py --models resnet50 --size full --budgets 1000MB,1539MB --plots pictures

Further options: ``--method``, ``--order``, ``--threads``, ``--seed``; ``--seconds`` for each budget; ``--knobs`` of
torch; ``--picture svg|png``.

A ratio compares extra times; "at least" is a lower bound on it over all schedules, in any order.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import torch
from torch_models import OWN, build

from remat import Problem, SolveOptions, solve
from remat.experiments.trade_off import Point, TradeOff
from remat.io.figures import write_figure
from remat.torch.capture import capture, fake_tensors
from remat.torch.costs import CostModel
from remat.torch.peers import at_equal_peak, compare_peers
from remat.torch.peers.compare import AT_PEAKS, KNOBS

TORCH = "torch's partitioner (dp)"


class TorchEstimate(CostModel):
    """Costs of torch's partitioner: operations of products and convolutions, 1 for all other ops."""

    name = "torch"
    unit = "flop"

    def costs(self, nodes: Sequence[torch.fx.Node]) -> list[int]:
        from torch._functorch.partitioners import estimate_runtime
        from torch._guards import detect_fake_mode

        values = [node.meta.get("val") for node in nodes]
        with detect_fake_mode(values) or contextlib.nullcontext():
            return [int(estimate_runtime(node)) for node in nodes]


def table(name: str, found: TradeOff) -> dict[str, Any]:
    """Print a model's table; return its rows and sums."""
    graph = found.graph
    print(f"\n{name}: {len(graph.ops)} ops, reference peak {graph.reference_peak / 1e6:.1f} MB, in {graph.cost_unit}")
    columns = common.Table("budget:6", "torch MB:10", "share %:8", "torch extra %:13", "ours at that peak %:19",
                           "ratio:7", "at least:9", "by:-1")  # fmt: skip
    pairs = at_equal_peak(found, TORCH)
    rows, peaks = [], []
    for pair in pairs:
        peer, ours = pair.peer, pair.ours
        assert peer.peak is not None
        peaks.append(peer.peak)
        numbers = (ours and ours.overhead, pair.ratio, pair.least_ratio)
        columns.row(peer.knob, f"{peer.peak / 1e6:.1f}", f"{100 * peer.peak / graph.reference_peak:.1f}",
                    f"{peer.overhead:.2f}", *("-" if number is None else f"{number:.2f}" for number in numbers),
                    ours.schedule.source if ours and ours.schedule else "")  # fmt: skip
        rows.append({**peer.row(), "ours": None if ours is None else ours.row(), "ratio": pair.ratio,
                     "least_ratio": pair.least_ratio})  # fmt: skip
    lowest = min(peaks)
    mine = min(point.peak for point in found.points if point.who != TORCH and point.peak is not None)
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    print(
        f"worst ratio {max(ratios):.2f}; least peak: torch {lowest / 1e6:.1f} MB, ours {mine / 1e6:.1f} MB "
        f"({100 * mine / lowest:.0f} % of torch's)"
    )
    return {"model": name, "rows": rows, "worst_ratio": max(ratios), "least_torch": lowest, "least_ours": mine}


def main() -> None:
    """Compare, print and write."""
    chosen = common.parse(
        str(__doc__), models=",".join(OWN), size="small", costs="roofline", method="auto", order="free",
        seconds=20.0, threads=1, seed=0, knobs=",".join(map(str, KNOBS)), budgets="", output="",
        plots="", picture="svg",
    )  # fmt: skip
    budgets, knobs = (
        chosen.budgets.split(",") if chosen.budgets else AT_PEAKS,
        [float(k) for k in chosen.knobs.split(",")],
    )
    options, results = SolveOptions(threads=chosen.threads, seed=chosen.seed), []
    for name in chosen.models.split(","):
        began = time.perf_counter()
        with fake_tensors():
            module, args = build(name, chosen.size)
        costs = TorchEstimate() if chosen.costs == "torch" else chosen.costs
        step = capture(module, args, route="joint", costs=costs, name=f"{name} ({chosen.size})")
        captured = time.perf_counter() - began
        found = compare_peers(
            step, budgets, methods=[chosen.method], knobs=knobs, order=chosen.order, stop=chosen.seconds,
            options=options,
        )  # fmt: skip
        if not chosen.budgets:
            lowest = solve(
                Problem(step.graph, order=chosen.order, objective="least-peak"), stop=chosen.seconds, options=options
            )
            if lowest.schedule is not None:
                found = TradeOff(
                    step.graph, (*found.points, Point.of(step.graph, lowest.schedule, "auto", "least peak"))
                )
        results.append({**table(name, found), "capture_seconds": captured, "seconds": time.perf_counter() - began})
        print(f"captured in {captured:.1f} s, all in {results[-1]['seconds']:.0f} s", flush=True)
        if chosen.plots:
            Path(chosen.plots).mkdir(parents=True, exist_ok=True)
            write_figure(Path(chosen.plots) / f"torch-{name}.{chosen.picture}", found.plot)
        if chosen.output:
            given = {key: str(value) for key, value in vars(chosen).items()}
            Path(chosen.output).write_text(json.dumps({"options": given, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
