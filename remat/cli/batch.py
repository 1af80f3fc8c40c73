"""``remat batch``: largest batch that fits a memory within one extra forward pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.compare import methods_of
from remat.cli.completion import complete_graph
from remat.cli.options import FILE, KILO, TABLES, Given, Methods, Tables, shared, size_option
from remat.cli.saving import Outputs
from remat.cli.screen import memory
from remat.cli.signals import writing
from remat.cli.stored import StoreUrl, print_stored, stored_runs
from remat.cli.terminal import INTERRUPTED, NO, OK
from remat.errors import FormatError
from remat.io.files import check_output, check_outputs, exists
from remat.runtime.interruption import interrupts
from remat.runtime.text import json_text

if TYPE_CHECKING:
    from remat.cli.reporter import Reporter
    from remat.config.sections import ProblemSection
    from remat.experiments.max_batch_result import BatchResult, Probe
    from remat.graphs import ComputeGraph
    from remat.graphs.batch_scaling import AffineGraph


@dataclass(frozen=True)
class Scaling:
    """Growth of graph files with the batch size."""

    others: list[Path] | None = typer.Option(
        None, "--with", metavar="FILE", help="Graph file of the same network at another batch size; repeatable."
    )
    batch_size: int | None = typer.Option(
        None, min=1, metavar="N", help="Batch size of the graph file; default: its meta.batch."
    )
    independent: list[str] | None = typer.Option(
        None, metavar="NAME", help="Tensor (or op, for its workspace) that does not grow with the batch; repeatable."
    )
    constant_costs: bool = typer.Option(
        False, "--constant-costs", help="Keep the costs of a single file (measured times)."
    )
    sample_bytes: Annotated[
        int | None, size_option("Part of a single file's constant memory for each sample", "--sample-bytes")
    ] = None


@shared("memory", *FILE, "methods", "others", "batch_size", "independent", "costs", "device", "constant_costs",
        "sample_bytes", "order", "max_computes", "keep", "count_constant_memory", "time_limit", "threads", "seed",
        "start", "isolate", "memory_limit", "store", "tables", "schedules", "plot", "quiet")  # fmt: skip
def command(
    graphs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GRAPH...",
            autocompletion=complete_graph,
            show_default=False,
            help="Graph files, or names of zoo graphs (unet).",
        ),
    ] = None,
    *,
    memory: Annotated[int, size_option("Memory of the device", "--memory")],
    methods: Methods = None,
    scaling: Scaling,
    store: StoreUrl = None,
    count_constant_memory: bool = typer.Option(
        True, "--count-constant-memory/--no-constant-memory", help="Count the constant memory."
    ),
    tables: Tables = None,
    schedules: Path | None = typer.Option(
        None, metavar="FOLDER", help="Write graph and schedule of each answer to this folder."
    ),
    plot: Path | None = typer.Option(
        None, metavar="FILE", help="Draw the batch sizes to this file (.png, .svg, .pdf)."
    ),
    given: Given,
) -> None:
    """Find the largest batch of each GRAPH that fits --memory with at most one extra forward pass, for each method.

    A zoo name stands for the network at every batch size. The values of a file grow in proportion to its batch size,
    except those that --independent names. With --with, they grow linearly through those of both files. Limits apply
    to each probed batch size. The constant memory (parameters and the like) counts by default.

    Ctrl-C keeps the results so far. With --store the same command solves only what is missing.

    Exit code 0: some method has a schedule; 1: none has; 2: an error; 130: Ctrl-C.

    Examples
    --------
    remat batch unet resnet50 --memory 16GiB -m greedy -t 1m
    """
    from remat.cli.reporter import Reporter
    from remat.experiments.max_batch import max_batch
    from remat.io.figures import SUFFIXES
    from remat.io.views import table_csv

    names = graphs or []
    run = given.run(names[0] if names else None)
    names = names or [run.problem.graph]
    files = [*((table, TABLES) for table in tables or ()), (plot, SUFFIXES)]
    check_outputs(*files, inputs=(*names, *(scaling.others or ()), given.config))
    if schedules is not None:
        check_output(schedules / "schedule.json")
    families = [read_family(name, run.problem, scaling) for name in names]
    done: list[BatchResult] = []

    outputs = Outputs()

    def text_of(path: Path) -> str:
        if path.suffix.lower() != ".json":
            return table_csv([{**answer.row(), "versions": {}} for answer in done])
        return json_text(
            [
                {**answer.row(), "limits": dict(answer.limits), "tried": [probe.as_dict() for probe in answer.probes]}
                for answer in done
            ]
        )

    def report(reporter: Reporter, probe: Probe) -> None:
        line = f"batch {probe.batch:,}: {probe.verdict} by {probe.method}"
        reporter.news(f"  {line} ({probe.seconds:.1f} s)", f"batch {probe.batch:,}: {probe.verdict}")

    pairs = list(product(families, methods_of(methods, run)))
    with interrupts(), stored_runs(store, "batch", "-".join(family.name for family in families)) as runs:
        for number, (family, method) in enumerate(pairs, 1):
            label = f"[{number}/{len(pairs)}] {family.name}, {method.label}"
            with Reporter(run.output.quiet, label=label) as reporter:
                answer = max_batch(
                    family, memory, method,
                    order=run.problem.order, max_computes=run.problem.max_computes, keep=run.problem.keep,
                    count_constant_memory=count_constant_memory, stop=run.solve.time_limit,
                    options=run.solve_options(family.pattern), store=runs,
                    on_progress=reporter, on_probe=partial(report, reporter),
                )  # fmt: skip
            done.append(answer)
            for path in tables or ():
                outputs.attempt_text(path, text_of(path))
            if schedules is not None:
                _write_schedule(answer, schedules, outputs)
            if answer.interrupted:
                break
        writing()
        for path in tables or ():
            outputs.save_text(path, text_of(path))
        print_batches(done)
        if plot is not None:
            from remat.experiments.max_batch_result import plot_batches

            outputs.plot(plot, lambda: plot_batches(done))
        print_stored(runs, outputs)
    outputs.leave(INTERRUPTED if done[-1].interrupted else OK if any(one.batch for one in done) else NO)


def read_family(name: str, given: ProblemSection, scaling: Scaling) -> AffineGraph:
    """Return the network `name` at every batch size, as :func:`command` describes.

    Raise RematError if a file cannot be read, has no batch size, or is not affine in it.
    """
    from remat.graphs.batch_scaling import AffineGraph
    from remat.graphs.io import load_graph, read_graph
    from remat.graphs.profiles import load_profiled
    from remat.graphs.zoo import ZOO

    if not exists(name) and name in ZOO and not scaling.others and given.costs is None:
        return AffineGraph.of(ZOO[name])
    graph = load_profiled(load_graph(name), given.costs, given.device)
    size = scaling.batch_size or _batch_of(graph, name)
    if scaling.others:
        graphs = {size: graph}
        for path in scaling.others:
            other = read_graph(path)
            size = _batch_of(other, str(path))
            if size in graphs:
                raise FormatError(f"{path}: there is a graph of batch size {size} already")
            graphs[size] = other
        return AffineGraph.fit(graphs)
    sample_bytes = scaling.sample_bytes
    if sample_bytes is None:
        overhead = graph.meta.get("overhead")
        inputs = overhead.get("input_bytes") if isinstance(overhead, dict) else None
        sample_bytes = inputs // size if isinstance(inputs, int) else 0
    return AffineGraph.scaled(
        graph, size, scaling.independent or (), constant_costs=scaling.constant_costs,
        constant_memory_per_sample=sample_bytes,
    )  # fmt: skip


def _batch_of(graph: ComputeGraph, name: str) -> int:
    batch = graph.meta.get("batch")
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise FormatError(f"{name}: the batch size is missing; add meta.batch or use --batch-size")
    return batch


def _write_schedule(answer: BatchResult, folder: Path, outputs: Outputs) -> None:
    from remat.graphs.formats.remat_json import graph_to_text

    if answer.graph is None or answer.schedule is None:
        return
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", answer.graph.name)
    method = re.sub(r"[^A-Za-z0-9._-]+", "-", answer.method.label)
    outputs.save_text(folder / f"{name}.json", graph_to_text(answer.graph))
    outputs.save_schedule(folder / f"{name}.{method}.schedule.json", answer.schedule)


def print_batches(done: Sequence[BatchResult]) -> None:
    """Print a table for each network, followed by the claims on larger batches."""
    from remat.cli.closing import closing_batch
    from remat.cli.console import NUMBER, TEXT, console, print_columns, say

    out = console()
    numbers = ("batch", "ruled out above", "times", "overhead", "peak", "tried", "total")
    columns = [("method", TEXT), *((heading, NUMBER) for heading in numbers), ("schedule of", TEXT)]

    def cells(answer: BatchResult) -> list[str]:
        found = answer.certificate
        return [
            answer.method.label,
            f"{answer.batch:,}",
            f"{answer.upper:,}",
            f"{answer.batch / answer.plain:.2f}" if answer.plain else "-",
            "-" if found is None or found.overhead is None else f"{found.overhead:.4g} %",
            "-" if found is None else memory(found.peak),
            f"{len(answer.probes)}",
            f"{answer.row()['seconds']:.1f} s",
            answer.source or "-",
        ]

    networks: dict[str, list[BatchResult]] = {}
    for answer in done:
        networks.setdefault(answer.family.name, []).append(answer)
    for number, (name, answers) in enumerate(networks.items()):
        if number:
            out.print()
        first = answers[0]
        title = f"{name}, {first.memory:,} bytes; without recomputation the batch is {first.plain:,}"
        print_columns(out, title, columns, map(cells, answers))
        for answer in answers:
            say(out, f"{answer.method.label}: {answer.claim}")
        say(out, closing_batch(answers))
        if not any(answer.batch for answer in answers) and first.memory < KILO:
            say(out, f"--memory {first.memory} is {first.memory} bytes; did you mean {first.memory}GiB?")
    if done[-1].interrupted:
        out.print("interrupted: the table is not complete")
