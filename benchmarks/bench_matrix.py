"""From records to a solver's matrix: time and memory of `to_matrix` and of handing the matrix to HiGHS.

    python benchmarks/bench_matrix.py [--rows N] [--per-row N] [--shuffle]

The model has as many variables as rows, and four records with random columns, row by row as formulations make them or
(`--shuffle`) in random order; memory is the growth of the process's peak over what the records themselves hold.
"""

from __future__ import annotations

import common
import highspy
import numpy as np

from remat.backends.highs.backend import pass_model
from remat.modeling import Linear, Model
from remat.modeling.matrix import to_matrix

RECORDS = 4


def random_model(rows: int, per_row: int, shuffle: bool) -> Model:
    """A model with random columns in every row."""
    rng = np.random.default_rng(0)
    model = Model("random")
    x = model.booleans("x", rows)
    each = rows // RECORDS
    for number in range(RECORDS):
        row = np.repeat(np.arange(each), per_row)
        if shuffle:
            rng.shuffle(row)
        column = rng.integers(0, rows, len(row))
        model.add(Linear.rows(f"record {number}", row, column, 1, upper=np.full(each, per_row)))
    model.minimize(x.index, 1)
    return model


def main() -> None:
    given = common.parse(str(__doc__), rows=1_000_000, per_row=10, shuffle=False)
    model = random_model(given.rows, given.per_row, given.shuffle)
    before = common.peak_megabytes()
    matrix, wall, used = common.timed(lambda: to_matrix(model))
    peak = common.peak_megabytes()
    table = common.Table("rows:10", "non-zeros:11", "wall s:7", "cpu s:7", "peak MB:8", "growth MB:10")
    table.row(f"{matrix.shape[0]:,}", f"{len(matrix.values):,}", f"{wall:.2f}", f"{used:.2f}", f"{peak:.0f}",
              f"{peak - before:.0f}")  # fmt: skip
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    _, wall, _ = common.timed(lambda: pass_model(highspy, solver, matrix, matrix.integral, "random"))
    print(f"passModel {wall:.2f} s")


if __name__ == "__main__":
    main()
