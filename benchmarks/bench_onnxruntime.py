"""Memory of ONNX Runtime by the settings of a session, for networks of seeds that no test uses.

    python benchmarks/bench_onnxruntime.py [--seeds N] [--batch N] [--seconds S]

Each network runs three times with every combination of execution order, reuse of buffers, memory pattern and growth of
the arena, as written and in the order of ``remat deploy``. Outputs must be equal bit by bit. Bytes are those of the
profile's kernel events in the third run: requested, with padding, and held by the arena. The first table has the bytes
requested by one network of each kind; the second has geometric means over all networks, relative to the defaults.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

#: First seed of the networks; the tests use seeds below 8000.
FIRST = 8000
QUANTITIES = {"requested": "mem_bytes_requested_in_use", "padded": "mem_bytes_in_use", "held": "mem_arena_held"}
#: Settings of a session: nodes, order, reuse of buffers, memory pattern, growth of the arena.
Setting = tuple[str, str, bool, bool, str]
SETTINGS: list[Setting] = [
    (nodes, order, reuse, pattern, growth)
    for nodes, order in (("as written", "DEFAULT"), ("as written", "PRIORITY_BASED"), ("reordered", "PRIORITY_BASED"))
    for reuse, pattern in itertools.product((True, False), repeat=2)
    for growth in ("powers of two", "as requested")
]  # fmt: skip


def run(data: bytes, setting: Setting) -> tuple[dict[str, int], list[bytes]]:
    """Return the memory in bytes of the third run, and the outputs."""
    import onnxruntime as ort

    from remat.deploy.runs import UNPACKED, random_values

    _, order, reuse, pattern, growth = setting
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.execution_order = getattr(ort.ExecutionOrder, order)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse, options.enable_mem_pattern = reuse, pattern
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.add_session_config_entry(UNPACKED, "1")
    if growth == "as requested":
        where = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        ort.create_and_register_allocator(where, ort.OrtArenaCfg(0, 1, -1, -1))
        options.add_session_config_entry("session.use_env_allocators", "1")
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = ort.InferenceSession(data, options, ["CPUExecutionProvider"])
        feeds = {each.name: random_values(each.shape, "f4", k) for k, each in enumerate(session.get_inputs())}
        outputs: list[Any] = []
        for _ in range(3):
            outputs = []  # an output that the caller holds counts
            outputs = session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels = [each["args"] for each in events if "mem_bytes_requested_in_use" in each.get("args", {})]
    third = kernels[-len(kernels) // 3 :]
    most = {name: max(int(each.get(key, -1)) for each in third) for name, key in QUANTITIES.items()}
    return most, [each.tobytes() for each in outputs]


def measured(data: bytes, new: bytes) -> dict[Setting, dict[str, int]]:
    """Return the memory by setting, each in a process of its own, since shared allocators stay; check the outputs."""
    found: dict[Setting, dict[str, int]] = {}
    first: list[bytes] | None = None
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for setting in SETTINGS:
            found[setting], outputs = pool.apply(run, (new if setting[0] == "reordered" else data, setting))
            first = first or outputs
            assert outputs == first, f"other outputs with {setting}"
    return found


def main() -> None:
    import onnxruntime
    from onnx_networks import KINDS

    from remat.deploy import Search, deploy
    from remat.deploy.onnx_file import OnnxFile

    given = common.parse(str(__doc__), seeds=3, batch=16, seconds=20.0)
    print(f"onnxruntime {onnxruntime.__version__}; bytes of the third run")
    rows: dict[str, dict[Setting, dict[str, int]]] = {}
    for kind, make in KINDS.items():
        for seed in range(FIRST, FIRST + given.seeds):
            data = make(seed, batch=given.batch).written()
            found = deploy(OnnxFile(data), search=Search(time_limit=given.seconds))
            rows[f"{kind} {seed}"] = each = measured(data, found.file.data)
            apart = [each[nodes, "PRIORITY_BASED", False, False, "as requested"]["requested"]
                     for nodes in ("as written", "reordered")]  # fmt: skip
            print(f"{kind} {seed}: {found.before:,} -> {found.after:,}, bound {found.bound:,}, measured "
                  f"{apart[0]:,} -> {apart[1]:,}", flush=True)  # fmt: skip
    _print_bytes({kind: rows[f"{kind} {FIRST}"] for kind in KINDS})
    _print_means(list(rows.values()))


def _print_bytes(rows: dict[str, dict[Setting, dict[str, int]]]) -> None:
    print(f"\n| nodes | order | reuse | pattern | {' | '.join(rows)} |\n" + "|---" * (4 + len(rows)) + "|")
    for setting in SETTINGS:
        if setting[4] == "powers of two":
            shown = " | ".join(f"{each[setting]['requested']:,}" for each in rows.values())
            print(f"| {_words(setting)} | {shown} |")


def _print_means(rows: list[dict[Setting, dict[str, int]]]) -> None:
    print("\n| nodes | order | reuse | pattern | arena grows | requested | padded | held | worst held |")
    print("|---" * 9 + "|")
    for setting in SETTINGS:
        means = []
        for name in QUANTITIES:
            ratios = [row[setting][name] / row[SETTINGS[0]][name] for row in rows]
            means.append(f"{np.exp(np.mean(np.log(ratios))):.2f}")
        print(f"| {_words(setting)} | {setting[4]} | {' | '.join(means)} | {max(ratios):.2f} |")


def _words(setting: Setting) -> str:
    nodes, order, reuse, pattern, _ = setting
    return f"{nodes} | `{order}` | {'on' if reuse else 'off'} | {'on' if pattern else 'off'}"


if __name__ == "__main__":
    main()
