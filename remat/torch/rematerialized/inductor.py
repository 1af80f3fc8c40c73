"""Compilation of both graphs of a split by TorchInductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

from remat.errors import ExecutionError
from remat.torch.capture.explaining import first_line
from remat.torch.effects import run_and_save_state, run_with_state
from remat.torch.execute.split import Split

#: Runs a graph on one list and empties it.
Compiled = Callable[[list[Any]], Sequence[Any]]


#: Operators of torch that the compiler knows, by the functions of this package that rerun random ops.
RANDOM = {run_and_save_state: run_and_save_rng_state, run_with_state: run_with_rng_state}


def compiled(split: Split) -> tuple[Compiled, Compiled]:
    """Compile the forward and the backward graph; they take and return the same values as those of `split`.

    Random ops remain those of eager PyTorch, so that they draw the same numbers. Raise ExecutionError if the compiler
    fails or is missing (a C++ compiler, or Triton for a GPU).
    """
    return _compiled(split, split.forward, backward=False), _compiled(split, split.backward, backward=True)


def _compiled(split: Split, module: fx.GraphModule, *, backward: bool) -> Compiled:
    from torch._dynamo.utils import detect_fake_mode
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner, record_original_output_strides
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.utils import BoxedBool
    from torch.fx.experimental.proxy_tensor import make_fx

    places = module.graph.find_nodes(op="placeholder")
    values = [place.meta.get("val") for place in places]
    mode = detect_fake_mode([each for each in values if each is not None])
    sizes = {each.name: each.size for each in split.saved if each.kind == "state"}
    with mode, torch.no_grad():
        values = [
            torch.empty(sizes[place.name], dtype=torch.uint8) if value is None else value.detach()
            for place, value in zip(places, values, strict=True)
        ]
        graph = fx.Graph()  # without the boxed calling convention, which make_fx does not support
        graph.output(graph.graph_copy(module.graph, {}))
        for node in graph.nodes:
            if node.target in RANDOM:
                node.target, node.args = RANDOM[node.target], node.args[1:]  # without the device
        plain = fx.GraphModule(module, graph)
        # random ops remain whole, even those that run once: their decompositions draw other numbers
        seeded = torch.Tag.nondeterministic_seeded
        table = {op: rule for op, rule in select_decomp_table().items() if seeded not in getattr(op, "tags", ())}
        lowered = make_fx(plain, decomposition_table=table, tracing_mode="real")(*values)
    output = lowered.graph.output_node()
    record_original_output_strides(lowered)
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
    try:
        with tracing(TracingContext(mode)), config.patch(fallback_random=True):
            made = compile_fx_inner(lowered, values, is_backward=backward, cudagraphs=BoxedBool(False))
    except Exception as error:
        raise ExecutionError(
            f"TorchInductor cannot compile the step: {type(error).__name__}: {first_line(error)}"
        ) from error
    run: Compiled = made
    return run
