"""Serenity's Table 2: its techniques one by one on the SwiftNet network and on its rewritten form, and other searches.

    python benchmarks/bench_serenity.py [--seconds S] [--step-seconds T] [--memory-limit BYTES]
                                        [--methods A,B] [--graphs G,H]

One line for each graph and each combination of dynamic programme, divide and conquer and adaptive soft budgeting: time,
peak, bound and states; ``N/A`` where there is no proof within the limit of time and memory. Below them the best-first
search over orders, and the searches for an order that are registered (``--methods``). Graphs are files, names of the
zoo, or ``swiftnet`` and ``swiftnet-rewritten``: the three cells of SwiftNet HPD with concatenations folded (62 nodes),
and with convolutions of three parts or more as sums of partial ones (91 nodes). Compiled code is ready before the clock
starts. The paper's times are of another machine.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from remat import ComputeGraph, Problem
from remat.deadline import Deadline
from remat.graphs.io import load_graph
from remat.graphs.rewriting import RewriteOptions, rewrite_graph
from remat.graphs.zoo import swiftnet_cells
from remat.ordering.base import Ordering, OrderSearch
from remat.ordering.best_first import Aim, explore
from remat.ordering.instance import OrderInstance
from remat.ordering.serenity import Serenity, SerenityOptions
from remat.registry import Registered

#: Seconds in the paper, by graph, divide and conquer, soft budgets.
PAPER = {
    ("swiftnet", True, False): "56.53 s", ("swiftnet", True, True): "37.9 s", ("swiftnet", False, False): "N/A",
    ("swiftnet-rewritten", True, False): "7.29 h", ("swiftnet-rewritten", True, True): "111.9 s",
    ("swiftnet-rewritten", False, False): "N/A",
}  # fmt: skip


def named_graph(name: str) -> ComputeGraph:
    if name == "swiftnet":
        return swiftnet_cells(fold_concats=True)
    if name == "swiftnet-rewritten":
        return rewrite_graph(swiftnet_cells(), RewriteOptions(min_parts=3)).graph
    return load_graph(name)


def best_first(instance: OrderInstance, problem: Problem, deadline: Deadline) -> Ordering:
    """The search that :func:`remat.minimize` has had for orders, with a limit of its own."""
    highest = instance.peak_of(instance.reference)
    found = explore(problem, Aim.PEAK, limit=highest + 1, deadline=deadline)
    if found is None:
        return Ordering(None, None)
    return Ordering(None, found.bound if found.schedule is not None else None, found.bound, found.states)


def of_search(search: OrderSearch, instance: OrderInstance) -> Callable[[Deadline], Ordering]:
    search.prepared()
    return lambda deadline: search.search(instance, deadline=deadline)


def line(label: str, run: Callable[[Deadline], Ordering], seconds: float, paper: str = "") -> None:
    began = time.monotonic()
    found = run(Deadline.after(seconds))
    spent = time.monotonic() - began
    told = f"{spent:.3f} s" if found.proved else "N/A"
    peak = "-" if found.peak is None else f"{found.peak:,}"
    states = "-" if found.states is None else f"{found.states:,}"
    print(f"  {label:<34} {told:>10}  {paper:>8}  {peak:>11}  {found.bound:>11,}  {states:>12}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--memory-limit", type=int, default=2 * 2**30)
    parser.add_argument("--methods", help="default: all searches for an order that are registered")
    parser.add_argument("--graphs", default="swiftnet,swiftnet-rewritten")
    given = parser.parse_args()
    options = SerenityOptions(step_seconds=given.step_seconds, memory_limit=given.memory_limit)
    searches = {name: kind for name, kind in Registered("methods").usable().items() if issubclass(kind, OrderSearch)}
    chosen = [name for name in searches if name != "serenity"] if given.methods is None else given.methods.split(",")
    for name in given.graphs.split(","):
        graph = named_graph(name)
        problem = Problem(graph, order="free", max_computes=1, objective="least-peak")
        instance = OrderInstance.of(problem)
        print(f"{name}: {len(graph.ops)} ops, reference order {instance.peak_of(instance.reference):,} bytes")
        print(f"  {'':<34} {'time':>10}  {'paper':>8}  {'peak':>11}  {'bound':>11}  {'states':>12}")
        for divide, budgets in itertools.product((False, True), repeat=2):
            label = "DP" + " + divide" * divide + " + soft budgets" * budgets
            serenity = Serenity(replace(options, divide=divide, soft_budgets=budgets))
            line(label, of_search(serenity, instance), given.seconds, PAPER.get((name, divide, budgets), ""))
        line("best-first over everything live", partial(best_first, instance, problem), given.seconds)
        for method in filter(None, chosen):
            line(method, of_search(searches[method](), instance), given.seconds)


if __name__ == "__main__":
    main()
