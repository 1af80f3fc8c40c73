"""Route "joint": the graph that torch.compile's partitioner sees."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._dynamo.functional_export import _dynamo_graph_capture_for_export
from torch._functorch._aot_autograd import descriptors as aot
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from remat.torch.capture.fakes import FakeWorld
from remat.torch.capture.traced import RouteError, Traced, storage_bytes
from remat.torch.captured import Input, ResultValue


def trace_joint(world: FakeWorld) -> Traced:
    """The joint forward and backward graph of a module.

    Raises
    ------
    RouteError
        If the module returns or changes what has no place in a captured step.
    Exception
        What torch raises where it cannot trace the module.
    """
    names = {id(tensor): name for name, tensor in world.state.items()}
    with world.swapped() as module, torch.enable_grad(), contextlib.ExitStack() as stack:
        with torch._dynamo.config.patch(allow_rnn=True):
            dynamo = _dynamo_graph_capture_for_export(module)(*world.args, **world.kwargs)
        lifted: dict[str, Any] = dict(dynamo.named_parameters()) | dict(dynamo.named_buffers())
        known = {target: names.get(id(tensor), target) for target, tensor in lifted.items()}
        constants = {target: tensor for target, tensor in lifted.items() if id(tensor) not in names}
        joint = aot_export_joint_with_descriptors(stack, dynamo, world.args, dict(world.kwargs))
        facts = joint._aot_state.fw_metadata
    graph = joint.graph_module.graph
    output = graph.output_node()
    for node in graph.find_nodes(op="placeholder"):
        node.meta.setdefault("val", None)  # arguments that are no tensors are inputs, too, that nothing reads
    inputs = tuple(_input(node, known) for node in graph.find_nodes(op="placeholder"))
    primals = [each for each in inputs if each.kind != "tangent"]
    results = []
    for position, (node, descriptor) in enumerate(zip(output.args[0], output.meta["desc"], strict=True)):
        if descriptor is None:  # of an input that has no gradient; there is one for each input, in their order
            results.append(ResultValue(None, "gradient", primals[position - facts.num_forward].name))
        else:
            results.append(_result(node, descriptor, known))
    outputs = [each for each in results if each.kind == "output"]
    if [each.name for each in outputs] != [str(k) for k in range(len(outputs))]:
        raise RouteError("some outputs of the module are aliases of one another, or of its inputs")
    return Traced(
        module=joint.graph_module,
        inputs=inputs,
        results=tuple(results),
        outputs_spec=joint.out_spec,
        route="joint",
        constants=constants,
        facts={
            "num_forward_outputs": facts.num_forward,
            "static_lifetime_input_indices": list(facts.static_input_indices or ()),
        },
    )


def _input(node: torch.fx.Node, known: dict[str, str]) -> Input:
    descriptor = node.meta["desc"]
    size = storage_bytes(node.meta["val"])
    match descriptor:
        case aot.ParamAOTInput(target):
            return Input(node, "parameter", known.get(target, target), size)
        case aot.BufferAOTInput(target):
            return Input(node, "buffer", known.get(target, target), size)
        case aot.PlainAOTInput(idx):
            return Input(node, "input", str(idx), size)
        case aot.TangentAOTInput(aot.PlainAOTOutput(idx)):
            return Input(node, "tangent", str(idx), size, idx)
    raise RouteError(f"the graph has an input of a kind without a place here: {descriptor.expr()}")


def _result(node: Any, descriptor: Any, known: dict[str, str]) -> ResultValue:
    """One output; what is no node is a constant that the module returned, or a gradient that is not there."""
    found, value = (node, None) if isinstance(node, torch.fx.Node) else (None, node)
    match descriptor:
        case aot.PlainAOTOutput(idx):
            return ResultValue(found, "output", str(idx), value)
        case aot.GradAOTOutput(source):
            return ResultValue(found, "gradient", _name(source, known))
        case aot.InputMutationAOTOutput(source):
            return ResultValue(found, "mutation", _name(source, known))
    raise RouteError(f"the graph has an output of a kind without a place here: {descriptor.expr()}")


def _name(source: Any, known: dict[str, str]) -> str:
    match source:
        case aot.ParamAOTInput(target) | aot.BufferAOTInput(target):
            return known.get(target, target)
        case aot.PlainAOTInput(idx):
            return str(idx)
    raise RouteError(f"the graph has an input of a kind without a place here: {source.expr()}")
