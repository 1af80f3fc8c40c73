"""Reader for XLA's HLO text: the graph of the entry computation, without XLA's own rematerialisation.

XLA's text of a compiled program (``compiled.as_text()`` in JAX, files of ``--xla_dump_to``) lists the instructions in
execution order. Instructions that XLA's rematerialisation repeats are clones, named ``add.remat``, ``add.remat2`` or
``add.remat.1.remat``. A clone that computes the same as its base is the same op of this graph. The order with the
clones as recomputations is a schedule: :mod:`remat.schedule.formats.hlo`.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat.errors import GraphError
from remat.graphs.builder import GraphBuilder
from remat.graphs.formats.base import GraphFormat
from remat.graphs.formats.hlo.lowering import Lowered, ModuleLowering
from remat.graphs.formats.hlo.scopes import module_path
from remat.graphs.formats.hlo.text import Module, read_module
from remat.graphs.graph import ComputeGraph
from remat.io.formats import Source, reading
from remat.runtime.text import together

#: Instructions that XLA's buffer assignment lets write over an operand of the same bytes. Source: XLA,
#: ``HloDataflowAnalysis::CanShareOperandBufferWithUser`` (elementwise instructions). Fusions are not included.
IN_PLACE = frozenset({
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "cosine", "divide", "erf", "exponential",
    "exponential-minus-one", "floor", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate",
    "not", "or", "power", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left",
    "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor",
})  # fmt: skip
_ALIASES = "input_output_alias="


@dataclass(frozen=True, eq=False)
class HloProgram:
    """Content of a module."""

    graph: ComputeGraph
    """Each op once, in the order of its first execution."""
    steps: tuple[str, ...]
    """Ops in execution order; clones appear as their base."""
    is_scheduled: bool
    """True when the text declares its order to be the execution order."""
    remarks: tuple[str, ...]


@reading()
def program_from_text(text: str, *, in_place: bool = False) -> HloProgram:
    """Return the program of the entry computation of an HLO module.

    Views (tuples and their elements, bitcasts) are not ops; parameters and constants are constant memory. A ``while``,
    ``conditional``, ``call`` or fusion is one op. Its cost includes all executions of the computations it calls; their
    memory beyond operands and results is its workspace. Costs are floating-point operations.

    With `in_place`, elementwise instructions may write in place of an operand, as XLA's buffer assignment does.

    Raise FormatError naming the line. Raise GraphError if the module computes nothing.

    Examples
    --------
    >>> program = program_from_text('''HloModule tiny, is_scheduled=true
    ... ENTRY main {
    ...   x = f32[4] parameter(0)
    ...   y = f32[4] negate(x)
    ...   z = f32[4] exponential(y)
    ...   y.remat = f32[4] negate(x)
    ...   ROOT w = f32[4] add(y.remat, z)
    ... }''')
    >>> program.steps, program.graph.constant_memory
    (('y', 'z', 'y', 'w'), 16)
    """
    module = read_module(text)
    lowering = ModuleLowering(module)
    done = lowering.entry()
    remarks = [*done.remarks, *dict.fromkeys(lowering.costs.remarks)]
    if not module.is_scheduled:
        remarks.append("the module is not scheduled: the order of its text need not be that of execution")
    if _ALIASES in module.header:
        remarks.append("results that take over the memory of donated parameters are counted apart from them")
    hidden = sum(called.clones for called in lowering.inner())
    if hidden:
        remarks.append(f"{hidden} recomputations inside of computations that are called are part of their ops")
    if done.stale:
        remarks.append(f"{done.stale} values are read of which there is a newer copy; the two copies are counted once")
    graph = _graph(module, done, in_place)
    names = [op.name for op in done.ops]
    return HloProgram(graph, tuple(names[step] for step in done.steps), module.is_scheduled, tuple(remarks))


def _graph(module: Module, done: Lowered, in_place: bool) -> ComputeGraph:
    if not done.ops:
        raise GraphError(f"module {module.name!r} computes nothing")
    metadata = {op.name: said for op in done.ops if (said := op.instruction.op_name)}
    modules = {name: path for name, said in metadata.items() if (path := module_path(said))}
    builder = GraphBuilder(
        module.name,
        cost_unit="flop",
        source="XLA HLO",
        constant_memory=sum(done.constant_bytes.values()),
        meta={
            "modules": modules,
            "op_names": metadata,
            "lines": {op.name: op.instruction.line for op in done.ops},
            "constant_bytes": done.constant_bytes,
        },
    )
    for name, size in done.tensors:
        builder.tensor(name, size)
    names = [name for name, _ in done.tensors]
    sizes = [size for _, size in done.tensors]
    for op in done.ops:
        shares = in_place and op.instruction.opcode in IN_PLACE and len(op.outputs) == 1 and sizes[op.outputs[0]]
        places = [tensor for tensor in op.inputs if shares and sizes[tensor] == sizes[op.outputs[0]]]
        builder.op(
            op.name,
            inputs=[names[tensor] for tensor in op.inputs],
            outputs=[names[tensor] for tensor in op.outputs],
            cost=op.cost,
            workspace=op.workspace,
            type=op.instruction.opcode,
            recomputable=op.recomputable,
            in_place=[(names[op.outputs[0]], names[tensor]) for tensor in places],
        )
    builder.output(*(names[tensor] for tensor in done.held(done.results)))
    return builder.build([op.name for op in done.ops])


def recognizes(source: Source) -> bool:
    """Return True if a source is HLO text."""
    return source.data[:4096].lstrip().startswith(b"HloModule")


def _read(source: Source) -> ComputeGraph:
    program = program_from_text(source.text, **source.options)
    if program.remarks:
        source.remarks.append(together(program.remarks))
    return program.graph


FORMAT = GraphFormat(
    name="hlo",
    description="text of an XLA HLO module, as compilers and dumps print it",
    recognizes=recognizes,
    read=_read,
    options=("in_place",),
)
