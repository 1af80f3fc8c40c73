"""Runs of models in their runtimes, in a child process: some runtimes abort if a model does not fit.

:func:`main` runs in that process. It loads, and on request runs, each model named on the command line, writes its
outputs to an ``.npz`` file and prints a line of JSON: ``{"bytes": ...}`` with the memory that the runtime reports (and
``temporaries``, the bytes of LiteRT's temporary tensors, 0 for those outside its arena, or ``tail`` of TFLM's arena),
or ``{"error": ...}``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from remat.deploy.runtimes import RULES, Runtime
from remat.errors import RematError

#: Bytes of an arena; TFLM's default, ten times the size of the file, is often too small.
ARENA = 2**30
#: Runs of a model in ONNX Runtime; later runs allocate differently from the first, so the last one counts.
RUNS = 3
#: Setting of ONNX Runtime that keeps packed weights out of the arena whose bytes are counted.
UNPACKED = "session.disable_prepacking"
#: Setting that keeps it from repeating nodes that dequantise, which would then run last.
UNCHANGED = "session.disable_quant_qdq"
#: ONNX Runtime copies weights of up to this many bytes into the arena (its ``kSmallTensorExternalDataThreshold``).
SMALL_WEIGHT = 127
_ARENA = re.compile(rb"Arena allocation head (\d+) bytes[\s\S]*?allocation tail (\d+) bytes")


def is_installed(runtime: Runtime) -> bool:
    """Return True if the runtime can be imported."""
    return importlib.util.find_spec(RULES[runtime].module) is not None


def run_models(
    runtime: Runtime,
    models: Sequence[Path],
    folder: Path,
    *,
    invoke: bool = True,
    dims: Mapping[str, int] | None = None,
    seconds: float | None = None,
) -> list[dict[str, Any]]:
    """Run models on inputs that depend only on their signature; write outputs to ``0.npz``, ... in `folder`.

    Parameters
    ----------
    invoke : bool
        If false, only load the models; TFLM plans its memory then.
    dims : mapping of str to int, optional
        Sizes of open dimensions by name; the default is 1.
    seconds : float or None
        Time limit for all models.

    Returns
    -------
    list of dict
        For each model ``bytes`` as the runtime reports them, or ``error``, also if an earlier model ended the process.

    Raises
    ------
    RematError
        If the runtime is not installed.
    """
    if not is_installed(runtime):
        package = RULES[runtime].package
        raise RematError(f"{RULES[runtime].title} is not installed: pip install {package}", "unavailable", package)
    task = json.dumps({"runtime": runtime, "folder": str(folder), "invoke": invoke, "dims": dict(dims or {})})
    program = "import sys; from remat.deploy.runs import main; main(*sys.argv[1:])"
    command = [sys.executable, "-c", program, task, *map(str, models)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        printed, reason = ended.stdout, ended.stderr.strip().rpartition("\n")[2] or f"exit code {ended.returncode}"
    except subprocess.TimeoutExpired as error:
        printed = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        reason = "the time was over"
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return found + [{"error": reason}] * (len(models) - len(found))


def random_values(shape: Sequence[int], kind: Any, seed: int) -> Any:
    """Return random values for an input: normal ones, or small integers, since integers may be indices."""
    random, dtype = np.random.default_rng(seed), np.dtype(kind)
    if dtype.kind in "iu" and dtype.itemsize == 1:
        return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return (
        random.integers(0, 2, shape).astype(dtype)
        if dtype.kind in "iub"
        else random.standard_normal(shape).astype(dtype)
    )


def _tflm(path: Path, invoke: bool, dims: Mapping[str, int]) -> tuple[list[Any], dict[str, Any]]:
    from tflite_micro.python.tflite_micro import runtime

    from remat.deploy.tflite_file import TfliteFile

    data = path.read_bytes()
    main = TfliteFile(data).tables[0]
    model = runtime.Interpreter.from_bytes(data, arena_size=ARENA)
    outputs = []
    if invoke:
        for k, _ in enumerate(main.inputs):
            details = model.get_input_details(k)
            model.set_input(random_values(details["shape"], details["dtype"], k), k)
        model.invoke()
        outputs = [np.array(model.get_output(k)) for k in range(len(main.outputs))]
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)  # the report comes from C++
        os.dup2(file.fileno(), 2)
        try:
            model.print_allocations()
        finally:
            os.dup2(kept, 2)
        file.seek(0)
        found = _ARENA.search(file.read())
    return outputs, {"bytes": int(found[1]), "tail": int(found[2])} if found else {"bytes": -1}


def _litert(path: Path, invoke: bool, dims: Mapping[str, int]) -> tuple[list[Any], dict[str, Any]]:
    """Run a model without delegates; its bytes are the address span of tensors except constants and variables."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    from remat.deploy.tflite_file import TfliteFile

    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    model = Interpreter(model_path=str(path), experimental_op_resolver_type=plain, num_threads=1)
    for details in model.get_input_details() if dims else ():
        if tuple(details["shape_signature"][:1]) == (-1,):
            model.resize_tensor_input(details["index"], [dims["batch"], *details["shape"][1:]])
    model.allocate_tensors()
    entries = TfliteFile(path.read_bytes()).tables[0].tensors
    spans: list[tuple[int, int]] = []
    count = model._interpreter.NumTensors(0)  # temporary tensors come after those of the file
    temporaries = [(0, 0)] * (count - len(entries))
    for k in range(count):
        try:
            is_apart = k < len(entries) and entries[k].is_apart
            model._interpreter.TensorSize(k, 0)  # raises before the next line would abort the process
            array = None if is_apart else model.tensor(k)()
        except ValueError:  # no operator reads or writes it, or a temporary one without a shape
            continue
        if array is not None and array.nbytes:
            begin = array.__array_interface__["data"][0]
            span = begin, begin + array.nbytes
            if k < len(entries):
                spans.append(span)
            else:
                temporaries[k - len(entries)] = span
    array = None
    low = min((begin for begin, _ in spans), default=0)
    most = sum(end - begin + 64 for begin, end in (*spans, *temporaries))
    inside = [(begin, end) if low <= begin < low + most else (0, 0) for begin, end in temporaries]  # others lie apart
    outputs = []
    if invoke:
        for k, details in enumerate(model.get_input_details()):
            model.set_tensor(details["index"], random_values(details["shape"], details["dtype"], k))
        model.invoke()
        outputs = [model.get_tensor(details["index"]) for details in model.get_output_details()]
    high = max((end for _, end in (*spans, *inside)), default=low)
    return outputs, {"bytes": high - low, "temporaries": [end - begin for begin, end in inside]}


def _onnxruntime(path: Path, invoke: bool, dims: Mapping[str, int]) -> tuple[list[Any], dict[str, Any]]:
    """Run a model in the order of its file; its bytes are the most requested after any kernel, without weights."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = options.enable_mem_pattern = False
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    for key in UNPACKED, UNCHANGED:
        options.add_session_config_entry(key, "1")
    outputs: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        kinds = {"tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2", "tensor(bool)": "?"}
        feeds = {}
        for k, each in enumerate(session.get_inputs()):
            kind = kinds.get(each.type) or each.type.removeprefix("tensor(").removesuffix(")")
            shape = [size if isinstance(size, int) else dims.get(size, 1) for size in each.shape]
            feeds[each.name] = random_values(shape, kind, k)
        for _ in range(RUNS if invoke else 0):
            outputs = []  # outputs of the previous run would count
            outputs = session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    requested = [int(event["args"].get("mem_bytes_requested_in_use", 0)) for event in events if event.get("args")]
    return outputs, {"bytes": max(requested, default=0) - small_weights(path.read_bytes())}


def small_weights(data: bytes) -> int:
    """Return the bytes of the weights that ONNX Runtime copies into its arena, where they stay."""
    import onnx

    from remat.graphs.formats.onnx.inner_graphs import named_graphs

    def of_graph(graph: Any) -> int:
        read = {name for node in graph.node for name in node.input} | {info.name for info in graph.output}
        held = [(each.name, each) for each in graph.initializer if each.data_location != each.EXTERNAL]
        held += [
            (node.output[0], each.t)
            for node in graph.node
            for each in node.attribute
            if node.op_type == "Constant" and each.name == "value"
        ]
        sizes = [onnx.numpy_helper.to_array(tensor).nbytes for name, tensor in held if name in read]
        inner = sum(of_graph(body) for node in graph.node for _, body in named_graphs(node))
        return inner + sum(size for size in sizes if size <= SMALL_WEIGHT)

    return of_graph(onnx.ModelProto.FromString(data).graph)


def _executorch(path: Path, invoke: bool, dims: Mapping[str, int]) -> tuple[list[Any], dict[str, Any]]:
    """Run a program; its bytes are the planned memory that its file asks for."""
    from remat.torch.executorch import run_program

    outputs, bytes_ = run_program(path.read_bytes(), random_values if invoke else None)
    return outputs, {"bytes": bytes_}


_RUN: dict[Runtime, Callable[[Path, bool, Mapping[str, int]], tuple[list[Any], dict[str, Any]]]] = {
    Runtime.TFLM: _tflm,
    Runtime.LITERT: _litert,
    Runtime.ONNXRUNTIME: _onnxruntime,
    Runtime.EXECUTORCH: _executorch,
}


def main(task: str, *models: str) -> None:
    """Run the models and print their memory."""
    todo = json.loads(task)
    for k, model in enumerate(models):
        try:
            outputs, report = _RUN[Runtime(todo["runtime"])](Path(model), todo["invoke"], todo["dims"])
            np.savez(Path(todo["folder"]) / f"{k}.npz", *outputs)
            print(json.dumps(report), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
