"""Both graphs of a split as one differentiable function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.node import map_arg

from remat.errors import ExecutionError
from remat.torch.captured import Captured, Layout, ResultValue
from remat.torch.distributed import Spread, local_part, to_local
from remat.torch.execute.host import abandoned_on_error, host_memory, host_space
from remat.torch.execute.split import NO_TENSORS, Split
from remat.torch.private import DisableAutocast
from remat.torch.transfers.host_memory import HostSpace
from remat.torch.transfers.moves import HostCopy

#: Takes one list, empties it, and returns all results.
Boxed = Callable[[list[Any]], Sequence[Any]]


class Program:
    """Runs the forward graph of a split, and its backward graph when autograd computes the gradients.

    Immutable: copies of a module share it, and it has no parameters.

    `forward` and `backward`: compiled functions that run instead of the two graphs. `full_duplex`: False if tensors
    move in one direction at a time.
    """

    def __init__(
        self, split: Split, forward: Boxed | None = None, backward: Boxed | None = None, *, full_duplex: bool = True
    ) -> None:
        captured = split.captured
        self.split = split
        self.host = host_memory(captured, split.host, full_duplex=full_duplex)
        """Memory for copies on the host; None if the schedule moves no tensor."""
        self.on_host = tuple(number for number, each in enumerate(split.saved) if each.kind in NO_TENSORS)
        """Positions of the saved values that are no tensors."""
        self.forward: Boxed = split.forward.forward if forward is None else forward
        self.backward: Boxed = split.backward.forward if backward is None else backward
        inputs = [captured.inputs[position] for position in split.forward_inputs]
        place = {(each.kind, each.name): number for number, each in enumerate(inputs)}
        results = [captured.results[position] for position in split.forward_results]
        given = [i for i, each in enumerate(results) if each.kind == "output" and each.node is not None]
        tangents = captured.inputs_of("tangent")
        tangent_of = {each.output: number for number, each in enumerate(tangents)}
        self.passed = {
            number: results[i].node
            for number, i in enumerate(given)
            if int(results[i].name) not in tangent_of and of_inputs(captured, results[i].node)
        }
        """Outputs (by their number) that are inputs, parameters or buffers, or views of them. They have no gradient of
        their own; autograd must see their origin."""
        self.outputs = tuple(i for number, i in enumerate(given) if number not in self.passed)
        homes = {i: captured.homes[results[i].node] for i in self.outputs}
        self.alone = frozenset(i for i, own in homes.items() if any(own) and list(homes.values()).count(own) == 1)
        """Outputs (by their position) with memory of their own, which a caller may change in place."""
        self.mutations = tuple(
            (i, next(place[kind, each.name] for kind in ("buffer", "input", "parameter") if (kind, each.name) in place))
            for i, each in enumerate(results)
            if each.kind == "mutation"
        )
        """For each changed buffer or input: its position among the results, and among the inputs."""
        self.num_results = len(results)
        self.tangent_of = tuple(tangent_of.get(int(results[i].name)) for i in self.outputs)
        """For each output: the tangent that is its gradient, or None."""
        self.laid_out = tuple(Layout.of(each.node.meta["val"]) for each in tangents)
        gradient_of = {captured.results[position].name: number for number, position in enumerate(split.gradients)}
        self.gradient_of = tuple(
            gradient_of.get(each.name) if each.kind in ("parameter", "input") else None for each in inputs
        )
        """For each input: its gradient's position among the results of the backward graph."""
        self.spreads = tuple(captured.gradient_spreads.get(each.name) for each in inputs)
        """For each input: the placement of its gradient if that is distributed."""
        self.needs = _dependence(captured, [captured.results[position] for position in split.gradients])
        """For each result of the backward graph: the tangents that it depends on, as bits."""
        self.input_nodes = tuple(each.node for each in inputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return self

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return the outputs that are tensors, connected to autograd."""
        found = _Step.apply(self, *tensors)
        made = list(found if isinstance(found, tuple) else (found,))
        if self.passed:
            parts = map(to_local, tensors, self.spreads)
            values = dict(zip(self.input_nodes, parts, strict=True))
            for number, node in self.passed.items():
                made.insert(number, view_of(node, values))
        return tuple(made)


class _Step(torch.autograd.Function):
    """One step of a :class:`Program`."""

    #: Gradients come in a list that may be emptied, so that each is freed after its last use.
    boxed_grads_call = True

    @staticmethod
    def forward(ctx: Any, program: Program, *tensors: torch.Tensor) -> Any:
        with DisableAutocast(), host_space(program.host) as space:  # the graph contains its casts
            given: list[Any] = [local_part(each) for each in tensors]
            if space is not None:
                given.append(space)
            del space
            results = list(program.forward(given))
        saved = results[program.num_results :]
        ctx.on_host = [saved[number] for number in program.on_host]
        for number in reversed(program.on_host):
            del saved[number]
        for position, target in program.mutations:
            local_part(tensors[target]).copy_(results[position])
        outputs = tuple(  # autograd refuses changes in place of a view that was made here
            results[position].detach() if position in program.alone else results[position]
            for position in program.outputs
        )
        del results
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(value for value, tangent in zip(outputs, program.tangent_of, strict=True) if tangent is None)
        )
        ctx.program = program
        return outputs

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise no_transform()

    @staticmethod
    def backward(ctx: Any, *boxed: Any) -> Any:
        given: list[Any] = boxed[0] if len(boxed) == 1 and isinstance(boxed[0], list) else list(boxed)
        program: Program = ctx.program
        if torch.is_grad_enabled():
            raise ExecutionError(
                "double backward (create_graph=True) through a rematerialized module is not possible; use the original",
                "double-backward",
            )
        values: list[Any] = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()
        held = _host_copies(ctx)
        for number, value in zip(program.on_host, held, strict=True):
            values.insert(number, value)
        space = next((each.space for each in held if isinstance(each, HostCopy)), None)
        del held
        tangents: list[Any] = [None] * len(program.laid_out)
        there = 0
        for number, tangent in enumerate(program.tangent_of):
            if tangent is not None:
                there |= (given[number] is not None) << tangent
                tangents[tangent] = _as_traced(given[number], program.laid_out[tangent])
        given.clear()
        values += tangents
        del tangents
        with DisableAutocast(), abandoned_on_error(space):
            gradients = program.backward(values)
        # as in eager: without a tangent a parameter has no gradient, rather than zeros, which an optimizer would apply
        found = [None if i is None or not program.needs[i] & there else gradients[i] for i in program.gradient_of]
        return (None, *map(_spread, found, program.spreads))


def _spread(gradient: torch.Tensor | None, spread: Spread | None) -> torch.Tensor | None:
    """Return a gradient, from its local part if it is distributed."""
    return gradient if gradient is None or spread is None else spread.leaf(gradient, requires_grad=False)


def no_transform() -> ExecutionError:
    """Return the error for transforms of functions and derivatives in forward mode."""
    return ExecutionError(
        "torch.func transforms (grad, vmap, jvp) and forward-mode derivatives of a rematerialized module are not "
        "possible; use the original",
        "transform",
    )


def _host_copies(ctx: Any) -> list[Any]:
    """Return what the forward pass left on the host; keep it for another backward pass if the graph is retained.

    Raise ExecutionError if it is retained and this pass writes to the host as well, where it would overwrite copies.
    """
    held: list[Any] = ctx.on_host
    if not held:
        return []
    try:
        _ = ctx.saved_tensors
    except RuntimeError:  # they are cleared
        ctx.on_host = []
        return held
    if any(isinstance(each, HostSpace) for each in held):
        raise ExecutionError(
            "retain_graph=True is not possible here: the backward pass moves tensors to the host, in place of others",
            "retained",
        )
    return list(held)


def _dependence(captured: Captured, gradients: Sequence[ResultValue]) -> tuple[int, ...]:
    """Return for each gradient the tangents that it depends on: bit `k` for the `k`-th."""
    needs = {each.node: 1 << k for k, each in enumerate(captured.inputs_of("tangent"))}
    for node in captured.module.graph.nodes:
        for other in node.all_input_nodes:
            needs[node] = needs.get(node, 0) | needs.get(other, 0)
    return tuple(0 if each.node is None else needs.get(each.node, 0) for each in gradients)


def of_inputs(captured: Captured, node: torch.fx.Node | None) -> bool:
    """Return True if a node is an input, parameter or buffer, or a view of one."""
    if node is None or node.op == "get_attr" or any(captured.homes[node]):
        return False
    return node.op == "placeholder" or all(of_inputs(captured, each) for each in node.all_input_nodes)


def view_of(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    """Return the value of a node that is a view of inputs."""
    if node not in known:
        args, kwargs = map_arg((node.args, node.kwargs), lambda each: view_of(each, known))
        assert callable(node.target)
        known[node] = node.target(*args, **kwargs)
    return known[node]


def _as_traced(tangent: torch.Tensor | None, layout: Layout) -> torch.Tensor:
    """Return the gradient with the strides of the backward graph, which views may need; zeros for None."""
    if tangent is None:
        return layout.empty().zero_()
    if tangent.stride() == layout.strides:
        return tangent
    return layout._replace(dtype=tangent.dtype, device=tangent.device).empty().copy_(tangent)
