"""Values of a cell that tables and figures of a study show."""

from __future__ import annotations

from remat.studies.store import Result

#: Values over time: pairs of seconds and value.
Curve = list[tuple[float, float | None]]


def problem_of(result: Result) -> tuple[str, str, int]:
    """Return the key of a comparison of methods: instance, problem and seed."""
    return result.cell.instance, result.cell.problem, result.cell.seed


def objective(result: Result) -> float | None:
    """Return the objective of a cell's schedule."""
    value: float | None = result.row.get("objective")
    return value


def overhead(result: Result) -> float | None:
    """Return the overhead of a cell's schedule in %."""
    value: float | None = result.row.get("overhead_percent")
    return value


def gap(result: Result) -> float | None:
    """Return the gap of a cell in %."""
    value = result.row.get("gap")
    return None if value is None else 100.0 * float(value)


def proof_seconds(result: Result) -> float | None:
    """Return the seconds to a proof, of an optimum or that no schedule exists; None without a proof."""
    value: float | None = result.row.get("total_seconds")
    return value if result.row.get("status") in ("optimal", "infeasible") else None


def overhead_curve(result: Result) -> Curve:
    """Return the overhead over time, from that of the last schedule and the objectives before it."""
    last, final = objective(result), overhead(result)
    if not last or final is None or result.row.get("cost") != last:
        return []
    base = last / (1 + final / 100)
    return [(time, None if value is None else 100 * (value / base - 1)) for time, value, _ in result.points]


def gap_curve(result: Result) -> Curve:
    """Return the gap over time."""
    return [
        (time, None if not value else 100 * max(0.0, (value - bound) / value)) for time, value, bound in result.points
    ]
