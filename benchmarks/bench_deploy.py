"""Deployed models in their runtimes: memory predicted and measured, for networks of seeds that no test uses.

``bench_deploy.py tflm`` and ``bench_deploy.py litert`` deploy networks of irregular cells and random models, run each
before and after, and compare outputs bit by bit. ``bench_deploy.py onnxruntime`` measures the settings of a session.
Each runtime needs its package: tflite-micro, ai-edge-litert, onnxruntime.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

#: Seeds of irregular networks and of random models; the tests use seeds below 300.
IRREGULAR, RANDOM = range(5000, 5008), range(6000, 6010)
#: Package of each runtime; without arguments those that are installed are measured.
PACKAGES = {"tflm": "tflite_micro", "litert": "ai_edge_litert", "onnxruntime": "onnxruntime"}
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


def cells(reorder: bool) -> bytes:
    """Return an ONNX network of three cells with four branches; `reorder` pools each branch before the next begins."""
    from onnx import TensorProto, helper

    nodes, at = [], "x"
    for cell in range(3):
        wide, pooled = [], []
        for k in range(4):
            name = f"{cell}_{k}"
            wide.append(helper.make_node("Sin", [at], [f"a{name}"], name=f"a{name}"))
            sizes = {"kernel_shape": [2, 2], "strides": [2, 2]}
            pooled.append(helper.make_node("MaxPool", [f"a{name}"], [f"p{name}"], name=f"p{name}", **sizes))
        nodes += [node for pair in zip(wide, pooled, strict=True) for node in pair] if reorder else [*wide, *pooled]
        at = f"c{cell}"
        nodes.append(helper.make_node("Concat", [f"p{cell}_{k}" for k in range(4)], [at], name=at, axis=1))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 64, 64))
    y = helper.make_tensor_value_info(at, TensorProto.FLOAT, (1, 1024, 8, 8))
    model = helper.make_model(helper.make_graph(nodes, "cells", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model.SerializeToString()


def memory(setting: dict[str, Any]) -> dict[str, int]:
    """Return the memory in bytes that the profile of the third run reports, with the settings of a session."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.execution_order = getattr(ort.ExecutionOrder, setting["order"])
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse, options.enable_mem_pattern = setting["reuse"], setting["pattern"]
    options.enable_cpu_mem_arena = True
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    if setting["extend"] == "same as requested":
        where = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        ort.create_and_register_allocator(where, ort.OrtArenaCfg(0, 1, -1, -1))
        options.add_session_config_entry("session.use_env_allocators", "1")
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = ort.InferenceSession(cells(setting["nodes"] == "reordered"), options, ["CPUExecutionProvider"])
        x = np.random.default_rng(0).standard_normal((1, 16, 64, 64), dtype=np.float32)
        for _ in range(3):
            found = None  # an output that the caller holds counts
            found = session.run(None, {"x": x})
        assert found is not None
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels = [each["args"] for each in events if "mem_bytes_requested_in_use" in each.get("args", {})]
    third = kernels[-len(kernels) // 3 :]
    keys = {"requested": "mem_bytes_requested_in_use", "padded": "mem_bytes_in_use", "held": "mem_arena_held"}
    return {name: max(int(each.get(key, -1)) for each in third) for name, key in keys.items()}


def settings() -> None:
    """Print a row for each combination of settings; each has a process of its own, since arenas are global."""
    print("| nodes | order | reuse | pattern | arena grows | requested | with padding | held |\n" + "|---" * 8 + "|")
    context = multiprocessing.get_context("spawn")
    rows = [
        {"nodes": nodes, "order": order, "reuse": reuse, "pattern": pattern, "extend": extend}
        for nodes in ("as written", "reordered")
        for order in ("DEFAULT", "PRIORITY_BASED")
        for reuse, pattern in ((True, True), (True, False), (False, True), (False, False))
        for extend in ("powers of two", "same as requested")
    ]
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for row, found in zip(rows, pool.map(memory, rows), strict=True):
            flags = ["on" if row[key] else "off" for key in ("reuse", "pattern")]
            cells_ = [row["nodes"], f"`{row['order']}`", *flags, row["extend"], *(f"{v:,}" for v in found.values())]
            print(f"| {' | '.join(map(str, cells_))} |", flush=True)


if __name__ == "__main__":
    chosen = sys.argv[1:] or [runtime for runtime, package in PACKAGES.items() if find_spec(package)]
    if "onnxruntime" in chosen:
        settings()
    sys.exit(1 if sum(tflite_models(runtime) for runtime in chosen if runtime != "onnxruntime") else 0)
