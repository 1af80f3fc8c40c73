"""``remat rewrite``: rewriting of a graph to lower its least peak."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import INTERRUPTED, OK, load_graph, print_json
from remat.cli.options import Graph, Json, Quiet, SearchSeed, shared, time_option
from remat.io.text import printable, together

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph
    from remat.graphs.rewriting.check import NumericalCheck
    from remat.ordering.rewriting_search import RewritingResult

#: Most rewrites to print.
SHOWN = 12


@dataclass(frozen=True)
class Rewriting:
    """Options of rewrites and their search."""

    rules: str | None = typer.Option(
        None, metavar="NAMES",
        help="zero-copy-concat, zero-copy-split, partial-sums, parallel-parts, separated by commas; default: all.",
    )  # fmt: skip
    min_parts: int = typer.Option(3, help="Fewest parts for partial sums, at least 2.")
    parts: int | None = typer.Option(None, help="Most parts of a split op; default: one for each tensor.")
    accumulator_bytes: int | None = typer.Option(
        None, help="Bytes of an element of partial sums (int32: 4); default: as in the output."
    )
    split_workspace: bool = typer.Option(False, "--split-workspace", help="Split the workspace among the parts.")
    kernels: str | None = typer.Option(
        None,
        metavar="WORD",
        help="in-place: kernels read and write slices and add to their output; whole: they do not. "
        "Default: whole for models of ONNX, TensorFlow Lite, PyTorch and JAX, otherwise in-place.",
    )
    search: bool = typer.Option(False, "--search", help="Make only rewrites that lower the least peak.")
    check: bool = typer.Option(False, "--check", help="Compute both graphs with numpy; an error if they differ.")
    seed: SearchSeed = 0
    time_limit: Annotated[float, time_option("Seconds for the search of orders and rewrites")] = 60.0


@shared()
def command(
    graph: Graph,
    *,
    output: Path = typer.Option(..., "--output", "-o", help="Graph file to write (-: standard output)."),
    wanted: Rewriting,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rewrite GRAPH into an equivalent graph that needs less memory in its best order, and write it in that order.

    Concatenations are read in place, and ops on them are split by their parts; see docs/rewriting.md. The graph needs
    shapes of tensors and attributes of ops: graphs of the zoo, ONNX and TensorFlow Lite models, and captured graphs
    have them.

    Exit code 0: done, also after Ctrl-C or without any rewrite; 2: an error; 130: Ctrl-C during the check, with the
    graph written.
    """
    from remat.cli.saving import Outputs
    from remat.cli.signals import writing
    from remat.deadline import Deadline, OverdueError
    from remat.errors import FormatError
    from remat.graphs.formats.remat_json import graph_to_text
    from remat.graphs.io import MODEL_SUFFIXES, write_graph
    from remat.graphs.rewriting import RewriteOptions, RuleName
    from remat.graphs.rewriting.check import check_numerics
    from remat.interruption import interrupts
    from remat.io.files import check_output, is_standard_stream
    from remat.ordering.rewriting_search import all_rewrites, best_rewriting

    clock, seed = Deadline.after(wanted.time_limit), wanted.seed
    if output.suffix.lower() in MODEL_SUFFIXES:
        raise FormatError(f"{output}: rewritten graphs cannot be written back as models yet; write .json", "suffix")
    check_output(output, inputs=(graph,))
    chosen = tuple(RuleName) if wanted.rules is None else tuple(word.strip() for word in wanted.rules.split(","))
    options = RewriteOptions(
        chosen, wanted.min_parts, wanted.parts, wanted.accumulator_bytes, wanted.split_workspace, wanted.kernels
    )
    loaded = load_graph(graph)

    def report(line: str) -> None:
        if not quiet and sys.stderr.isatty():
            print(f"remat: {line}", file=sys.stderr)

    with interrupts():
        method = best_rewriting if wanted.search else all_rewrites
        result = method(loaded, options, deadline=clock, seed=seed, on_progress=report)
        verified: NumericalCheck | str | None = None
        if wanted.check:
            try:
                verified = check_numerics(loaded, result.after.graph, seed)
            except OverdueError as reason:  # Ctrl-C
                verified = f"not finished: {reason}"
        writing()
        after = result.after.graph
        outputs = Outputs()
        outputs.save(output, partial(write_graph, after), lambda: graph_to_text(after))
        stream = sys.stderr if is_standard_stream(output) else sys.stdout
        if as_json:
            print_json(_facts(loaded, result, verified), stream)
        else:
            for word, text in _lines(loaded, result, verified, search=wanted.search):
                print(f"{word:<11} {printable(text)}".rstrip(), file=stream)
    outputs.leave(INTERRUPTED if isinstance(verified, str) else OK)


def _lines(
    graph: ComputeGraph, result: RewritingResult, verified: NumericalCheck | str | None, *, search: bool
) -> list[tuple[str, str]]:
    before, after = result.before, result.after
    lines = [("graph", f"{graph.name}: {len(graph.ops)} ops, {len(after.graph.ops)} after rewriting")]
    if not after.rewrites:
        none = "none that lowers the peak" if search else f"none is possible; {_obstacle(graph)}"
        lines.append(("rewrites", none))
    else:
        counts = Counter(str(rewrite.rule) for rewrite in after.rewrites)
        lines.append(("rewrites", ", ".join(f"{count} {rule}" for rule, count in counts.items())))
        lines += [("", str(rewrite)) for rewrite in after.rewrites[:SHOWN]]
        if len(after.rewrites) > SHOWN:
            lines.append(("", f"and {len(after.rewrites) - SHOWN} more"))
    change = f" ({100 * (after.peak / before.peak - 1):+.4g} %)" if before.peak else ""
    lines.append(("peak", f"{before.peak:,} -> {after.peak:,} bytes{change}, each in the best order found"))
    lines.append(("bound", f"{before.bound:,} -> {after.bound:,} bytes for any order{_proof(result)}"))
    cost, new = graph.base_cost, after.graph.base_cost
    lines.append(("cost", f"{new:,} {graph.cost_unit}" + (", as before" if cost == new else f", {cost:,} before")))
    if search:
        least = (
            "no choice of these rewrites needs less" if result.proved else "another choice of rewrites may need less"
        )
        lines.append(("search", f"{result.tried} choices tried; {least}{'' if result.complete else '; time was over'}"))
    if verified is not None:
        lines.append(("check", str(verified)))
    return lines


def _obstacle(graph: ComputeGraph) -> str:
    """Return why no rewrite of a graph is possible."""
    from remat.graphs.rewriting.draft import Draft
    from remat.graphs.rewriting.kinds import Kind

    if not graph.meta.get("shapes"):
        return "the graph has no shapes"
    draft = Draft(graph)
    concats = [op for op in graph.ops if draft.kind(op.name) is Kind.CONCAT]
    if not concats:
        return "the graph has no concatenation" + " that is plain enough" * draft.described
    readers = [draft.ops[reader] for op in concats for tensor in op.outputs for reader in draft.readers(tensor)]
    opaque = dict.fromkeys(op.type for op in readers if draft.kind(op.name) is Kind.OPAQUE)
    if opaque:
        return f"concatenations are read by ops that are not described: {together(list(opaque))}"
    return "no op that reads a concatenation can be split by its parts"


def _proof(result: RewritingResult) -> str:
    before, after = result.before.proved, result.after.proved
    return ": both proved least" if before and after else ": the second proved least" if after else ""


def _facts(graph: ComputeGraph, result: RewritingResult, verified: NumericalCheck | str | None) -> dict[str, Any]:
    before, after = result.before, result.after
    return {
        "graph": graph.name,
        "graph_digest": graph.digest,
        "rewritten": after.graph.name,
        "rewritten_digest": after.graph.digest,
        "ops": [len(graph.ops), len(after.graph.ops)],
        "cost": [graph.base_cost, after.graph.base_cost],
        "peak": [before.peak, after.peak],
        "bound": [before.bound, after.bound],
        "bound_of_all_choices": result.bound,
        "tried": result.tried,
        "complete": result.complete,
        "rewrites": [rewrite.as_dict() for rewrite in after.rewrites],
        "check": None
        if verified is None or isinstance(verified, str)
        else {
            "difference": verified.difference,
            "tensors": verified.tensors,
            "factor": verified.factor,
            "trusted": list(verified.trusted),
        },
    }
