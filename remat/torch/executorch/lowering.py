"""Programs for ExecuTorch from exported ones, and runs of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from remat.errors import FormatError
from remat.runtime.text import short
from remat.torch.capture.explaining import quiet_torch
from remat.torch.executorch.archive import read_program
from remat.torch.executorch.planning import MemoryPlanning

from executorch.exir import ExecutorchBackendConfig, to_edge  # isort: skip  (after the check that it is installed)


def lowered(program: torch.export.ExportedProgram, planning: MemoryPlanning | None = None) -> bytes:
    """Return the ``.pte`` file of a program, for the portable kernels; by default as ExecuTorch plans its memory.

    Raises
    ------
    FormatError
        If ExecuTorch does not lower the program.
    """
    config = ExecutorchBackendConfig() if planning is None else ExecutorchBackendConfig(memory_planning_pass=planning)
    try:
        with quiet_torch(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            edge = to_edge(program)
            data: bytes = bytes(edge.to_executorch(config).buffer)
    except Exception as error:
        reason = short(f"{type(error).__name__}: {error}")
        raise FormatError(f"ExecuTorch does not lower the program: {reason}") from error
    return data


def run_program(data: bytes, values: Callable[[Sequence[int], str, int], Any] | None) -> tuple[list[Any], int]:
    """Run a ``.pte`` file, or a ``.pt2`` file as ExecuTorch lowers it by default; return outputs and bytes.

    `values`: returns an input, given its shape, type and number; None: the program is loaded and not run. The bytes
    are the planned memory that the file asks the runtime for.
    """
    from executorch.exir._serialize._program import deserialize_pte_binary
    from executorch.exir.schema import Tensor
    from executorch.runtime import Runtime

    if data[:4] == b"PK\x03\x04":
        data = lowered(read_program(data))
    plan = deserialize_pte_binary(data).program.execution_plan[0]
    method = Runtime.get().load_program(data).load_method(plan.name)
    outputs: list[Any] = []
    if values is not None:
        given: list[Any] = []
        for number, position in enumerate(plan.inputs):
            held = plan.values[position].val
            if isinstance(held, Tensor):
                kind = _TYPES[held.scalar_type.name]
                given.append(torch.from_numpy(values(held.sizes, kind, number)))
            else:
                given.append(next(iter(vars(held).values()), None))
        found = method.execute(given)
        outputs = [each.numpy() if isinstance(each, torch.Tensor) else each for each in found]
    return outputs, sum(plan.non_const_buffer_sizes)


#: NumPy's names of ExecuTorch's element types.
_TYPES = {
    "BYTE": "uint8", "CHAR": "int8", "SHORT": "int16", "INT": "int32", "LONG": "int64", "HALF": "float16",
    "FLOAT": "float32", "DOUBLE": "float64", "BOOL": "bool",
}  # fmt: skip
