"""Route "make_fx": records a run, without Dynamo; also for a forward pass alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx

from remat.errors import CaptureError
from remat.torch.capture.fakes import FakeWorld
from remat.torch.capture.traced import opaque, storage_bytes
from remat.torch.captured import Input, ResultValue, Traced
from remat.torch.distributed import Spread, local_part, tangent_of
from remat.torch.modes import kept_attributes
from remat.torch.private import (
    DisableAutocast,
    OpOverload,
    enable_python_dispatcher,
    pytree,
    setup_stacktrace_preservation_hooks,
)

#: Message of torch.utils.checkpoint when its backward pass must be one of ``backward()``.
_REENTRANT = "incompatible with .grad()"
_PLAIN = bool | int | float | complex | str | bytes | torch.dtype | torch.device | torch.Size | Enum
#: Metadata that backward nodes copy from the forward node with the same autograd node.
_MIRRORED = {"nn_module_stack": "fwd_nn_module_stack", "stack_trace": "stack_trace"}


@dataclass(eq=False)
class _Recorder:
    """The step as a function of flat tensors; a run records its results."""

    world: FakeWorld
    training: bool
    names: list[tuple[str, str]]
    leaves: list[torch.Tensor]
    """Parameters, buffers and arguments of :attr:`names`, fake; some may be distributed."""
    tangents: int = 0
    accumulate: bool = False
    results: list[ResultValue] = field(default_factory=list)
    spec: Any = None

    def outputs(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Return the leaves of the module's return value, for the tensors of :attr:`names`."""
        given = dict(zip(self.names, tensors, strict=False))
        leaves, spec = pytree.tree_flatten((self.world.args, dict(self.world.kwargs)))
        leaves = [given.get(("input", str(k)), leaf) for k, leaf in enumerate(leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        found, self.spec = pytree.tree_flatten(self.world.module(*args, **kwargs))
        return list(found)

    def step(self, *parts: torch.Tensor) -> list[torch.Tensor]:
        """Return outputs of the forward pass, then gradients; the last tensors are the tangents.

        Distributed tensors come and are returned as their local parts.
        """
        tensors = [*map(_like, self.leaves, parts), *parts[len(self.leaves) :]]
        state = {name: t for (kind, name), t in zip(self.names, tensors, strict=False) if kind != "input"}
        with self.world.swapped(state), _module_stacks(self.world.module):
            leaves = self.outputs(tensors)
            _check_constants(leaves)
            # an output that is a parameter or an input stays as it is: a caller's gradient must reach it
            found = [leaf.detach() if isinstance(leaf, torch.Tensor) and leaf.grad_fn else leaf for leaf in leaves]
            self.results = [
                ResultValue(None, "output", str(k), None if isinstance(leaf, torch.Tensor) else leaf, Spread.of(leaf))
                for k, leaf in enumerate(leaves)
            ]
            values = [leaf for leaf in found if isinstance(leaf, torch.Tensor)]
            if self.training:
                values += self._gradients(leaves, tensors)
        return [local_part(each) for each in values]

    def _gradients(self, leaves: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        roots = differentiable(leaves)
        if not roots:
            return []
        wanted = [
            (name, tensor) for (_, name), tensor in zip(self.names, tensors, strict=False) if tensor.requires_grad
        ]
        fx_traceback.current_meta.update(partitioner_tag="is_backward")
        setup_stacktrace_preservation_hooks([root.grad_fn for root in roots if root.grad_fn is not None])
        given = map(tangent_of, roots, tensors[len(tensors) - self.tangents :])
        with DisableAutocast():  # as in a backward pass after the autocast block
            found = _gradients_of(roots, [tensor for _, tensor in wanted], list(given), self.accumulate)
        self.results += [
            ResultValue(None, "gradient", name, None if each is None else ..., Spread.of(each))
            for (name, _), each in zip(wanted, found, strict=True)
        ]
        return [each for each in found if each is not None]


def trace_make_fx(world: FakeWorld, *, training: bool = True) -> Traced:
    """Record the forward pass, or both passes, of a module.

    Raise Exception from the module or torch, if the module cannot be recorded.
    """
    with kept_attributes(world.module):  # attributes that forward sets are fake
        try:
            return _traced(world, training, accumulate=False)
        except RuntimeError as error:
            if _REENTRANT not in str(error):
                raise
        return _traced(world, training, accumulate=True)


def _traced(world: FakeWorld, training: bool, *, accumulate: bool) -> Traced:
    leaves = pytree.tree_leaves((world.args, dict(world.kwargs)))
    named = [("parameter", name, tensor) for name, tensor in world.parameters.items()]
    named += [("buffer", name, tensor) for name, tensor in world.buffers.items()]
    named += [("input", str(k), leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    given = [tensor for *_, tensor in named]
    recorder = _Recorder(world, training, [(kind, name) for kind, name, _ in named], given, accumulate=accumulate)
    tensors = [local_part(tensor) for tensor in given]
    positions: list[int] = []
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(training))
        stack.enter_context(fx_traceback.preserve_node_meta())
        if training:
            with world.mode, world.swapped():
                outputs = recorder.outputs(given)
            torch.clear_autocast_cache()  # otherwise the trace misses cached casts
            roots = differentiable(outputs)
            positions = [next(k for k, leaf in enumerate(outputs) if leaf is root) for root in roots]
            with world.mode:
                tensors += [
                    torch.empty_like(local_part(root), memory_format=torch.contiguous_format) for root in roots
                ]  # fmt: skip
            recorder.tangents = len(roots)
            outputs = roots = []
            # as in torch.compile: batch norm then declares that it changes its statistics
            stack.enter_context(enable_python_dispatcher())
        trace = _make_fx(recorder.step, record_stack_traces=True)
        recorded = trace(*tensors)
    _mirror(recorded.graph)
    functional = _functional(recorded, [tensor.detach() for tensor in tensors])
    known: list[tuple[str, str, int | None, Spread | None]] = [
        (kind, name, None, Spread.of(tensor)) for kind, name, tensor in named
    ]
    known += [("tangent", str(k), k, None) for k in positions]
    inputs = [
        Input(node, kind, name, storage_bytes(node.meta.get("val")), output, spread)
        for (kind, name, output, spread), node in zip(known, functional.graph.find_nodes(op="placeholder"), strict=True)
    ]
    return Traced(
        module=functional,
        inputs=tuple(inputs),
        results=_results(functional, recorder.results, inputs),
        outputs_spec=recorder.spec,
        route="make_fx",
    )


def _like(leaf: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a step as its module receives it: a distributed one from its local part."""
    spread = Spread.of(leaf)
    return part if spread is None else spread.leaf(part, requires_grad=leaf.requires_grad)


def differentiable(leaves: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors that have a gradient, each once."""
    roots: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None and all(leaf is not root for root in roots):
            roots.append(leaf)
    return roots


def _gradients_of(
    roots: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], given: Sequence[torch.Tensor], accumulate: bool
) -> list[torch.Tensor | None]:
    """Return the gradients of `wanted`; if `accumulate`, as ``backward()`` leaves them in ``.grad``."""
    if not accumulate:
        return list(torch.autograd.grad(roots, wanted, given, allow_unused=True))
    torch.autograd.backward(roots, given)
    found = [each.grad for each in wanted]
    for each in wanted:
        each.grad = None
    return found


def _check_constants(leaves: Sequence[Any]) -> None:
    """Refuse outputs with hidden tensors: outputs other than tensors become constants of the step."""
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor | _PLAIN) and leaf is not None:
            raise CaptureError(opaque(type(leaf).__name__, number), "opaque-output")


def _make_fx(function: Callable[..., Any], **options: Any) -> Callable[..., torch.fx.GraphModule]:
    traced: Callable[..., torch.fx.GraphModule] = make_fx(
        function, tracing_mode="fake", _allow_non_fake_inputs=True, **options
    )
    return traced


def _functional(recorded: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """Return the graph without changes in place, except of placeholders at the end, and without dead code."""
    if not any(_mutates(node) for node in recorded.graph.nodes):
        recorded.graph.eliminate_dead_code()
        return recorded

    def run(*flat: torch.Tensor) -> Any:
        return torch.fx.Interpreter(recorded).run(*flat)

    with torch.no_grad(), DisableAutocast(), fx_traceback.preserve_node_meta():
        module = _make_fx(torch.func.functionalize(run, remove="mutations"))(*tensors)
    module.graph.eliminate_dead_code()
    return module


def _mutates(node: torch.fx.Node) -> bool:
    """Return True unless a node is known to change no tensor in place."""
    return node.op == "call_function" and not (
        node.target is operator.getitem or (isinstance(node.target, OpOverload) and not node.target._schema.is_mutable)
    )


@contextmanager
def _module_stacks(module: torch.nn.Module) -> Iterator[None]:
    """Store the stack of running modules in nodes recorded meanwhile."""
    stack: list[str] = []

    def tell() -> None:
        if stack:
            fx_traceback.current_meta["nn_module_stack"] = {path: (path, "") for path in stack}
        else:
            fx_traceback.current_meta.pop("nn_module_stack", None)

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            stack.append(path)
            tell()

        return hook

    def leave(*_: Any) -> None:
        stack.pop()
        tell()

    with ExitStack() as handles:
        for path, part in module.named_modules():
            if path:
                handles.callback(part.register_forward_pre_hook(enter(path), prepend=True).remove)
                handles.callback(part.register_forward_hook(leave).remove)
        yield


def _mirror(graph: torch.fx.Graph) -> None:
    """Give backward nodes the module and the line of the forward node with the same autograd number."""
    forward: dict[int, torch.fx.Node] = {}
    for node in graph.nodes:
        number = node.meta.get("seq_nr")
        if node.meta.get("partitioner_tag") != "is_backward":
            if number is not None and node.op == "call_function":
                forward.setdefault(number, node)  # the first: later ones made no autograd node
            continue
        node.meta.pop("nn_module_stack", None)
        node.stack_trace = None
        if number in forward:
            known: Mapping[str, Any] = forward[number].meta
            # only metadata that the second recording copies
            node.meta.update({name: known[name] for name in _MIRRORED if name in known})


def _results(
    module: torch.fx.GraphModule, wanted: Sequence[ResultValue], inputs: Sequence[Input]
) -> tuple[ResultValue, ...]:
    """Return results with their nodes; new values of buffers and inputs become outputs of the graph."""
    graph = module.graph
    output = graph.output_node()
    nodes = iter(list(output.args[0]))
    results = []
    for each in wanted:
        there = each.value is None if each.kind == "output" else each.value is not None
        node, value = (next(nodes), None) if there else (None, each.value)
        results.append(replace(each, node=node, value=value))
    names = {each.node: each.name for each in inputs}
    for node in list(graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)):
        target, source = node.args[:2]
        if target not in names or node.users:
            raise CaptureError(
                f"node {node.name!r} changes {target} in place, which is no parameter, buffer or argument"
            )
        results.insert(0, ResultValue(source, "mutation", names[target]))
        graph.erase_node(node)
    output.args = ([each.node for each in results],)
    module.recompile()
    return tuple(results)
