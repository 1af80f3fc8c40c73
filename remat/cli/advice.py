"""Remedies for mistakes on the command line that the parser cannot name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from remat.io.files import exists

_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((?P<words>.*)\)", re.DOTALL)
_BUDGET = re.compile(r"[0-9.,_]+(%|[kmgt]?i?b?)", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"([0-9.]+(ms|s|sec|m|min|h|d))+", re.ASCII)
_SIZE_UNIT = re.compile(r"%|percent|[kKmMgGtT]i?[bB]|bytes", re.ASCII)
_UNIT = re.compile(r"%|percent|ms|s|secs?|seconds?|m|mins?|minutes?|h|hours?|[kKmMgGtT]i?[bB]?|bytes", re.ASCII)
#: Options of other programs, with the one that is meant here.
_SYNONYMS = {
    **dict.fromkeys(("timeout", "time", "limit", "max-time", "tl"), "time-limit"),
    **dict.fromkeys(("memory", "mem", "constraint"), "budget"),
    **dict.fromkeys(("out", "file", "save", "csv"), "output"),
    **dict.fromkeys(("jobs", "cores", "workers"), "thread"),
    **dict.fromkeys(("algorithm", "algo"), "method"),
    **dict.fromkeys(("figure", "image"), "plot"),
    "solver": "backend", "silent": "quiet", "budget": "memory", "b": "memory", "method": "partitioner",
    "m": "partitioner", **dict.fromkeys(("sarif", "junit"), "output"),
}  # fmt: skip
#: Options that a command does not need, with the reason.
_WITHOUT = {
    **dict.fromkeys([("minimize", "b"), ("minimize", "budget"), ("minimize", "budgets")],
                    "; minimize finds the least budget itself, and `remat solve` takes one"),
    ("order", "order"): "; order always searches for an order",
    **dict.fromkeys([("bounds", "m"), ("bounds", "method"), ("bounds", "methods")],
                    "; bounds applies all; did you mean --relaxations?"),
    ("show", "n"): "; did you mean --top?",
    **dict.fromkeys([("show", "b"), ("show", "budget")], "; `remat solve` takes a budget"),
}  # fmt: skip
#: Options of other programs for the graph, which is an argument here.
_GRAPH_OPTIONS = ("graph", "g", "input", "i", "model", "network", "net")
#: A value of each option, for the remedy of a missing one; others show their metavar.
_VALUES = {
    "budget": "80%", "time-limit": "10s", "method": "greedy", "backend": "highs", "memory": "16GiB", "on-chip": "1MiB",
}  # fmt: skip
#: Words of the parser, with plainer ones.
_PLAIN = (
    (r"Input should be a valid integer.*", "should be a whole number"),
    (r"Input should be a valid number.*", "should be a number"),
    (r"Input should be greater than or equal to (\S+)", r"should be \1 or more"),
    (r"Input should be (.*)", r"should be \1"),
    (r"Value error, (.*?) is not one of (.*)\.", r"\1 is not one of \2"),
)


def usage_message(error: Any, words: Sequence[str]) -> str:
    """Return the message of a usage error, with its remedy.

    Parameters
    ----------
    error : UsageError
        Error of the parser, or a BadParameter of a command.
    words : sequence of str
        Command line.
    """
    message = error.format_message().removeprefix("Invalid value: ")
    command = getattr(getattr(error, "ctx", None), "command", None)
    for pattern, plain in _PLAIN:
        if (changed := re.sub(pattern, plain, message)) != message:
            given = _given(getattr(error, "param", None), words)
            message = changed if not given or given in changed else f"{changed}, not {given[:60]!r}"
            break
    if command is None:
        return message
    option = getattr(error, "option_name", None)
    path = error.ctx.command_path
    if hasattr(command, "commands"):
        if option:
            return f"No such option: {option}{_early(option, command, path)}"
        return message + _no_command(words, command, path)
    if message.startswith("No such option"):
        advice = _WITHOUT.get((path.rpartition(" ")[2], str(option).lstrip("-"))) or _near(str(option), command)
        return f"No such option: {option}{advice or f'; `{path} --help` lists them'}"
    if message.endswith("requires an argument."):
        return f"{message.removesuffix('.')}; write {option} {_value(str(option), command)}"
    if message.startswith("Missing"):
        example = next(iter(command.examples), "")
        return message.removesuffix(".") + (f"; for example: {example}" if example else "")
    return message + _extra(message, words, command, path)


def _given(param: Any, words: Sequence[str]) -> str:
    """Return the value of an option on the command line, or ""."""
    names = getattr(param, "opts", ())
    for name, value in zip(words, [*words[1:], ""], strict=False):
        if name in names:
            return value
        if name.partition("=")[0] in names:
            return name.partition("=")[2]
    return ""


def _no_command(words: Sequence[str], group: Any, path: str) -> str:
    """Return the remedy if a word is no command."""
    from remat.graphs.zoo import ZOO

    word = next((word for word in words if not word.startswith("-") and word not in group.commands), "")
    near = get_close_matches(word, group.commands, n=1)
    if near:
        return ""  # the parser names it
    if "solve" in group.commands and (word in ZOO or exists(word)):
        return f" To solve a graph, write: remat solve {word} --budget 80%"
    return f" `{path} --help` lists {'the commands' if 'solve' in group.commands else 'them'}."


def _early(option: str, group: Any, path: str) -> str:
    """Return the remedy for an option before the command."""
    users = [name for name, each in group.commands.items() if any(option in param.opts for param in each.params)]
    if near := get_close_matches(option, [name for param in group.params for name in param.opts], n=1):
        return f"; did you mean {near[0]}?"
    if not users:
        return "; options of a command follow it: remat solve GRAPH --budget 80%"
    value = _value(option, group.commands[users[0]])
    return f"; it follows the command: {path} {users[0]} ... {option} {value}".rstrip()


def long_name(param: Any) -> str:
    """Return the longest name of an option, without hyphens at the start."""
    return str(max(param.opts, key=len)).lstrip("-")


def _options(command: Any) -> dict[str, Any]:
    """Return the options of a command by long name."""
    return {long_name(each): each for each in command.params if each.param_type_name == "option"}


def _near(option: str, command: Any) -> str:
    known = _options(command)
    word = option.lstrip("-").lower()
    first = next((each.metavar or "" for each in command.params if each.param_type_name == "argument"), "")
    if first.strip("[].") == "GRAPH" and word in _GRAPH_OPTIONS:
        return f"; write GRAPH without an option: remat {command.name} GRAPH"
    named = next((name for name in known if name.removesuffix("s") == _SYNONYMS.get(word)), None)
    short = {each.lower(): each for param in known.values() for each in param.opts if len(each) == 2}
    if named is not None:
        return f"; did you mean --{named}?"
    if option.lower() in short:
        return f"; did you mean {short[option.lower()]}?"
    near = [name for name in known if len(word) > 2 and name.startswith(word)]
    near = near or get_close_matches(word, [*known, *(f"{name}s" for name in known)], n=1, cutoff=0.7)
    near = [name if name in known else name.removesuffix("s") for name in near]
    return f"; did you mean --{near[0]}?" if near else ""


def _value(option: str, command: Any) -> str:
    """Return a value for an option, for a remedy."""
    param = next((each for each in command.params if option in each.opts), None)
    if param is None or getattr(param, "is_flag", False):
        return ""
    name = long_name(param).removesuffix("s")
    return _VALUES.get(name, (param.metavar or "VALUE").split("|")[0])


def _extra(message: str, words: Sequence[str], command: Any, path: str) -> str:
    """Return the remedy for words that no argument takes."""
    found = _EXTRA.fullmatch(message)
    if found is None:
        return ""
    parts = re.sub(rf"(?<!\S)([0-9.]+) ({_UNIT.pattern})(?!\S)", r"\1\2", found["words"]).split(" ")
    first = parts[0]
    before = words[words.index(first) - 1] if first in words[1:] else ""
    if _UNIT.fullmatch(first) and re.fullmatch(r"[0-9.]+", before):
        unit = "%" if first == "percent" else first
        short = unit[0] if re.match("sec|min|hour", unit) else unit
        return f"; write {before}{short} as one word"
    options = [option for word in parts if (option := misplaced(word, command, outputs=not exists(word)))]
    if not options and "warm-start" in _options(command) and exists(first):
        return f"; write --warm-start {first} to start from a schedule"
    if options:
        return f"; write {' '.join(options)}"
    flag = any(before in each.opts and getattr(each, "is_flag", False) for each in command.params)
    return f"; {before} takes no value" if flag else f"; `{path} --help` shows what it takes"


def misplaced(word: str, command: Any, *, outputs: bool = True) -> str:
    """Return the option that a word is meant for, with the word, if the command has it; else "".

    Budgets, times, methods, backends and, with `outputs`, files to write need their options.
    """
    from remat import registry
    from remat.solving.method import is_method

    options = _options(command)
    names = {name.removesuffix("s"): name for name in options}
    reads_files = any(each.nargs == -1 or each.metavar == "SCHEDULE" for each in command.params)
    suffix = r"\.(png|svg|pdf|html|csv|lp|mps|mzn)$" if reads_files else r".\.[a-z]+$"
    kinds = {
        "time-limit": bool(_TIME.fullmatch(word)),
        "budget": bool(_BUDGET.fullmatch(word)),
        "memory": bool(_BUDGET.fullmatch(word)) and "%" not in word,
        "on-chip": bool(_BUDGET.fullmatch(word)) and "%" not in word,
        "method": is_method(word.partition("/")[0]),
        "backend": word.partition(":")[0] in registry.backends(),
        "output": outputs and bool(re.search(suffix, word)),
    }
    fits = next((names[kind] for kind, fits in kinds.items() if fits and kind in names), None)
    if fits is None:
        return ""
    if fits.startswith("budget") and word.isdecimal() and int(word) <= 100:
        word += "%"
    return f"--{fits} {word}"


def lone_unit(arguments: Sequence[object]) -> str:
    """Return an argument that is the unit of the number before it, if it is no file, or else ""."""
    return next((str(each) for each in arguments if _SIZE_UNIT.fullmatch(str(each)) and not exists(str(each))), "")


def swapped(arguments: Mapping[str, Any]) -> str:
    """Return the graph that was given in place of a schedule, if a command has them in the wrong order, or else ""."""
    from remat.errors import RematError
    from remat.graphs.formats.base import graph_formats
    from remat.io.files import is_special
    from remat.io.formats import Source
    from remat.schedule.formats.base import schedule_formats

    first = arguments.get("graph") or arguments.get("source")
    others = arguments.get("schedule") or arguments.get("schedules") or ()
    second = others[0] if isinstance(others, list | tuple) and others else others
    if not first or not second or is_special(first) or is_special(second):
        return ""
    try:
        schedule_formats.recognized(Source.of_file(first))
        graph_formats.recognized(Source.of_file(second))
    except RematError:
        return ""
    return str(second)
