"""Deployed models in their runtimes: memory predicted and measured, for networks of seeds that no test uses.

``bench_deploy.py tflm`` and ``bench_deploy.py litert`` deploy the networks of ``tests/deploy_networks.py``, run each
before and after, and compare outputs bit by bit. Each runtime needs its package: tflite-micro, ai-edge-litert.
``bench_onnxruntime.py`` does the same for ONNX Runtime.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from remat.deploy.tflite_file import TfliteFile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

#: Package of each runtime; without arguments those that are installed are measured.
PACKAGES = {"tflm": "tflite_micro", "litert": "ai_edge_litert"}
#: Seconds for order and addresses of a model; most searches end within two.
SECONDS = 30.0


class Row(NamedTuple):
    """Bytes of a network: as converted, with the new order alone, with addresses, and the bound."""

    family: str
    seed: int
    before: int
    ordered: int
    after: int
    bound: int


def tflite_models(runtime: str) -> int:
    """Print a table of networks and one of families; return the number of wrong predictions and of worse models."""
    from deploy_networks import FAMILIES

    from remat.deploy import Runtime, Search, deploy, write_model
    from remat.deploy.runs import run_models
    from remat.deploy.tflite_file import TfliteFile

    rows: list[Row] = []
    print("| network | as converted | order alone | order and addresses | bound |\n" + "|---" * 5 + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        paths: list[Path] = []
        for family, (made, seeds) in FAMILIES.items():
            for seed in seeds:
                paths += [Path(folder) / f"{len(rows)}.{word}.tflite" for word in ("old", "new")]
                paths[-2].write_bytes(made(seed))
                found = deploy(TfliteFile(paths[-2].read_bytes()), runtime, Search(time_limit=SECONDS))
                write_model(found.file, paths[-1], paths[-2])
                assert isinstance(found.file, TfliteFile)
                ordered = found.after if found.runtime is Runtime.LITERT else without_addresses(found.file)
                rows.append(Row(family, seed, found.before, ordered, found.after, found.bound))
                print(f"| {family}, {seed} | " + " | ".join(f"{each:,}" for each in rows[-1][2:]) + " |", flush=True)
        reports = [report.get("bytes") for report in run_models(Runtime(runtime), paths, Path(folder))]
        same = sum(are_equal(Path(folder), k) for k in range(len(rows)))
    measured = list(zip(reports[::2], reports[1::2], strict=True))
    exact = sum(pair == (row.before, row.after) for pair, row in zip(measured, rows, strict=True))
    worse = sum(row.after > row.before for row in rows)
    print_families(rows)
    print(f"{len(rows)} networks: outputs of {same} equal bit by bit, memory of {exact} as predicted, {worse} worse")
    return 2 * len(rows) - same - exact + worse


def without_addresses(file: TfliteFile) -> int:
    """Return the head of a model's arena in TensorFlow Lite Micro if the runtime places all tensors."""
    from remat.deploy.arena import runtime_head
    from remat.deploy.scratch import kernel_scratch
    from remat.deploy.tflite_file import ONLINE

    return runtime_head(file.with_plan([ONLINE] * file.bases[-1]), kernel_scratch(file)[0])


def are_equal(folder: Path, number: int) -> bool:
    """Return True if the outputs of a network's two runs are equal bit by bit."""
    with np.load(folder / f"{2 * number}.npz") as old, np.load(folder / f"{2 * number + 1}.npz") as new:
        return bool(old.files) and [old[k].tobytes() for k in old.files] == [new[k].tobytes() for k in new.files]


def print_families(rows: list[Row]) -> None:
    """Print the sums of each family, and how many of its networks are proved least."""
    head = ("networks", "how many", "as converted", "order alone", "order and addresses", "less", "proved least")
    print(f"\n| {' | '.join(head)} |\n" + "|---" * len(head) + "|")
    for family in dict.fromkeys(row.family for row in rows):
        some = [row for row in rows if row.family == family]
        before, ordered, after = (sum(column) for column in zip(*(row[2:5] for row in some), strict=True))
        proved = sum(row.after <= row.bound for row in some)
        share = f"{100 * (1 - after / before):.1f} %"
        print(f"| {family} | {len(some)} | {before:,} | {ordered:,} | {after:,} | {share} | {proved} |", flush=True)


if __name__ == "__main__":
    chosen = sys.argv[1:] or [runtime for runtime, package in PACKAGES.items() if find_spec(package)]
    sys.exit(1 if sum(map(tflite_models, chosen)) else 0)
