"""Runtimes that follow the order of the file: names, packages, and the models that they load."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat.deploy.onnx_file import OnnxFile
from remat.deploy.program_file import ProgramFile
from remat.deploy.tflite_file import TfliteFile
from remat.errors import FormatError

#: Files that are written back with their operators in another order.
ModelFile = TfliteFile | OnnxFile


class Runtime(StrEnum):
    """A runtime that follows the order of the file."""

    TFLM = "tflm"
    LITERT = "litert"
    ONNXRUNTIME = "onnxruntime"
    EXECUTORCH = "executorch"


@dataclass(frozen=True)
class Rules:
    """Description of a runtime."""

    title: str
    package: str
    """Package that ``--check`` requires."""
    module: str
    """Python module of the package."""
    file: type[ModelFile | ProgramFile]
    """Type of the models that it loads."""
    settings: str = ""
    """Session settings that keep the order of the file; empty if none are needed."""


RULES = {
    Runtime.TFLM: Rules("TensorFlow Lite Micro", "tflite-micro", "tflite_micro", TfliteFile),
    Runtime.LITERT: Rules("LiteRT without delegates", "ai-edge-litert", "ai_edge_litert", TfliteFile),
    Runtime.ONNXRUNTIME: Rules(
        "ONNX Runtime on CPUs", "onnxruntime", "onnxruntime", OnnxFile,
        "execution_order=PRIORITY_BASED, graph_optimization_level=ORT_DISABLE_ALL, enable_mem_reuse=False, "
        "enable_mem_pattern=False",
    ),
    Runtime.EXECUTORCH: Rules("ExecuTorch with portable kernels", "executorch", "executorch", ProgramFile),
}  # fmt: skip


def runtime_for(file: ModelFile | ProgramFile, wanted: str | None) -> Runtime:
    """Return the runtime `wanted`, or by default the first one that loads this kind of model.

    Raise FormatError if there is no such runtime, or it does not load this kind of model.
    """
    fitting = [runtime for runtime, rules in RULES.items() if isinstance(file, rules.file)]
    if wanted is None:
        return fitting[0]
    if wanted not in fitting:
        raise FormatError(
            f"--runtime {wanted} does not load this kind of model; write --runtime {' or '.join(fitting)}",
            "runtime",
            wanted,
        )
    return Runtime(wanted)
