"""Parts common to both routes: reading a joint graph, and refusing values that cannot be captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from remat.errors import CaptureError
from remat.torch.captured import Input, ResultValue


def storage_bytes(value: Any) -> int:
    """Return the bytes of the storage of a tensor; 0 for anything else.

    Raise CaptureError if it is a sparse tensor, which has several storages.
    """
    if not isinstance(value, torch.Tensor):
        return 0
    if value.layout is not torch.strided:
        raise CaptureError(
            f"a value is of layout {value.layout} (an embedding with sparse=True?); only dense ones fit", "sparse"
        )
    return int(value.untyped_storage().nbytes())


def opaque(kind: str, output: int | str) -> str:
    """Return the message for an output whose tensors torch cannot find."""
    advice = (
        "pass use_cache=False" if kind.endswith("Cache") else "return tensors, tuples or dictionaries, or register it "
        "with torch.utils._pytree.register_dataclass"
    )  # fmt: skip
    return f"the module returns a {kind} (output {output}), whose tensors torch cannot find: {advice}"


def joint_io(
    graph: torch.fx.Graph,
    input_of: Callable[[int, Any], tuple[str, str, int | None]],
    result_of: Callable[[int, Any], tuple[str, str]],
) -> tuple[tuple[Input, ...], tuple[ResultValue, ...]]:
    """Read the inputs and results of a joint graph of AOTAutograd.

    `input_of`: returns kind, name and output of an input, given its number and descriptor. `result_of`: returns kind
    and name of a result, given its number and descriptor.
    """
    inputs = []
    for number, node in enumerate(graph.find_nodes(op="placeholder")):
        node.meta.setdefault("val", None)  # arguments other than tensors are inputs too, which no node reads
        kind, name, output = input_of(number, node.meta["desc"])
        inputs.append(Input(node, kind, name, storage_bytes(node.meta["val"]), output))
    results = []
    ends = graph.output_node()
    for number, (node, descriptor) in enumerate(zip(ends.args[0], ends.meta["desc"], strict=True)):
        kind, name = result_of(number, descriptor)
        if isinstance(node, torch.fx.Node):
            results.append(ResultValue(node, kind, name))
        else:  # a constant that the module returned, or a missing gradient
            results.append(ResultValue(None, kind, name, node if kind == "output" else None))
    return tuple(inputs), tuple(results)
