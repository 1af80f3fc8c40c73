"""Results of a study as rows, data frames and files."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.errors import RematError
from remat.io.files import write_atomic
from remat.io.views import table_csv
from remat.runtime.text import json_text
from remat.studies.store import Result

if TYPE_CHECKING:
    import pandas

#: Suffixes of exports.
SUFFIXES = (".csv", ".json", ".parquet")
#: Columns from the outcome of a cell.
COLUMNS = (
    "status", "stop", "objective", "bound", "gap", "cost", "peak", "budget_bytes", "overhead_percent",
    "recomputations", "scope", "source", "to_best_seconds", "build_seconds", "preliminary_seconds", "solve_seconds",
    "total_seconds", "variables", "constraints", "message",
)  # fmt: skip


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one row per cell, as JSON values; unknown values are None."""
    return [
        {
            "instance": each.cell.instance, "problem": each.cell.problem, "method": each.cell.method,
            "seed": each.cell.seed, "state": each.state, **{key: each.row.get(key) for key in COLUMNS},
            "cell": each.cell.digest, "graph": each.cell.graph, "schedule": each.schedule or None,
            "host": each.environment.get("machine", {}).get("host"),
            "remat": each.environment.get("versions", {}).get("remat"),
        }
        for each in results
    ]  # fmt: skip


def to_frame(results: Sequence[Result]) -> pandas.DataFrame:
    """Return one row per cell as a data frame of pandas."""
    import pandas

    return pandas.DataFrame(rows(results))


def export(results: Sequence[Result], path: str | os.PathLike[str]) -> None:
    """Write results to a file: a table (.csv, .parquet), or everything with incumbents and machines (.json).

    Raises
    ------
    RematError
        If the file cannot be written, or pandas cannot write Parquet.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        found = [
            {**row, "incumbents": each.points, "environment": each.environment, "run": each.cell.run}
            for row, each in zip(rows(results), results, strict=True)
        ]
        write_atomic(path, json_text(found))
    elif suffix == ".parquet":
        buffer = io.BytesIO()
        try:
            to_frame(results).to_parquet(buffer)
        except ImportError:
            raise RematError(
                f"{path}: Parquet needs the package pyarrow: pip install pyarrow", "unavailable", str(path)
            ) from None
        write_atomic(path, buffer.getvalue())
    else:
        write_atomic(path, table_csv(rows(results)))
