"""``remat deploy``: models reordered for less memory in their runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import print_json, print_rows, search_backend
from remat.cli.completion import complete_graph, one_of
from remat.cli.fitting import fit_facts, fit_lines
from remat.cli.options import Json, Quiet, SearchBackend, SearchSeed, Threads, size_option, time_option
from remat.cli.screen import say_sentence
from remat.cli.terminal import NO, OK

if TYPE_CHECKING:
    from remat.deploy import Check, Deployment


def command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", autocompletion=complete_graph, help="ONNX or TensorFlow Lite model, or .pt2 file."
        ),
    ],
    *,
    output: Path | None = typer.Option(
        None, "--output", "-o", metavar="FILE", show_default=False,
        help="Model to write, of the same format (.pte for .pt2); optional with --memory.",
    ),
    memory: Annotated[
        int | None, size_option("Memory of the device: print if the model fits, and what needs most", "--memory")
    ] = None,
    runtime: str | None = typer.Option(
        None,
        metavar="NAME",
        autocompletion=one_of("tflm", "litert", "onnxruntime", "executorch"),
        help="tflm (the default of .tflite), litert, onnxruntime (of .onnx), or executorch (of .pt2).",
    ),
    in_place: bool = typer.Option(
        True, "--in-place/--no-in-place",
        help="For tflm and executorch, put outputs in place of inputs where reference kernels allow it.",
    ),
    rewrite: bool = typer.Option(
        False, "--rewrite", help="Also try the model with rewrites, as remat rewrite --search; outputs may be rounded."
    ),
    check: bool = typer.Option(
        False, "--check", help="Run both models in the runtime, if installed; an error if outputs differ."
    ),
    dim: list[str] | None = typer.Option(
        None, metavar="NAME=SIZE", help="Size of an open dimension of an ONNX model, repeatable; batch=SIZE for litert."
    ),
    backend: SearchBackend = "cp-sat",
    time_limit: Annotated[float, time_option("Time for order and addresses")] = 60.0,
    threads: Threads = None,
    seed: SearchSeed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Write MODEL with operators reordered for least memory; for tflm and executorch, also with addresses.

    The output has the memory of the model before and after, by the rules of the runtime, and a bound for any order and
    addresses; `proved least` if the memory equals the bound.

    Exit code 0: done, also after Ctrl-C; 1: the model does not fit the memory; 2: an error, or --check finds a
    difference.

    Examples
    --------
    remat deploy model.onnx -o smaller.onnx --check
    remat deploy model.tflite --memory 256KiB
    """
    from remat.cli.closing import closing_deployment
    from remat.cli.convert import dimensions
    from remat.cli.reporter import Reporter
    from remat.deploy import Search, check_models, deploy, fit, read_deployable, write_model
    from remat.graphs.io import model_suffixes
    from remat.io.files import check_outputs, is_standard_stream
    from remat.runtime.interruption import interrupts
    from remat.runtime.solve_options import SolveOptions

    if output is None and memory is None:
        raise typer.BadParameter("a model to write is needed: -o FILE (or --memory SIZE, to see if the model fits)")
    check_outputs((output, model_suffixes(model)), inputs=(model,))
    if check and (output is None or is_standard_stream(output)):
        raise typer.BadParameter("--check needs a file")
    sizes = dimensions(dim)
    file = read_deployable(model, sizes)
    with interrupts():
        with Reporter(quiet) as reporter:
            options = SolveOptions(seed=seed, threads=threads)
            search = Search(
                search_backend(backend), options, time_limit, reporter, in_place=in_place, rewrite=rewrite
            )  # fmt: skip
            found = deploy(file, runtime, search)
        fitted = None if memory is None else fit(file, found, memory)
        if output is not None:
            write_model(found.file, output, model)
    stream = sys.stderr if is_standard_stream(output) else sys.stdout
    checked = None
    if check and output is not None:
        checked = check_models(model, output, found.runtime, sizes, exact=not found.rewrites)
    if as_json:
        print_json(_facts(found, checked) | ({} if fitted is None else {"fit": fit_facts(fitted)}), stream)
    else:
        print_rows([*_lines(found, checked), *([] if fitted is None else fit_lines(fitted))], stream)
        print(file=stream)
        say_sentence(closing_deployment(found), stream)
    raise typer.Exit(OK if fitted is None or fitted.fits else NO)


def _lines(found: Deployment, checked: Check | None) -> list[tuple[str, str]]:
    from remat.deploy.runtimes import RULES

    result, title = found.result, RULES[found.runtime].title
    saved = f" ({100 * (1 - found.after / found.before):.4g} % less)" if found.after < found.before else ""
    status = "proved least" if found.proved else f"{found.after - found.bound:,} bytes above the bound"
    rows = [
        ("model", f"{result.problem.graph.name}: {len(result.problem.graph.ops):,} ops, for {title}"),
        ("before", f"{found.before:,} bytes"),
        ("after", f"{found.after:,} bytes{saved}"),
        ("bound", f"{found.bound:,} bytes for any order{' of the rewritten model' * bool(found.rewrites)}"),
        ("status", status if saved else f"{status}; the model could not be improved"),
    ]
    rows += [("rewrite", each) for each in found.rewrites]
    rows += [("remains", note) for note in found.notes]
    if checked is not None:
        how = "up to rounding" if found.rewrites else "bit by bit"
        reported = f"it reports {checked.before:,} -> {checked.after:,} bytes"
        rows.append(("check", f"{title} gives the same {checked.outputs} outputs, {how}; {reported}"))
    return rows


def _facts(found: Deployment, checked: Check | None) -> dict[str, Any]:
    return {
        "model": found.result.problem.graph.name,
        "runtime": str(found.runtime),
        "before": found.before,
        "after": found.after,
        "bound": found.bound,
        "proved": found.proved,
        "notes": list(found.notes),
        "rewrites": list(found.rewrites),
        "check": None
        if checked is None
        else {"before": checked.before, "after": checked.after, "outputs": checked.outputs},
    }
