"""Options and help are uniform over all commands, by introspection of the parser."""

import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from shell import ok

from remat.cli.advice import long_name
from remat.cli.command import SECTIONS
from remat.cli.shell import root_command

#: Short names by singular long names; no other option has one.
SHORT = {
    "budget": "-b", "method": "-m", "time-limit": "-t", "output": "-o", "quiet": "-q", "config": "-c",
    "partitioner": "-p", "op": "-n", "help": "-h",
}  # fmt: skip
#: Names that mean different things in different commands.
DIFFERENT = {"memory", "order", "check", "cost", "option", "to", "output", "machine",
             "count-constant-memory", "device"}  # fmt: skip
#: Commands with a time limit that lack threads, seed or quiet, since they have nothing to divide, draw or show.
LACKING = {
    "threads": {"partition", "plan", "rewrite", "library run"}, "seed": {"bounds", "partition", "plan"},
    "quiet": {"partition", "plan"},
}  # fmt: skip
ACCEPTED = {
    "SIZE": {"8G": 8 * 2**30, "16 gib": 16 * 2**30, "1.5 KB": 1500, "1000": 1000},
    "TIME": {"10s": 10, "5m": 300, "1h30m": 5400, "90": 90, "2 min": 120},
    "SHARE": {"5%": 0.05, "0.05": 0.05},
}


def walk(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from walk(each, f"{path}{name} ")
        else:
            yield f"{path}{name}", each


COMMANDS = dict(walk(root_command()))


def options(command: Any) -> dict[str, Any]:
    """Return the options of a command by their singular."""
    found = (param for param in command.params if param.param_type_name == "option")
    return {long_name(param).removesuffix("s"): param for param in found}


def context(name: str) -> Any:
    command = COMMANDS[name]
    return command.context_class(command, info_name=name)


def test_options_have_the_same_names_and_values_everywhere() -> None:
    shorts, values = defaultdict(set), defaultdict(set)
    for command in COMMANDS.values():
        for name, param in options(command).items():
            shorts[name] |= {opt for opt in param.opts if len(opt) == 2} or {""}
            flag = bool(param.is_flag)
            assert flag or param.metavar, f"{param.opts} shows no kind of value"
            values[name].add("" if flag else param.metavar.partition(",")[0].partition("[")[0])
    assert {name: found for name, found in shorts.items() if found != {SHORT.get(name, "")}} == {}
    assert {name for name, found in values.items() if len(found) > 1} <= DIFFERENT


@pytest.mark.parametrize("name", COMMANDS)
def test_values_as_people_write_them(name: str) -> None:
    """Sizes, times and shares are parsed alike, and lists accept singular and plural."""
    ctx = context(name)
    names = COMMANDS[name].make_parser(ctx)._long_opt
    for param in COMMANDS[name].params:
        if param.param_type_name != "option" or param.is_flag:
            continue
        for text, value in ACCEPTED.get(param.metavar, {}).items():
            assert param.process_value(ctx, text) == pytest.approx(value), param.opts
        word = f"--{long_name(param).removesuffix('s')}"
        assert {word, f"{word}s"} <= set(names), param.opts


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if "time-limit" in options(command)])
def test_limits_come_together(name: str) -> None:
    found = options(COMMANDS[name])
    missing = {word for word in LACKING if word.removesuffix("s") not in found}
    assert missing == {word for word, commands in LACKING.items() if name in commands}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_has_sections_and_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = ok(f"{name} --help").out
    assert not [line for line in text.splitlines() if len(line) > 60 or line.endswith("-")]
    assert "{" not in text.partition("\n\n")[0] and ".0]" not in text
    sections = {line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")}
    assert sections <= {"Arguments", "Options", "Examples", *SECTIONS}
    examples = COMMANDS[name].examples
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" > ")[0])
        assert " ".join(words[1:]).startswith(name)
        COMMANDS[name].make_context(name, words[1 + len(name.split()) :])  # raises if an option or value is wrong
