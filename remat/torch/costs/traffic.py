"""Bytes that an op reads and writes, each counted once."""

from __future__ import annotations

import torch

from remat.torch.costs.calls import Call, size_in_bytes, storage_key
from remat.torch.costs.elementwise import NOTHING

#: Ops that read no more of their first tensor than they write.
CHOOSING = {
    "embedding", "gather", "index", "index_select", "take", "_unsafe_index", "masked_select", "_embedding_bag",
}  # fmt: skip
#: Ops that read their first tensor twice: they need its mean first, and a batch does not fit a cache.
TWICE = {
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_batch_norm_with_update",
    "_batch_norm_with_update_functional", "cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm_backward",
    "batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
}  # fmt: skip


def bytes_moved(call: Call) -> int:
    """Return the bytes that a call reads and writes; 0 for a view or an allocation.

    Elements that a tensor repeats (stride 0) are read once. Outputs count even if no op reads them.
    """
    if call.free or call.key in NOTHING:
        return 0
    given = {storage_key(tensor) for tensor in call.inputs}
    fresh = [tensor for tensor in call.outputs if storage_key(tensor) not in given]
    written = sum(size_in_bytes(tensor) for tensor in fresh)
    if call.mutates:
        written += sum(size_in_bytes(tensor) for tensor in _written_into(call))
    read = [size_in_bytes(tensor) for tensor in call.inputs]
    if call.key in TWICE:  # the gradient and the input of a backward pass
        count = 2 if call.key.endswith("_backward") else 1
        read[:count] = [2 * size for size in read[:count]]
    elif call.key in CHOOSING and read:
        read[0] = min(read[0], written)
    return written + sum(read)


def _written_into(call: Call) -> list[torch.Tensor]:
    """Return the arguments that the schema declares as written."""
    found: list[torch.Tensor] = []
    for place, argument in enumerate(call.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = call.args[place] if place < len(call.args) else call.kwargs.get(argument.name)
            found.extend(tensor for tensor in call.inputs if tensor is value)
    return found
