"""Compilation of both graphs of a split by TorchInductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from remat.errors import ExecutionError
from remat.torch import private
from remat.torch.agreement import Agreement
from remat.torch.capture.explaining import first_line
from remat.torch.effects import run_and_save_state, run_with_state
from remat.torch.execute.split import Split

#: Runs a graph on one list and empties it.
Compiled = Callable[[list[Any]], Sequence[Any]]


#: Operators of torch that the compiler knows, by the functions of this package that rerun random ops.
RANDOM = {
    run_and_save_state: torch.ops.higher_order.run_and_save_rng_state,
    run_with_state: torch.ops.higher_order.run_with_rng_state,
}


def compiled(split: Split) -> tuple[Compiled, Compiled]:
    """Compile the forward and the backward graph; they take and return the same values as those of `split`.

    Random ops remain those of eager PyTorch, so that they draw the same numbers. Raise ExecutionError if the compiler
    fails or is missing (a C++ compiler, or Triton for a GPU), or if the step has collectives, whose processes fail.
    """
    if Agreement.of([split.captured]).groups:
        raise ExecutionError(
            f"engine 'inductor' does not run the collectives of {split.captured.graph.name!r}: take engine='eager'",
            "inductor-collectives",
        )
    return _compiled(split, split.forward, backward=False), _compiled(split, split.backward, backward=True)


def _compiled(split: Split, module: fx.GraphModule, *, backward: bool) -> Compiled:
    from torch.fx.experimental.proxy_tensor import make_fx

    places = module.graph.find_nodes(op="placeholder")
    values = [place.meta["val"] for place in places]
    mode = private.detect_fake_mode(values)
    with mode, torch.no_grad():
        values = [value.detach() for value in values]
        graph = fx.Graph()  # without the boxed calling convention, which make_fx does not support
        graph.output(graph.graph_copy(module.graph, {}))
        for node in graph.nodes:
            if node.target in RANDOM:
                node.target, node.args = RANDOM[node.target], node.args[1:]  # without the device
        plain = fx.GraphModule(module, graph)
        # random ops remain whole, even those that run once: their decompositions draw other numbers
        seeded = torch.Tag.nondeterministic_seeded
        rules = private.select_decomp_table()
        table = {op: rule for op, rule in rules.items() if seeded not in getattr(op, "tags", ())}
        lowered = make_fx(plain, decomposition_table=table, tracing_mode="real")(*values)
    output = lowered.graph.output_node()
    private.record_original_output_strides(lowered)
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
    try:
        with private.tracing(private.TracingContext(mode)), private.inductor_config.patch(fallback_random=True):
            off = private.BoxedBool(False)
            made = private.compile_fx_inner(lowered, values, is_backward=backward, cudagraphs=off)
    except Exception as error:
        raise ExecutionError(
            f"TorchInductor cannot compile the step: {type(error).__name__}: {first_line(error)}"
        ) from error
    run: Compiled = made
    return run
