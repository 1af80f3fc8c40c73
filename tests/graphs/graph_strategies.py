"""Hypothesis strategies for graphs: several outputs per op, accumulation buffers, workspaces, odd names."""

from hypothesis import strategies as st

from remat.graphs import ComputeGraph, Op, Tensor
from remat.graphs.graph import COST_UNITS, PHASES

NAMES = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 8) -> ComputeGraph:
    """Draw a valid graph, with ops and tensors listed in any order."""
    counts = st.integers(0, 50) | st.integers(0, 2**56)
    op_names = draw(st.lists(NAMES, min_size=1, max_size=max_ops, unique=True))
    given = draw(st.lists(NAMES, max_size=2, unique=True))
    tensor_names = given + draw(st.lists(NAMES.filter(lambda n: n not in given), max_size=max_ops, unique=True))
    written = tensor_names[len(given) :]
    # Writers of a tensor are consecutive in the order; everything read must be complete by then.
    outputs: list[list[str]] = [[] for _ in op_names]
    complete: list[list[str]] = [[] for _ in op_names]
    for tensor in written:
        first = draw(st.integers(0, len(op_names) - 1))
        last = draw(st.integers(first, min(first + 2, len(op_names) - 1)))
        for op in range(first, last + 1):
            outputs[op].append(tensor)
        for op in range(last + 1, len(op_names)):
            complete[op].append(tensor)
    ops = []
    for name, out, ready in zip(op_names, outputs, complete, strict=True):
        readable = given + ready
        reads = draw(st.lists(st.sampled_from(readable), unique=True, max_size=4)) if readable else []
        ops.append(
            Op(
                name, tuple(reads), tuple(out), draw(counts), draw(counts), draw(st.text(max_size=4)),
                draw(st.sampled_from(PHASES)), draw(st.booleans()),
            )
        )  # fmt: skip
    return ComputeGraph(
        name=draw(st.just("") | NAMES),
        tensors=draw(st.permutations([Tensor(t, draw(counts)) for t in tensor_names])),
        ops=draw(st.permutations(ops)),
        inputs=given,
        outputs=draw(st.lists(st.sampled_from(tensor_names), unique=True, max_size=2)) if tensor_names else [],
        order=op_names,
        constant_memory=draw(counts),
        cost_unit=draw(st.sampled_from(COST_UNITS)),
        source=draw(st.text(max_size=8)),
        meta=draw(st.dictionaries(st.text(max_size=5), JSON, max_size=3)),
    )
