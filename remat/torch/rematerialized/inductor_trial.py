"""Peak of the program that Inductor makes of two graphs, found without writing or compiling code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from remat.torch import private
from remat.torch.inductor_allocations import workspaces
from remat.torch.inductor_order import SchedulerGraph
from remat.torch.private import CustomSchedulerPass, V
from remat.torch.private import inductor_ir as ir


class _Lowered(BaseException):
    """Stops Inductor once the order of a program is known; no handler of an `Exception` catches it."""


@dataclass(frozen=True)
class Output:
    """Result of a lowered graph. `buffer`: the buffer that holds it, of `size` bytes; empty for an input, with size 0.

    `strides`: None if it is no tensor.
    """

    buffer: str = ""
    size: int = 0
    strides: tuple[int, ...] | None = None


@dataclass(eq=False)
class _Trial(CustomSchedulerPass):
    """Last pass over a graph's fused ops: counts its peak, workspaces included, and stops Inductor."""

    before: Any = None
    """Pass of the user, which runs first."""
    peak: int = 0
    outputs: list[Output] = field(default_factory=list)

    def uuid(self) -> None:
        """Return no key: a trial is never cached."""

    def __call__(self, nodes: list[Any]) -> list[Any]:
        graph = SchedulerGraph(nodes if self.before is None else self.before(nodes))
        order = graph.final(graph.nodes)
        self.peak = graph.allocated(order).with_workspaces(workspaces(order))
        self.outputs = [_output(each) for each in V.graph.graph_outputs]
        raise _Lowered


def _output(result: Any) -> Output:
    if not isinstance(result, ir.IRNode) or not result.has_tensor_output():
        return Output()
    strides = tuple(V.graph.sizevars.optimization_hints(result.get_layout().stride))
    name = result.get_name()
    if name in V.graph.graph_inputs or name in V.graph.constants:
        return Output(strides=strides)
    storage = V.graph.get_buffer(name).get_layout().storage_size()
    itemsize = result.get_dtype().itemsize
    return Output(name, int(V.graph.sizevars.optimization_hint(storage)) * itemsize, strides)


def compiled_peak(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> int:
    """Return the peak in bytes of the compiled step: buffers of the program, and workspaces of its library calls.

    Inductor lowers, fuses and orders both graphs as in a compilation, under the current settings. Parameters and other
    inputs do not count; the caller holds the results of the forward pass, and frees gradients given to the backward
    pass.

    Parameters
    ----------
    forward, backward : torch.fx.GraphModule
        The graphs of a :class:`~remat.torch.execute.split.Split`.
    results : int
        Number of results of the forward graph in front of the saved values.
    """
    first = _lowered(forward, _values(forward), range(results))
    handed, saved = first.outputs[:results], first.outputs[results:]
    values = _values(backward)
    for place, (value, each) in enumerate(zip(values, saved, strict=False)):
        if each.strides is not None and each.strides != tuple(value.stride()):
            values[place] = value.as_strided(value.size(), each.strides)
    own = {each.buffer for each in handed}
    reusable = saved if private.functorch_config.donated_buffer else []
    donated = [place for place, each in enumerate(reusable) if each.buffer and each.buffer not in own]
    second = _lowered(backward, values, (), donated)
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    # Inductor takes all inputs of such a name for parameters, and the caller holds results
    held = [each for name, each in zip(names, saved, strict=False) if name.startswith("primals_")]
    unread = {each.buffer for each in saved}
    held += [each for each in handed if each.buffer not in unread]
    return max(first.peak, second.peak + sum({each.buffer: each.size for each in held}.values()))


def _values(module: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]


def _lowered(module: fx.GraphModule, values: Sequence[Any], visible: Sequence[int], donated: Any = None) -> _Trial:
    """Lower a copy of a graph. `visible`: results that keep their strides; `donated`: inputs of a backward pass."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    output, copied = graph.output_node(), fx.GraphModule(module, graph)
    places = [place for place in visible if isinstance(output.args[0][place], fx.Node)]
    output.meta["user_visible_output_idxs"] = places
    config = private.inductor_config
    trial = _Trial(config._post_fusion_custom_pass)
    context = private.TracingContext(private.detect_fake_mode(values))
    if donated is not None:
        context.fw_metadata = SimpleNamespace(bw_donated_idxs=donated)
    settings = {"_post_fusion_custom_pass": trial, "fx_graph_cache": False, "fx_graph_remote_cache": False}
    off = private.BoxedBool(False)
    try:
        with private.tracing(context), config.patch(settings), torch.no_grad():
            private.compile_fx_inner(copied, values, is_backward=donated is not None, cudagraphs=off)
    except _Lowered:
        return trial
    raise RuntimeError("Inductor compiled a graph without its scheduler")
