"""Classes of commands: uniform option names, help in sections with examples, and checks before a command runs."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
import typer.core

from remat.cli.advice import lone_unit, long_name, misplaced, swapped
from remat.cli.screen import wrapped
from remat.errors import FormatError
from remat.io.files import exists
from remat.io.limits import read_limits

#: Base class of usage errors in typer's copy of click, or in click itself.
UsageError: type[Exception] = typer.BadParameter.__mro__[2]
#: Sections of the help with the options that belong there; others come first.
SECTIONS = {
    "Problem": (
        "budget", "objective", "order", "max-computes", "keep", "count-constant-memory", "costs", "device", "value",
        "dim",
    ),
    "Search": (
        "method", "option", "backend", "time-limit", "gap", "threads", "seed", "start", "warm-start", "isolate",
        "memory-limit", "workers",
    ),
    "Output": (
        "output", "to", "plot", "trade-off", "plot-samples", "sample", "schedules", "csv", "json", "bytes", "quiet",
        "help",
    ),
    "Configuration file": ("config", "allow-solver-files", "allow-imports", "allow-output-outside"),
}  # fmt: skip
#: Sections of ``remat --help`` with their commands; others come last.
COMMANDS = {
    "Find schedules": ("solve", "improve", "minimize", "order", "plan"),
    "Compare": ("compare", "frontier", "batch", "fit", "bounds", "study"),
    "Check": ("validate", "verify"),
    "See": ("show", "plot", "view", "layers", "trace", "traffic"),
    "Graphs": ("zoo", "generate", "capture", "convert", "rewrite", "partition"),
    "Deployed models and addresses": ("deploy", "allocate", "arenas"),
    "Programs of other solvers": ("export", "import"),
}
_EXAMPLES = "\n\nExamples\n--------\n"
#: Most columns for names of options and commands in the help.
NAMES = 24
#: Indent of a description with a word that is too long for its column.
INDENT = 4


class Command(typer.core.TyperCommand):
    """Command with uniform options, whose limits of time and memory also apply to reading each of its files.

    Options with a value have their plural or singular as a second name, which the help does not list.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.help, _, lines = inspect.cleandoc(self.help or "").partition(_EXAMPLES)
        self.examples = lines.splitlines()
        """Lines of the docstring's section *Examples*: commands to type."""

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        names = parser._long_opt
        for name, option in tuple(names.items()):
            if option.takes_value:
                names.setdefault(name.removesuffix("s") if name.endswith("s") else f"{name}s", option)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _errors_of(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        self._check_words(ctx)
        try:
            with _errors_of(ctx), read_limits(ctx.params.get("time_limit"), ctx.params.get("memory_limit")):
                return super().invoke(ctx)
        except FormatError as error:
            if advised := self._advised(error, ctx):
                raise advised from None
            raise

    def _check_words(self, ctx: Any) -> None:
        """Refuse arguments that belong to an option."""
        given = {each: ctx.params.get(each.name) for each in self.params if each.param_type_name == "argument"}
        words = [word for value in given.values() for word in (value if isinstance(value, list | tuple) else [value])]
        if unit := lone_unit(words):
            raise UsageError(f"{unit}: no such file; write a number and its unit as one word (16GiB, 80%)")
        for word in (word for param, value in given.items() if param.nargs == -1 for word in value or ()):
            if not exists(word) and (option := misplaced(str(word), self)):
                raise UsageError(f"{word}: no such file; write {option}")

    def _advised(self, error: FormatError, ctx: Any) -> FormatError | None:
        """Return an error with a remedy for a word in the wrong place, if it is one."""
        if error.kind == "format.unknown" and (graph := swapped(ctx.params)):
            return FormatError(f"{error.culprit} is a schedule and {graph} a graph: swap them")
        name, missing, _ = str(error).partition(": no such file")
        param = next((each for each in self.params if missing and str(ctx.params.get(each.name)) == name), None)
        if param is None:
            return None
        positional = param.param_type_name == "argument"
        if positional and (option := misplaced(name, self, outputs=False)):
            return FormatError(f"{name}: no such file; write {option}", error.kind.rpartition(".")[2])
        from remat.graphs.zoo import ZOO

        if name not in ZOO:
            return None
        place = param.metavar if positional else f"--{long_name(param)}"
        return FormatError(f"{name}: no such file; {name} is a graph of the zoo, and {place} a file")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_usage, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments, sections = [], {title: [] for title in ("Options", *SECTIONS)}  # type: ignore[var-annotated]
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                own = param.param_type_name == "argument"
                name = re.sub(r" <[^>]*>$", "", record[0]) if own else record[0]
                text = re.sub(r"\[default: (\d+)\.0\]", r"[default: \1s]", record[1])
                (arguments if own else sections[_section(param)]).append((name, text))
        _write({"Arguments": arguments, **sections}, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.examples:
            with formatter.section("Examples"):
                indent = " " * formatter.current_indent
                for line in self.examples:
                    parts = textwrap.wrap(line, max(formatter.width, 40) - 6, break_on_hyphens=False)
                    formatter.write(indent + f" \\\n{indent}    ".join(parts) + "\n")


class Group(typer.core.TyperGroup):
    """Group of commands, whose help lists them in sections with whole sentences."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records = [param.get_help_record(ctx) for param in self.get_params(ctx)]
        titled = COMMANDS if "solve" in self.commands else {}
        sections = {title: list(self._rows(names)) for title, names in titled.items()}
        known = {name for names in titled.values() for name in names}
        others = "Others" if titled else "Commands"
        sections[others] = list(self._rows(name for name in self.commands if name not in known))
        _write({**sections, "Options": [record for record in records if record is not None]}, formatter)

    def _rows(self, names: Any) -> Iterator[tuple[str, str]]:
        for name in names:
            if name in self.commands:
                yield name, self.commands[name].get_short_help_str(1000)


@contextmanager
def _errors_of(ctx: Any) -> Iterator[None]:
    """Give the context of the command to its usage errors, for their remedies."""
    try:
        yield
    except UsageError as error:
        error.ctx = error.ctx or ctx  # type: ignore[attr-defined]
        raise


def _section(param: Any) -> str:
    name = long_name(param)
    names = (name, name.removesuffix("s"))
    return next((title for title, options in SECTIONS.items() if any(each in options for each in names)), "Options")


def _usage(argument: Any) -> str:
    """Return the word of an argument in the usage line."""
    name = re.sub(r"[][.]", "", argument.metavar or argument.name.upper())
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs == -1 else "")


def _write(sections: dict[str, list[tuple[str, str]]], formatter: Any) -> None:
    """Write names with their descriptions, which are wrapped between words and not at hyphens."""
    for title, rows in sections.items():
        if not rows:
            continue
        with formatter.section(title):
            indent = " " * formatter.current_indent
            room = min(max(len(name) for name, _ in rows), NAMES) + 2
            for name, text in rows:
                left = formatter.width - len(indent) - room
                fits = max(map(len, text.split()), default=0) <= left
                lines = wrapped(text, left if fits else left + room - INDENT)
                if not fits or len(name) > room - 2:
                    formatter.write(f"{indent}{name}\n")
                    name = ""
                for number, line in enumerate(lines):
                    start = "" if number else name
                    formatter.write(f"{indent}{start:<{room if fits else INDENT}}{line}".rstrip() + "\n")
