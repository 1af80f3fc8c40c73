"""Route "joint": the input graph of torch.compile's partitioner."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from remat.errors import CaptureError
from remat.torch.capture.fakes import FakeWorld
from remat.torch.capture.traced import joint_io
from remat.torch.captured import Traced
from remat.torch.private import aot, aot_export_joint_with_descriptors, dynamo_config, dynamo_graph_capture_for_export


def trace_joint(world: FakeWorld) -> Traced:
    """Trace the joint forward and backward graph of a module.

    Raise CaptureError if a captured step has no place for an input or output of that kind. Exceptions of torch, which
    may be unable to trace the module, pass through.
    """
    names = {id(tensor): name for name, tensor in world.state.items()}
    parameters = world.parameters.keys()
    with world.swapped() as module, torch.enable_grad(), contextlib.ExitStack() as stack:
        with dynamo_config.patch(allow_rnn=True):
            dynamo = dynamo_graph_capture_for_export(module)(*world.args, **world.kwargs)
        lifted: dict[str, Any] = dict(dynamo.named_parameters()) | dict(dynamo.named_buffers())
        known = {target: names.get(id(tensor), target) for target, tensor in lifted.items()}
        constants = {target: tensor for target, tensor in lifted.items() if id(tensor) not in names}
        joint = aot_export_joint_with_descriptors(stack, dynamo, world.args, dict(world.kwargs))
        facts = joint._aot_state.fw_metadata
    graph = joint.graph_module.graph
    primals = [
        descriptor
        for node in graph.find_nodes(op="placeholder")
        if not isinstance(descriptor := node.meta["desc"], aot.TangentAOTInput)
    ]

    def input_of(_: int, descriptor: Any) -> tuple[str, str, int | None]:
        kind, name, output = _input(descriptor, known)
        # torch.func.functional_call replaces parameters by plain tensors, which torch takes for buffers
        return "parameter" if kind == "buffer" and name in parameters else kind, name, output

    def result_of(number: int, descriptor: Any) -> tuple[str, str]:
        if descriptor is None:  # an input without gradient; there is one descriptor per input, in their order
            descriptor = aot.GradAOTOutput(primals[number - facts.num_forward])
        return _result(descriptor, known)

    inputs, results = joint_io(graph, input_of, result_of)
    outputs = [each for each in results if each.kind == "output"]
    if [each.name for each in outputs] != [str(k) for k in range(len(outputs))]:
        raise CaptureError("some outputs of the module are aliases of one another, or of its inputs")
    return Traced(
        module=joint.graph_module,
        inputs=inputs,
        results=results,
        outputs_spec=joint.out_spec,
        route="joint",
        constants=constants,
        partitioner_facts={
            "num_forward_outputs": facts.num_forward,
            "static_lifetime_input_indices": list(facts.static_input_indices or ()),
        },
    )


def _input(descriptor: Any, known: dict[str, str]) -> tuple[str, str, int | None]:
    match descriptor:
        case aot.ParamAOTInput(target):
            return "parameter", known.get(target, target), None
        case aot.BufferAOTInput(target):
            return "buffer", known.get(target, target), None
        case aot.PlainAOTInput(idx):
            return "input", str(idx), None
        case aot.TangentAOTInput(aot.PlainAOTOutput(idx)):
            return "tangent", str(idx), idx
    raise CaptureError(f"the graph has an input of a kind without a place here: {descriptor.expr()}")


def _result(descriptor: Any, known: dict[str, str]) -> tuple[str, str]:
    match descriptor:
        case aot.PlainAOTOutput(idx):
            return "output", str(idx)
        case aot.GradAOTOutput(source):
            return "gradient", _input(source, known)[1]
        case aot.InputMutationAOTOutput(source):
            return "mutation", _input(source, known)[1]
    raise CaptureError(f"the graph has an output of a kind without a place here: {descriptor.expr()}")
