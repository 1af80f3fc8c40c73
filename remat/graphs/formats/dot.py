"""Graphviz DOT writer."""

from __future__ import annotations

from remat.graphs.formats.base import GraphFormat
from remat.graphs.graph import ComputeGraph
from remat.runtime.text import printable

_PHASE_FILL = {"": "#f4f4f4", "forward": "#e3edf7", "loss": "#f7efd9", "backward": "#f6e4e1"}


def graph_to_dot(graph: ComputeGraph) -> str:
    r"""Return the graph in DOT: ops are boxes with cost and bytes, coloured by phase.

    A tensor that is the only output of its only writer is part of that op's box. All others (graph inputs, one of
    several outputs, accumulation buffers) are ellipses. Graph outputs have a double border. Workspaces follow the bytes
    as ``+ n``. A dashed edge leads from an input to the op that may write an output in its place.

    Examples
    --------
    >>> from remat.graphs import Op, Tensor
    >>> print(graph_to_dot(ComputeGraph('say "hi"', [Tensor("x", 4)], [Op("a", outputs=("x",), cost=1)])))
    digraph "say \"hi\"" {
      node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10];
      edge [color="#777777", arrowsize=0.6];
      o0 [label="a\ncost 1\n4 B", fillcolor="#f4f4f4"];
    }
    <BLANKLINE>
    """
    arrays = graph.arrays
    written = arrays.op_outputs.lists()
    writers = arrays.producers.lists()
    inside = {ts[0]: op for op, ts in enumerate(written) if len(ts) == 1 and len(writers[ts[0]]) == 1}
    is_output = arrays.is_output.tolist()
    unit = "" if graph.cost_unit == "none" else f" {graph.cost_unit}"
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10];',
        '  edge [color="#777777", arrowsize=0.6];',
    ]
    for number, op in enumerate(graph.ops):
        own = [t for t in written[number] if inside.get(t) == number]
        memory = " + ".join(
            [f"{graph.tensors[t].size:,} B" for t in own] + [f"{op.workspace:,} B"] * bool(op.workspace)
        )
        label = _label(op.name, *[op.type] * bool(op.type), f"cost {op.cost:,}{unit}", *[memory] * bool(memory))
        border = ", peripheries=2" if any(is_output[t] for t in own) else ""
        lines.append(f'  o{number} [label={label}, fillcolor="{_PHASE_FILL[op.phase]}"{border}];')
    for number, tensor in enumerate(graph.tensors):
        if number not in inside:
            border = ", peripheries=2" if is_output[number] else ""
            label = _label(tensor.name, f"{tensor.size:,} B")
            lines.append(f'  t{number} [label={label}, shape=ellipse, fillcolor="white"{border}];')
    for number, tensors in enumerate(written):
        lines.extend(f"  o{number} -> t{t};" for t in tensors if t not in inside)
    for number, tensors in enumerate(arrays.op_inputs.lists()):
        places = {source for _, source in graph.ops[number].in_place}
        for t in tensors:
            style = " [style=dashed]" if graph.tensor_names[t] in places else ""
            lines.append(f"  {f'o{inside[t]}' if t in inside else f't{t}'} -> o{number}{style};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    r"""Return a DOT string; entities such as ``&lt;`` and escapes such as ``\\N`` in `text` stay literal."""
    return '"' + printable(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') + '"'


def _label(*rows: str) -> str:
    return '"' + "\\n".join(_quoted(row)[1:-1] for row in rows) + '"'


FORMAT = GraphFormat(name="dot", description="Graphviz DOT (write only)", suffixes=(".dot", ".gv"), write=graph_to_dot)
