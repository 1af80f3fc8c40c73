"""Commands of the shell, and handling of errors: one line on standard error and exit code 2."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial, wraps
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.completion

import remat
from remat.cli.advice import usage_message
from remat.cli.command import Command, Group, UsageError
from remat.cli.options import Bytes, Values, size_option, time_option
from remat.cli.screen import exact_bytes
from remat.cli.terminal import BROKEN_PIPE, ERROR, INTERRUPTED, OK, guarded, say, unguarded
from remat.errors import FormatRemark, RematError
from remat.io.limits import read_limits
from remat.runtime.compiled.sets import CompilingRemark

#: Commands in the order of the help, and groups of commands. Modules have the same names, except in :data:`HOMES`.
NAMES = (
    "solve", "improve", "minimize", "order", "compare", "frontier", "batch", "config", "validate", "verify", "traffic",
    "bounds", "show", "partition", "plan", "plot", "view", "layers", "trace", "generate", "capture", "fit", "convert",
    "export", "rewrite", "deploy", "backends", "warm-up", "allocate", "arenas", "zoo", "new", "import",
)  # fmt: skip
GROUPS = ("library", "study")
HOMES = {"import": "export"}
#: Commands that read no graph.
NO_MODELS = ("config", "generate", "capture", "fit", "plan", "backends", "warm-up", "zoo", "new")
#: Environment variable that shows the traceback of an internal error.
TRACEBACK = "REMAT_TRACEBACK"
#: Shells with completion.
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
#: Last line of the script for zsh, and lines that also complete when zsh loads the script at the first tab.
_ZSH_REGISTERS = (
    "compdef _remat_completion remat",
    'if [[ $funcstack[1] == _remat ]]; then\n  _remat_completion "$@"\nfi\ncompdef _remat_completion remat',
)
#: Environment variable by which the script of ``--show-completion`` requests the completions of a line.
COMPLETION = "_REMAT_COMPLETE"


def _with_bytes(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the option ``--bytes``, for exact sizes on a screen."""
    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("exact", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Bytes)

    @wraps(command)
    def call(*arguments: Any, exact: bool = False, **others: Any) -> None:
        with exact_bytes(exact):
            command(*arguments, **others)

    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    return call


def _with_values(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that reads a graph with the option ``--value``, for inputs of ONNX models."""
    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("value", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Values)

    @wraps(command)
    def call(*arguments: Any, value: list[str] | None = None, **others: Any) -> None:
        if value and others.get("check"):
            raise typer.BadParameter("--check computes on random inputs and takes no --value")
        from remat.cli.convert import input_values
        from remat.graphs.io import model_values

        with model_values(input_values(value or ())):
            command(*arguments, **others)

    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    return call


app = typer.Typer(
    name="remat", cls=Group, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.command("help", cls=Command)
def _help(
    ctx: typer.Context,
    command: Annotated[str | None, typer.Argument(metavar="[COMMAND]", help="Name of a command.")] = None,
) -> None:
    """Show the help of a command, as its option `--help`.

    Examples
    --------
    remat help solve
    """
    parent = ctx.parent
    assert parent is not None
    if command is None:
        print(parent.get_help())
        return
    found = parent.command.get_command(parent, command)  # type: ignore[attr-defined]
    if found is None:
        parent.fail(f"No such command '{command}'.")
    print(found.get_help(type(ctx)(found, info_name=command, parent=parent)))


@app.command("version", cls=Command)
def _show_version() -> None:
    """Print the version.

    Examples
    --------
    remat version
    """
    print(f"remat {remat.__version__}")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"remat {remat.__version__}")
        raise typer.Exit


@app.callback()
def _remat(
    ctx: typer.Context,
    read_time: Annotated[
        float | None, time_option(
            "Most time for reading each file; default: the time limit of the command, or 2m", "--read-time"
        )
    ] = None,
    read_memory: Annotated[
        int | None,
        size_option(
            "Most memory for reading each file; default: the memory limit, or a quarter of the available memory",
            "--read-memory",
        ),
    ] = None,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:  # fmt: skip
    """Schedule neural computation graphs under a memory budget, and certify every schedule."""
    ctx.with_resource(read_limits(read_time, read_memory))


class Commands(Mapping[str, Any]):
    """Commands by name, each imported and parsed on first use: all of them together take 0.2 s.

    `own`: commands of this module.
    """

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._names = (*NAMES, *own, *GROUPS)
        self._made = dict(own)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = _made(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _made(name: str) -> Any:
    """Import a command or group of commands, and return its parser."""
    module = import_module(f"remat.cli.{HOMES.get(name, name.replace('-', '_'))}")
    if name in GROUPS:
        group = typer.main.get_command(module.app)
        group.name = name
        return group
    function = module.read if name == "import" else module.command
    if name not in NO_MODELS:
        function = _with_values(function)
        if name != "import":
            function = _with_bytes(function)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=Command)(function)
    return typer.main.get_command(alone)


def run(words: list[str]) -> int:
    """Run a command and return its exit code."""
    with guarded(), warnings.catch_warnings():
        warnings.simplefilter("always", FormatRemark)
        warnings.showwarning = partial(_remark, warnings.showwarning)
        return _run_guarded(words)


def _remark(others: Callable[..., None], message: Warning | str, category: type[Warning], *rest: Any) -> None:
    """Print warnings about files and compilation as one line on standard error; pass on others."""
    if issubclass(category, FormatRemark | CompilingRemark):
        say("remark", str(message))
    else:
        others(message, category, *rest)


def _run_guarded(words: list[str]) -> int:
    try:
        code = _run(words or ["--help"])
        sys.stdout.flush()
    except RematError as error:
        return _complain(str(error))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # type: ignore[attr-defined]
            return OK
        return _complain(usage_message(error, words))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except MemoryError:
        return _complain("out of memory")
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            return _complain(f"{error.filename}: {error.strerror}")
        if isinstance(error, OSError) and error.errno is not None:
            _silence_stdout()
            return _complain(f"cannot write: {error.strerror}")
        if os.environ.get(TRACEBACK):  # a fault of remat or of a plug-in
            raise
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _complain(
            f"internal error, {what} (set {TRACEBACK}=1 in the environment for the traceback; "
            "please report it with the output of remat.show_versions())"
        )
    return code


@cache
def root_command() -> Any:
    """Return the parser of the command line, made once per process."""
    root: Any = typer.main.get_command(app)
    root.commands = Commands(root.commands)
    return root


def _run(words: list[str]) -> int:
    """Return the exit code of a command; typer's ``main`` handles signals and pipes differently."""
    command = root_command()
    try:
        if asked := os.environ.get(COMPLETION):
            sys.stdout = unguarded(sys.stdout)  # fish separates words from help by tabs
            return typer.completion.shell_complete(command, {}, "remat", COMPLETION, asked)
        if words[0] in ("--install-completion", "--show-completion"):
            return _set_up_completion(*words)
        with command.make_context("remat", words) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return OK


def _set_up_completion(option: str, *names: str) -> int:
    """Install or show the completion for the named shell, or for the one that runs this program."""
    shell = names[0] if names else _own_shell()
    if shell not in SHELLS or len(names) > 1:
        raise typer.BadParameter(f"{option}: name one shell of {', '.join(SHELLS)}")
    make: Any = vars(typer.completion)  # its names are not declared as exported
    script = make["get_completion_script"](prog_name="remat", complete_var=COMPLETION, shell=shell)
    script = script.replace(*_ZSH_REGISTERS)
    if option == "--show-completion":
        print(script)
        return OK
    _, path = make["install"](shell, "remat", COMPLETION)
    if shell == "zsh":
        path.write_text(script, encoding="utf-8")
    print(f"completion for {shell} is installed in {path}; open a new terminal to use it")
    return OK


def _own_shell() -> str:
    """Return the name of the shell that runs this program, or ""."""
    import shellingham  # type: ignore[import-untyped]

    try:
        return str(shellingham.detect_shell()[0])
    except shellingham.ShellDetectionFailure:
        return ""


def _complain(message: str) -> int:
    say("error", message)
    return ERROR


def _silence_stdout() -> None:
    """Discard buffered output after the reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
