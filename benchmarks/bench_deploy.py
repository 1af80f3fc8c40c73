"""Deployed models in their runtimes: memory predicted and measured, for networks of seeds that no test uses.

``bench_deploy.py tflm`` and ``bench_deploy.py litert`` deploy networks of irregular cells and random models, run each
before and after, and compare outputs bit by bit. Each runtime needs its package: tflite-micro, ai-edge-litert.
``bench_onnxruntime.py`` does the same for ONNX Runtime.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

#: Seeds of irregular networks and of random models; the tests use seeds below 300.
IRREGULAR, RANDOM = range(5000, 5008), range(6000, 6010)
#: Package of each runtime; without arguments those that are installed are measured.
PACKAGES = {"tflm": "tflite_micro", "litert": "ai_edge_litert"}
#: Seconds for order and addresses of a model.
SECONDS = 8.0


def tflite_models(runtime: str) -> int:
    """Print bytes before, after, bound, and both as the runtime reports them; return the number of wrong rows."""
    from deploy_models import irregular, random_model

    from remat.deploy import Search, check_models, deploy, write_model
    from remat.deploy.tflite_file import TfliteFile

    models = {f"irregular {seed}": irregular(seed) for seed in IRREGULAR}
    models |= {f"random {seed}": random_model(seed, 16) for seed in RANDOM}
    print("| model | before | after | bound | measured before | measured after |\n|---|---|---|---|---|---|")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder) / "old.tflite", Path(folder) / "new.tflite"
        for name, data in models.items():
            old.write_bytes(data)
            found = deploy(TfliteFile(data), runtime, Search(time_limit=SECONDS))
            write_model(found.file, new, old)
            check = check_models(old, new, found.runtime)  # an error if outputs differ
            row = (found.before, found.after, found.bound, check.before, check.after)
            wrong += not (check.before == found.before >= found.after == check.after)
            print(f"| {name} | {' | '.join(f'{each:,}' for each in row)} |", flush=True)
    print(f"{len(models)} models, all outputs equal bit by bit; {wrong} predictions wrong or models worse")
    return wrong


if __name__ == "__main__":
    chosen = sys.argv[1:] or [runtime for runtime, package in PACKAGES.items() if find_spec(package)]
    sys.exit(1 if sum(map(tflite_models, chosen)) else 0)
