"""Options that commands share: those of the sections of a configuration, and their use in commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from remat.cli.common import import_from_here, load_graph
from remat.cli.completion import (
    complete_backend,
    complete_graph,
    complete_machine,
    complete_method,
    complete_methods,
    complete_schedule,
    one_of,
)
from remat.problem.objective import Objective
from remat.runtime.sizes import seconds, share

if TYPE_CHECKING:
    from remat.config import Config, OutputSection
    from remat.problem import Problem
    from remat.runtime.solve_options import SolveOptions

_GRAPH_HELP = "Graph file (-: standard input), or the name of a zoo graph (resnet50)."
Graph = Annotated[str, typer.Argument(metavar="GRAPH", autocompletion=complete_graph, help=_GRAPH_HELP)]
OptionalGraph = Annotated[
    str | None, typer.Argument(metavar="GRAPH", autocompletion=complete_graph, help=_GRAPH_HELP, show_default=False)
]
ScheduleFile = Annotated[
    Path, typer.Argument(metavar="SCHEDULE", autocompletion=complete_schedule, help="Schedule file.")
]
OptionalSchedule = Annotated[
    Path | None,
    typer.Argument(
        metavar="SCHEDULE", autocompletion=complete_schedule, help="Schedule file; default: the reference order."
    ),
]
#: Memory in bytes below which a unit was probably forgotten.
KILO = 1000
_ORDER_HELP = "Order of first computes: the reference order, or free"
Order = Annotated[
    str, typer.Option("--order", metavar="fixed|free", autocompletion=one_of("fixed", "free"), help=f"{_ORDER_HELP}.")
]


def _reader(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a parser of an option that reports faults; a default passes through."""

    def read(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else value
        except ValueError as error:
            raise typer.BadParameter(f"should be {error}") from None

    return read


def _budget(word: str) -> str:
    if re.fullmatch(r"\s*0+\s*(%|[A-Za-z]*)\s*", word):
        raise ValueError(f"a size (16GiB) or a share of the reference peak (80%) above 0, not {word[:60]!r}")
    return word


Budget = Annotated[
    str | None,
    typer.Option(
        "--budget", "-b", metavar="BUDGET", parser=_reader(_budget),
        help="Bytes (123456, 10GiB) or a share of the reference peak (80%).",
    ),
]  # fmt: skip


def _machine(word: str) -> str:
    from remat.config.machines import read_machine

    return read_machine(word).settings


Machine = Annotated[
    str | None,
    typer.Option(
        "--machine", metavar="MACHINE", parser=_reader(_machine), autocompletion=complete_machine,
        help="Host to which tensors may move: pcie3, pcie4, pcie5, nvlink-c2c or measured (this GPU), with settings "
        "(pcie4,host=64GiB), or settings alone (rate=24GB/s).",
    ),
]  # fmt: skip
Keep = Annotated[
    list[str] | None, typer.Option("--keep", metavar="TENSOR", help="Tensor to be alive at the end; repeatable.")
]
ConstantMemory = Annotated[
    bool | None,
    typer.Option(
        "--count-constant-memory/--no-constant-memory", help="Count the graph's constant memory in peak and budget."
    ),
]
Costs = Annotated[
    Path | None,
    typer.Option("--costs", metavar="FILE", help="Profile (CSV or JSON) whose costs replace the graph's own."),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value", metavar="NAME=VALUE",
        help="Content of an input of an ONNX model that decides shapes: 3,4 or a file (.npy, .pb); repeatable.",
    ),
]  # fmt: skip
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Device whose costs apply, if the profile has several.")
]


def words(given: Iterable[str] | None) -> list[str]:
    """Return the words of an option that is repeated or has several words between commas."""
    found = [part.strip() for text in given or () for part in text.split(",")]
    if "" in found:
        raise typer.BadParameter(f"{', '.join(given or ())!r} has an empty word between commas")
    return found


def _threads(word: str) -> int:
    from remat.runtime.resources import available_cpus

    try:
        return available_cpus() if word == "all" else int(word)
    except ValueError:
        raise ValueError(f"a whole number or all, not {word[:60]!r}") from None


def _limit(word: str) -> float:
    if not (limit := seconds(word)) >= 0:
        raise ValueError(f"0 seconds or more, not {word[:60]!r}")
    return limit


def _tolerance(word: str) -> float:
    if not (tolerance := share(word)) >= 0:
        raise ValueError(f"0 or more, not {word[:60]!r}")
    return tolerance


def _size(word: str) -> int:
    from remat.errors import ProblemError
    from remat.runtime.sizes import memory_bytes

    try:
        return memory_bytes(word)
    except ProblemError:
        raise ValueError(f"a size above 0 (1000, 512KiB, 8G), not {word[:60]!r}") from None


def _process_memory(word: str) -> int:
    size = _size(word)
    if size < KILO:
        raise ValueError(f"enough for a process; {word[:60]} is {size} bytes: did you mean {size}GiB?")
    return size


def size_option(text: str, *names: str, parse: Callable[[str], int] = _size) -> Any:
    """Return an option of a size with its help."""
    return typer.Option(*names, metavar="SIZE", parser=_reader(parse), help=f"{text} (1000, 512KiB, 8G).")


def time_option(text: str, *names: str) -> Any:
    """Return an option of a time limit with its help."""
    return typer.Option(
        *names or ("--time-limit", "-t"), metavar="TIME", parser=_reader(_limit), help=f"{text} (90, 90s, 5m, 1h30m)."
    )


Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N|all", parser=_reader(_threads), help="Default: all.")
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Random seed; default: 0.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MethodOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE",
        help="Option of the method (step_seconds=0.5 of serenity, depth=2 of hierarchical), as in JSON; repeatable.",
    ),
]  # fmt: skip
CostTolerance = Annotated[
    float | None,
    typer.Option(
        "--cost-tolerance", metavar="SHARE", parser=_reader(_tolerance),
        help="Largest cost difference of identical groups, as a share of their cost (0.02, 2%); default: 5%; 0: none.",
    ),
]  # fmt: skip
Bytes = Annotated[bool, typer.Option("--bytes", help="Show exact bytes on a terminal, not GiB and MiB.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--methods", "-m", metavar="METHOD[/BACKEND],...", autocompletion=complete_methods,
        help="Methods, such as checkmate/highs, retention-intervals/minizinc:gecode or greedy, or MODULE:CLASS; "
        "separate by commas or repeat.",
    ),
]  # fmt: skip
Tables = Annotated[
    list[Path] | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the table to this file (.csv, .json); repeatable."),
]
#: Suffixes of these tables.
TABLES = (".csv", ".json")
#: Seed of searches for the least peak, which read no configuration.
SearchSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Random seed.")]
SearchBackend = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="BACKEND",
        autocompletion=complete_backend,
        help="Solver, NAME, NAME:VARIANT or MODULE:CLASS; `none`: heuristics and search only.",
    ),
]
SearchTime = Annotated[float | None, time_option("Time for everything; default: until the search is complete")]

#: Options by section and key of a configuration (:mod:`remat.config.sections`), which they override.
SECTIONS: dict[str, dict[str, Any]] = {
    "problem": {
        "budget": Budget,
        "objective": Annotated[str | None, typer.Option(
            "--objective", metavar="|".join(Objective), autocompletion=one_of(*Objective),
            help=f"{Objective.described()}; default: {Objective.DEFAULT}, or with --machine {Objective.LEAST_TIME}.")],
        "order": Annotated[str | None, typer.Option(
            "--order", metavar="fixed|free", autocompletion=one_of("fixed", "free"),
            help=f"{_ORDER_HELP}; default: fixed.")],
        "machine": Machine,
        "max_computes": Annotated[int | None, typer.Option(
            "--max-computes", min=1, metavar="N", help="Limit of computes for every op.")],
        "keep": Keep,
        "count_constant_memory": ConstantMemory,
        "costs": Costs,
        "device": Device,
    },
    "solve": {
        "method": Annotated[str | None, typer.Option(
            "--method", "-m", metavar="METHOD", autocompletion=complete_method,
            help="auto (the default), a formulation, heuristic or method (`remat backends` lists them), or "
            "MODULE:CLASS.")],
        "backend": Annotated[str | None, typer.Option(
            "--backend", metavar="BACKEND", autocompletion=complete_backend,
            help="Solver, NAME or NAME:VARIANT (`remat backends` lists them) or MODULE:CLASS. Default: cp-sat.")],
        "time_limit": Annotated[float | None, time_option("Time of each run, all included; default: until proved")],
        "gap": Annotated[float | None, typer.Option(
            "--gap", metavar="SHARE", parser=_reader(share),
            help="Stop at this relative gap (0.05, 5%); default 1e-6; 0: prove optimality.")],
        "threads": Threads,
        "seed": Seed,
        "start": Annotated[str | None, typer.Option(
            "--start", metavar="auto|none|alone|FILE",
            help="Start of a formulation: a heuristic's schedule (auto, the default), nothing, or a file; "
            "alone: nothing, without the reference order as an answer.")],
        "isolate": Annotated[bool | None, typer.Option(
            "--isolate/--no-isolate", help="Run the solver in its own process.")],
        "memory_limit": Annotated[int | None, size_option(
            "Memory limit of this process; implies --isolate", "--memory-limit", parse=_process_memory)],
        "warm_start": Annotated[Path | None, typer.Option(
            "--warm-start", metavar="FILE", help="Schedule file to start from, in any format.")],
    },
    "output": {
        "schedule": Annotated[Path | None, typer.Option(
            "--output", "-o", metavar="FILE", help="Write the schedule to this file (-: standard output).")],
        "plot": Annotated[Path | None, typer.Option(
            "--plot", metavar="FILE", help="Draw the schedule (.png, .svg, .pdf).")],
        "json": Json,
        "quiet": Quiet,
    },
    "file": {
        "config": Annotated[Path | None, typer.Option(
            "--config", "-c", metavar="FILE", help="Read the run from this TOML file; other options take precedence.")],
        "allow_solver_files": Annotated[bool, typer.Option(
            "--allow-solver-files", help="Allow solver options in the configuration to name files.")],
        "allow_imports": Annotated[bool, typer.Option(
            "--allow-imports", help="Allow MODULE:CLASS for method and backend in the configuration.")],
        "allow_output_outside": Annotated[bool, typer.Option(
            "--allow-output-outside", help="Allow the configuration to write outside its folder and the current one.")],
    },
}  # fmt: skip
_SECTION_OF = {key: section for section, options in SECTIONS.items() for key in options}
#: Keys that many commands take, in the order of their help.
FILE = ("config", "allow_solver_files", "allow_imports", "allow_output_outside")
RULES = ("order", "max_computes", "keep", "count_constant_memory", "costs", "device")
LIMITS = ("time_limit", "gap", "threads", "seed", "start", "isolate", "memory_limit")


@dataclass(frozen=True)
class Given:
    """Shared options of a command, as given on the command line."""

    sections: dict[str, dict[str, Any]]
    """Values that were given, paths as text; other keys are absent."""

    @property
    def config(self) -> str | None:
        """Path of the configuration file."""
        return self.sections["file"].get("config")

    @property
    def json(self) -> bool:
        """True if JSON output is requested."""
        return "json" in self.sections["output"]

    def run(self, graph: str | None, *required: str, base: tuple[dict[str, Any], str] = ({}, "options")) -> Config:
        """Return the configuration of the file, if any, or else of the mapping `base`, overridden by the options.

        `base`: tables, and their name in errors.

        Raise RematError as :meth:`remat.config.Config.from_file`, and typer.BadParameter without a file, if the graph
        or a `required` key of the problem is missing.
        """
        from remat.config import Config

        overrides = {section: dict(self.sections[section]) for section in ("problem", "solve", "output")}
        if graph is not None:
            overrides["problem"]["graph"] = graph
        allowed = {key: value for key, value in self.sections["file"].items() if key != "config"}
        named = [str(overrides["solve"].get(key, "")) for key in ("method", "backend")]
        if "allow_imports" in allowed or any(":" in word for word in named):
            import_from_here()
        if self.config is not None:
            return Config.from_file(self.config, overrides, **allowed)
        if graph is None:
            raise typer.BadParameter("Missing argument 'GRAPH' (or '--config').")
        for key in required:
            if key not in {**base[0].get("problem", {}), **overrides["problem"]}:
                raise typer.BadParameter(f"Missing option '--{key}' (or '--config').")
        return Config.from_mapping(*base, overrides=overrides, **allowed)

    def problem(self, graph: str, **rules: Any) -> Problem:
        """Return the problem of a command without a configuration, with further `rules`."""
        from remat.problem import Problem

        rules = {**self.sections["problem"], **rules}
        return Problem(load_graph(graph, rules.pop("costs", None), rules.pop("device", None)), **rules)

    def solve_options(self, **others: Any) -> SolveOptions:
        """Return the limits of a command without a configuration."""
        from remat.runtime.solve_options import SolveOptions

        names = {"gap": "relative_gap"}
        return SolveOptions(**{names.get(key, key): value for key, value in self.sections["solve"].items()}, **others)

    def output(self) -> OutputSection:
        """Return the output options of a command without a configuration."""
        from remat.config import OutputSection

        return OutputSection(**self.sections["output"])


def shared(*order: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command with shared options, which it receives together as ``given``, a :class:`Given`.

    A parameter of the command with a dataclass type becomes an option per field.

    `*order`: keys of :data:`SECTIONS` and options of the command, in the order of the help; its other options follow.
    Without any, the command receives no ``given``.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        arguments = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        named = [each for each in own if each.kind is each.KEYWORD_ONLY and each.name != "given"]
        groups: dict[str, Any] = {each.name: each.annotation for each in named if is_dataclass(each.annotation)}
        options = {each.name: each for part in named for each in _options_of(part)}
        given = {key: _parameter(key) for key in order if key not in options}
        ordered = [given.get(name) or options.pop(name) for name in order]

        @wraps(command)
        def call(**values: Any) -> None:
            sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
            for key, parameter in given.items():
                value = values.pop(parameter.name)
                if value not in (None, parameter.default, []):
                    sections[_SECTION_OF[key]][key] = str(value) if isinstance(value, Path) else value
            for name, kind in groups.items():
                values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            command(**values, **({"given": Given(sections)} if order else {}))

        call.__signature__ = inspect.Signature([*arguments, *ordered, *options.values()])  # type: ignore[attr-defined]
        return call

    return decorated


def _options_of(part: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the fields of a dataclass as parameters, and any other parameter as it is."""
    if not is_dataclass(part.annotation):
        return [part]
    kinds = get_type_hints(part.annotation, include_extras=True)
    return [
        inspect.Parameter(field.name, part.kind, default=field.default, annotation=kinds[field.name])
        for field in fields(part.annotation)
    ]


def _parameter(key: str) -> inspect.Parameter:
    """Return the parameter of a shared option; its name includes the section, since commands may use the plain name."""
    section = _SECTION_OF[key]
    option = SECTIONS[section][key]
    default = False if get_args(option)[0] is bool else None
    return inspect.Parameter(f"{section}_{key}", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)
