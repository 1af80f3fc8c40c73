"""From records to a solver's matrix: time and memory of `to_matrix` and of handing the matrix to HiGHS.

    python benchmarks/bench_matrix.py [rows] [non-zeros per row] [--shuffle]

The model has as many variables as rows, and four records with random columns, row by row as formulations make them or
(`--shuffle`) in random order; memory is the growth of the process's peak over what the records themselves hold.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from remat.modeling import Linear, Model
from remat.modeling.matrix import to_matrix

RECORDS = 4


def peak_megabytes() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="?", type=int, default=1_000_000)
    parser.add_argument("per_row", nargs="?", type=int, default=10)
    parser.add_argument("--shuffle", action="store_true")
    arguments = parser.parse_args()
    model = random_model(arguments.rows, arguments.per_row, arguments.shuffle)
    before, wall, cpu = peak_megabytes(), time.perf_counter(), time.process_time()
    matrix = to_matrix(model)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{'rows':>10} {'non-zeros':>11} {'wall s':>7} {'cpu s':>7} {'peak MB':>8} {'growth MB':>10}")
    peak = peak_megabytes()
    print(
        f"{matrix.shape[0]:>10,} {len(matrix.values):>11,} {wall:>7.2f} {cpu:>7.2f} {peak:>8.0f} {peak - before:>10.0f}"
    )

    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    wall = time.perf_counter()
    solver.passModel(
        matrix.shape[1], matrix.shape[0], len(matrix.values), int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize), 0.0, matrix.cost, matrix.lower, matrix.upper, matrix.row_lower,
        matrix.row_upper, matrix.indptr, matrix.indices, matrix.values, matrix.integral,
    )  # fmt: skip
    print(f"passModel {time.perf_counter() - wall:.2f} s")


if __name__ == "__main__":
    main()
