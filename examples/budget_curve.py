"""Least overhead found for a graph at several budgets.

Budgets rise, so that each schedule starts the solve at the next budget.

Run: python examples/budget_curve.py [zoo graph] [seconds per budget]
"""

from __future__ import annotations

import sys

from remat import Problem, solve
from remat.graphs import ComputeGraph
from remat.graphs.zoo import ZOO


def budget_curve(graph: ComputeGraph, seconds: float) -> list[tuple[int, str, float | None]]:
    """(budget in % of the reference peak, status, overhead in %) from the smallest budget to the largest."""
    points: list[tuple[int, str, float | None]] = []
    start = None
    for percent in range(60, 101, 10):
        result = solve(Problem(graph, f"{percent}%"), stop=seconds, warm_start=start)
        overhead = None if result.certificate is None else result.certificate.overhead
        points.append((percent, str(result.status), overhead))
        start = result.schedule
    return points


def main() -> None:
    """Print the curve."""
    name, seconds = (sys.argv[1:] + ["unet", "10"][len(sys.argv) - 1 :])[:2]
    print("budget  status      overhead")
    for percent, status, overhead in budget_curve(ZOO[name](), float(seconds)):
        print(f"{percent:>5} %  {status:<10}  " + ("-" if overhead is None else f"{overhead:.4g} %"))


if __name__ == "__main__":
    main()
