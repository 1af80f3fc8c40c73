"""Forward and backward pass of a training step in the order of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import numpy as jnp

from remat.graphs import ComputeGraph
from remat.jax.gates import gated, token
from remat.jax.inlining import base_of
from remat.jax.running import Running
from remat.jax.segments import Segment, segments
from remat.jax.step import Step, tensors_of
from remat.schedule import Schedule

#: Ops that XLA for CPUs rewrites into parts that do not need all of their inputs. Without a gate it runs those parts as
#: soon as it can, and holds what they write: the positions of the maxima of a pooling, from the forward pass on.
APART = frozenset({"select_and_scatter_add"})


class Program:
    """The two passes of a step, as functions of flat arrays that JAX can trace.

    Attributes
    ----------
    saved : tuple of str
        Tensors that the backward pass reads from the forward pass.
    """

    def __init__(self, step: Step, schedule: Schedule) -> None:
        graph = step.captured.graph
        self.step = step
        computes = [graph.op_index[name] for name in schedule.computes()]
        late = step.late
        cut = next((place for place, op in enumerate(computes) if graph.ops[op].name in late), len(computes))
        results, count = step.results(), step.output.num_leaves
        self._early, self._gradients = results[:count], results[count:]
        apart = {number for number, op in enumerate(graph.ops) if op.type in APART}
        parts = segments(graph, computes, tensors_of(read for read, _ in results), cut, apart)
        self._forward, self._backward = parts
        self.saved = _read_before_written(graph, self._backward, tensors_of(read for read, _ in self._gradients))

    def forward(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the leaves of loss and auxiliary output, and the saved values."""
        running = Running.start(self.step.captured, leaves)
        _run(running, self._forward, jnp.bool_(True))
        outputs = [running.value(read, aval) for read, aval in self._early]
        return outputs, [running.held[tensor] for tensor in self.saved]

    def backward(self, leaves: Sequence[Any], loss: Any, saved: Sequence[Any], cotangent: Any) -> list[Any]:
        """Return the gradients of the trained leaves."""
        running = Running.start(self.step.captured, [*leaves, cotangent])
        running.held.update(zip(self.saved, saved, strict=True))
        _run(running, self._backward, token(jnp.bool_(True), [loss]))
        return [running.value(read, aval) for read, aval in self._gradients]


def _run(running: Running, parts: Sequence[Segment], before: Any) -> None:
    """Run segments in turn; gated ones start only after the computes before them."""
    graph, fresh = running.captured.graph, list[str]()
    for segment in parts:
        if segment.gated:
            before = _run_gated(running, segment, fresh, before)
        else:
            for op in segment.ops:
                running.compute(op)
            read = {tensor for op in segment.ops for tensor in graph.ops[op].inputs}
            fresh = [name for name in segment.outputs(graph) if name not in read]
        running.held = {name: value for name, value in running.held.items() if name in segment.live}


def _run_gated(running: Running, segment: Segment, fresh: Sequence[str], before: Any) -> Any:
    """Run a segment after the values of `fresh`, which no op has read yet; return a token of the results."""
    captured = running.captured
    names, outputs = segment.inputs(captured.graph), segment.outputs(captured.graph)
    read = (base_of(read) for op in segment.ops for read in captured.keys[op][2])
    numbers = tuple(dict.fromkeys(each for each in read if isinstance(each, int)))
    before = token(before, [running.held[name] for name in fresh])
    kept = [name for name in fresh if name in segment.live and name not in outputs and name not in names]

    def function(inputs: Any) -> list[Any]:
        held, constants = inputs
        inside = Running(captured, dict(zip(numbers, constants, strict=True)), dict(zip(names, held, strict=True)))
        for op in segment.ops:
            inside.compute(op)
        return [inside.held[name] for name in outputs]

    given = [running.held[name] for name in names], [running.constants[number] for number in numbers]
    made, same, after = gated(function, given, [running.held[name] for name in kept], before)
    running.held.update(zip((*outputs, *kept), (*made, *same), strict=True))
    return after


def _read_before_written(graph: ComputeGraph, parts: Sequence[Segment], results: set[str]) -> tuple[str, ...]:
    """Return the tensors that segments read before they compute them, and results that they do not compute."""
    written: set[str] = set()
    read: dict[str, None] = {}
    for segment in parts:
        read.update((name, None) for name in segment.inputs(graph) if name not in written)
        written.update(tensor for op in segment.ops for tensor in graph.ops[op].outputs)
    return (*read, *sorted(results - written - set(read)))
