"""``remat rewrite``: rewriting of a graph to lower its least peak."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import load_graph, print_json, print_rows
from remat.cli.options import Graph, Json, Quiet, SearchSeed, shared, size_option, time_option
from remat.cli.terminal import INTERRUPTED, OK
from remat.runtime.text import together

if TYPE_CHECKING:
    from remat.deploy import Comparison
    from remat.deploy.runtimes import ModelFile
    from remat.graphs import ComputeGraph
    from remat.graphs.rewriting.check import NumericalCheck
    from remat.ordering.rewriting_search import RewritingResult

#: Most rewrites to print.
SHOWN = 12


@dataclass(frozen=True)
class Rewriting:
    """Options of rewrites and their search."""

    rules: str | None = typer.Option(
        None, metavar="RULE[,RULE...]",
        help="zero-copy-concat, zero-copy-split, partial-sums, parallel-parts, separated by commas; default: all.",
    )  # fmt: skip
    min_parts: int = typer.Option(3, metavar="N", help="Fewest parts for partial sums, at least 2.")
    parts: int | None = typer.Option(None, metavar="N", help="Most parts of a split op; default: one for each tensor.")
    accumulator_bytes: Annotated[
        int | None,
        size_option("Size of an element of partial sums, 4 of int32; default: as in the output", "--accumulator-bytes"),
    ] = None
    split_workspace: bool = typer.Option(False, "--split-workspace", help="Split the workspace among the parts.")
    kernels: str | None = typer.Option(
        None,
        metavar="in-place|whole",
        help="in-place: kernels read and write slices and add to their output; whole: they do not. "
        "Default: whole for models of ONNX, TensorFlow Lite, PyTorch and JAX, otherwise in-place.",
    )
    search: bool = typer.Option(False, "--search", help="Make only rewrites that lower the least peak.")
    check: bool = typer.Option(
        False, "--check", help="Compute both graphs with numpy, and run a written model; an error if they differ."
    )
    seed: SearchSeed = 0
    time_limit: Annotated[float, time_option("Time for the search of orders and rewrites")] = 60.0


@shared()
def command(
    graph: Graph,
    *,
    output: Path = typer.Option(
        ..., "--output", "-o", metavar="FILE", help="Graph file to write (-: standard output), or a model."
    ),
    wanted: Rewriting,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rewrite GRAPH into an equivalent graph that needs less memory in its best order, and write it in that order.

    Concatenations are read in place, and ops on them are split by their parts; see docs/rewriting.md. The graph needs
    shapes of tensors and attributes of ops: graphs of the zoo, ONNX and TensorFlow Lite models, and captured graphs
    have them. A rewritten model has ops for parts, with slices of weights.

    Exit code 0: done, also after Ctrl-C or without any rewrite; 2: an error; 130: Ctrl-C during the check, with the
    graph written.

    Examples
    --------
    remat rewrite swiftnet-c -o rewritten.json --search
    """
    from remat.cli.saving import Outputs
    from remat.cli.signals import writing
    from remat.graphs.formats.remat_json import graph_to_text
    from remat.graphs.io import MODEL_SUFFIXES, model_suffixes, write_graph
    from remat.graphs.rewriting import RewriteOptions, RuleName
    from remat.graphs.rewriting.check import check_numerics
    from remat.io.files import check_output, is_standard_stream, write_atomic
    from remat.ordering.rewriting_search import all_rewrites, best_rewriting
    from remat.runtime.deadline import Deadline, OverdueError
    from remat.runtime.interruption import interrupts

    clock, seed = Deadline.after(wanted.time_limit), wanted.seed
    is_model = output.suffix.lower() in MODEL_SUFFIXES
    check_output(output, (graph,), (".json", *model_suffixes(graph)) if is_model else ())
    chosen = tuple(RuleName) if wanted.rules is None else tuple(word.strip() for word in wanted.rules.split(","))
    options = RewriteOptions(
        chosen, wanted.min_parts, wanted.parts, wanted.accumulator_bytes, wanted.split_workspace, wanted.kernels
    )
    file = _model_file(graph, check=wanted.check) if is_model else None
    loaded = load_graph(graph) if file is None else file.graph

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
        after = result.after.graph
        made, compared = (None, None) if file is None else _model(file, after, check=wanted.check)
        writing()
        outputs = Outputs()
        write = partial(write_graph, after) if made is None else partial(write_atomic, content=made.data)
        outputs.save(output, write, lambda: graph_to_text(after))
        stream = sys.stderr if is_standard_stream(output) else sys.stdout
        if as_json:
            print_json(_facts(loaded, result, verified) | _model_facts(made, compared), stream)
        else:
            lines = _lines(loaded, result, verified, search=wanted.search) + _model_lines(made, compared, result)
            print_rows(lines, stream, least=11)
    outputs.leave(INTERRUPTED if isinstance(verified, str) else OK)


def _model_file(path: str, *, check: bool) -> ModelFile:
    """Return the model; raise before the search where it cannot be rewritten or compared."""
    from remat.deploy import comparing_runtime, read_rewritable

    file = read_rewritable(path)
    if check:
        comparing_runtime(file)
    return file


def _model(file: ModelFile, after: ComputeGraph, *, check: bool) -> tuple[ModelFile, Comparison | None]:
    """Return the rewritten model, compared with the model in `file` on request."""
    from remat.deploy import compare_outputs, rewritten

    made = rewritten(file, after)
    return made, compare_outputs(file, made) if check else None


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
    proof = ": both proved least" if before.proved else ": the second proved least"
    lines.append(("bound", f"{before.bound:,} -> {after.bound:,} bytes for any order{proof if after.proved else ''}"))
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


def _model_lines(made: ModelFile | None, compared: Comparison | None, result: RewritingResult) -> list[tuple[str, str]]:
    if made is None:
        return []
    peak = made.graph.reference_peak
    more = "; more than without rewriting" if peak > result.before.peak else ""
    size = f"{len(made.operators)} ops, {peak:,} bytes in their order; an addition holds both terms and the sum"
    lines = [("model", size + more)]
    return lines if compared is None else [*lines, ("", str(compared))]


def _model_facts(made: ModelFile | None, compared: Comparison | None) -> dict[str, Any]:
    if made is None:
        return {}
    facts = None if compared is None else asdict(compared)
    return {"model": {"nodes": len(made.operators), "peak": made.graph.reference_peak, "check": facts}}


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
        "check": None if verified is None or isinstance(verified, str) else asdict(verified),
    }
