"""What the commands share: options, reading inputs, checking outputs before any work is done."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer

from remat.io.files import is_standard_stream
from remat.io.text import aligned, json_text, printable

if TYPE_CHECKING:
    from remat.config import Config, OutputSection
    from remat.graphs import ComputeGraph
    from remat.solving.result import Result

#: Exit codes; the last two as for a program that the signal ends: Ctrl-C, a reader that goes away.
OK, NO, ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

Graph = Annotated[
    str, typer.Argument(metavar="GRAPH", help="Graph file (-: standard input), or the name of a zoo graph (resnet50).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ORDER_HELP = "Whether first computations follow the reference order"
Order = Annotated[str, typer.Option("--order", metavar="fixed|free", help=f"{ORDER_HELP}.")]
SolveOrder = Annotated[str | None, typer.Option("--order", metavar="fixed|free", help=f"{ORDER_HELP}; default: fixed.")]
MaxComputes = Annotated[int | None, typer.Option("--max-computes", min=1, help="Limit of computes for every op.")]
Keep = Annotated[
    list[str] | None, typer.Option("--keep", metavar="TENSOR", help="Tensor to be alive at the end; may be repeated.")
]
ConstantMemory = Annotated[
    bool | None,
    typer.Option(
        "--count-constant-memory/--no-constant-memory", help="Count the graph's constant memory in peak and budget."
    ),
]
Costs = Annotated[
    Path | None, typer.Option("--costs", help="Profile (CSV or JSON) whose costs take the place of the graph's own.")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Whose costs, where the profile has several devices.")
]
OptionalGraph = Annotated[
    str | None,
    typer.Argument(
        metavar="GRAPH",
        help="Graph file (-: standard input), or the name of a zoo graph (resnet50).",
        show_default=False,
    ),
]
BaseConfig = Annotated[
    Path | None, typer.Option("--config", "-c", help="Read the run from this TOML file; other options go before it.")
]
AllowSolverFiles = Annotated[
    bool, typer.Option("--allow-solver-files", help="Let solver options in the configuration name files.")
]
AllowImports = Annotated[
    bool,
    typer.Option("--allow-imports", help="Let the configuration name method and backend as MODULE:CLASS."),
]
Objective = Annotated[
    str | None,
    typer.Option(
        "--objective", metavar="least-cost|least-peak",
        help="The least cost within the budget (the default), or the least peak, which needs no budget.",
    ),
]  # fmt: skip
Budget = Annotated[
    str | None,
    typer.Option("--budget", "-b", help="Bytes (123456, 10GiB) or a share of the reference peak (80%)."),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--formulation", "--method", "-f",
        help="auto (the default), a formulation, heuristic or method (`remat backends` lists them), or MODULE:CLASS.",
    ),
]  # fmt: skip
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend", help="Solver, NAME or NAME:VARIANT (`remat backends` lists them) or MODULE:CLASS. Default: cp-sat."
    ),
]  # fmt: skip
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", "-t", help="Seconds for everything; default: until it is proved.")
]
Gap = Annotated[float | None, typer.Option("--gap", help="Stop at this relative gap; default 1e-6; 0: prove it.")]
Threads = Annotated[int | None, typer.Option("--threads", help="Default: as many as there are.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random; default 0.")]
SearchSeed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
SearchBackend = Annotated[
    str,
    typer.Option("--backend", help="Solver, NAME, NAME:VARIANT or MODULE:CLASS; `none`: heuristics and search alone."),
]
SearchTime = Annotated[
    float | None,
    typer.Option("--time-limit", "-t", help="Seconds for everything; default: until there is nothing more to try."),
]
Start = Annotated[
    str | None,
    typer.Option(
        "--start", metavar="auto|none|FILE",
        help="A formulation starts from a heuristic's schedule (auto, the default), from nothing, or from this.",
    ),
]  # fmt: skip
Isolate = Annotated[bool | None, typer.Option("--isolate/--no-isolate", help="Run the solver in a process of its own.")]
MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", help="What this process may hold (4GiB); means --isolate.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the schedule to this file (-: standard output).")
]
Picture = Annotated[Path | None, typer.Option("--plot", help="Draw the schedule into this file (.png, .svg).")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def load_graph(name: str, costs: Path | None = None, device: str | None = None) -> ComputeGraph:
    """The graph in a file or of the zoo, with the costs of a profile where one is named."""
    from remat.graphs.io import load_graph
    from remat.graphs.profiles import load_profiled

    return load_profiled(load_graph(name), costs, device)


def chosen(**options: Any) -> dict[str, Any]:
    """The options that were given, paths as words."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in options.items() if value is not None
    }


def base_config(
    config: Path | None,
    graph: str | None,
    options: dict[str, dict[str, Any]],
    required: tuple[str, ...] = (),
    *,
    allow_solver_files: bool,
    allow_imports: bool = False,
) -> Config:
    """The configuration in the file, where there is one, with the options in place of what it says.

    Raises
    ------
    RematError
        As :meth:`remat.config.Config.from_file`.
    typer.BadParameter
        Without a file, if the graph or a `required` key of the problem is not given.
    """
    from remat.config import Config

    options["problem"] |= chosen(graph=graph)
    typed = options.get("solve", {})
    if allow_imports or any(":" in str(typed.get(key, "")) for key in ("method", "backend")):
        import_from_here()
    if config is not None:
        return Config.from_file(config, options, allow_solver_files=allow_solver_files, allow_imports=allow_imports)
    if graph is None:
        raise typer.BadParameter("Missing argument 'GRAPH' (or '--config').")
    for key in required:
        if key not in options["problem"]:
            raise typer.BadParameter(f"Missing option '--{key}' (or '--config').")
    return Config.from_mapping({}, "options", overrides=options)


def import_from_here() -> None:
    """Let classes that are named on the command line lie in the current folder, which is looked at last."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def class_or_name(word: str, group: str) -> Any:
    """What a word of the command line stands for: the class, where it is MODULE:CLASS, otherwise the word."""
    from remat.registry import import_class, names_class

    if not names_class(word, group):
        return word
    import_from_here()
    return import_class(word, group)


def end_of_solve(
    result: Result,
    output: OutputSection,
    remark: tuple[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> NoReturn:
    """Write the schedule, print the result, draw the picture, and leave with the exit code.

    The result has a `remark` (word, text) below it, or more `facts` in its JSON. Where the schedule is on standard
    output, this goes to standard error.
    """
    from remat.cli.saving import Outputs
    from remat.cli.signals import writing
    from remat.config import draw

    writing()
    outputs = Outputs()
    if result.schedule is not None and output.schedule is not None:
        outputs.save_schedule(output.schedule, result.schedule)
    stream = sys.stderr if is_standard_stream(output.schedule) else sys.stdout
    if output.json_:
        print_json({**result.as_dict(), **(facts or {})}, stream)
    else:
        print(result, file=stream)
        if remark is not None:
            print(f"{remark[0]:<9} {remark[1]}", file=stream)
    if result.schedule is not None and output.plot is not None:
        outputs.draw(output.plot, lambda path: draw(result, path))
    code = OK if result.schedule is not None else INTERRUPTED if result.stop == "interrupted" else NO
    raise typer.Exit(ERROR if outputs.failed else code)


def print_json(value: Any, stream: TextIO | None = None) -> None:
    """Print a JSON value, readable and exact, on a stream (default: standard output)."""
    print(json_text(value), end="", file=stream)


def print_table(rows: Iterable[tuple[str, ...]], indent: str = "", right: Container[int] = ()) -> None:
    """Print rows of words in aligned columns, those in `right` right-aligned."""
    for line in aligned([[printable(word) for word in row] for row in rows], right):
        print(indent + line)


def option_bytes(size: str, option: str) -> int:
    """Bytes of an option; the error names it."""
    from remat.errors import ProblemError
    from remat.io.sizes import memory_bytes

    try:
        return memory_bytes(size)
    except ProblemError as error:
        raise ProblemError(f"{option}: {error}") from None
