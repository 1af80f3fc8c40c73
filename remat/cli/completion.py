"""Completion of words in the shell: names that are registered, graphs of the zoo, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

#: Returns the words that begin with an incomplete one.
Completion = Callable[[str], list[str]]

#: Suffixes of graph files that completion offers.
GRAPH_SUFFIXES = (".json", ".onnx", ".tflite", ".dot", ".gv", ".hlo", ".log", ".pb", ".txt")
#: Suffixes of files that may be schedules.
SCHEDULE_SUFFIXES = (".json", ".txt", ".csv", ".pickle", ".hlo")


def one_of(*choices: str) -> Completion:
    """Return the completion of an option with these values."""
    return lambda incomplete: _beginning(incomplete, choices)


def last_of(complete: Completion) -> Completion:
    """Return the completion of the last of several words between commas."""

    def completed(incomplete: str) -> list[str]:
        others, comma, word = incomplete.rpartition(",")
        return [f"{others}{comma}{name}" for name in complete(word)]

    return completed


def complete_registered(*groups: str) -> Completion:
    """Return the completion of names in groups of the registry."""

    def completed(incomplete: str) -> list[str]:
        from remat.registry import Registered

        return _beginning(incomplete, (name for group in groups for name in Registered(group)))

    return completed


def complete_backend(incomplete: str) -> list[str]:
    """Complete a backend, or one with a solver as its variant."""
    from remat.registry import SOLVERS, Registered

    return _beginning(incomplete, dict.fromkeys([*Registered("backends"), *SOLVERS.values()]))


def complete_method(incomplete: str) -> list[str]:
    """Complete a method, and after a slash its backend."""
    method, slash, backend = incomplete.partition("/")
    if slash:
        return [f"{method}/{name}" for name in complete_backend(backend)]
    return complete_registered("methods", "heuristics", "formulations")(incomplete)


complete_methods = last_of(complete_method)
complete_partitioners = last_of(complete_registered("partitioners"))
complete_formulations = last_of(complete_registered("formulations"))


def complete_machine(incomplete: str) -> list[str]:
    """Complete the first word of a machine, or after a comma a setting."""
    from remat.schedule.machine import MEASURED, PRESETS, SETTINGS

    others, comma, word = incomplete.rpartition(",")
    settings = [f"{name}=" for name in SETTINGS]
    return [
        f"{others}{comma}{each}" for each in _beginning(word, settings if comma else (*PRESETS, MEASURED, *settings))
    ]


def complete_graph(incomplete: str) -> list[str]:
    """Complete a graph of the zoo, a folder or a graph file; an empty word leaves variants out."""
    from remat.graphs.zoo import VARIANTS, ZOO

    names = ZOO if incomplete else (name for name in ZOO if not name.endswith(VARIANTS))
    return [*_beginning(incomplete, names), *_paths(incomplete, GRAPH_SUFFIXES)]


def complete_generator(incomplete: str) -> list[str]:
    """Complete a generator of graphs."""
    from remat.graphs.generators import generators

    return _beginning(incomplete, generators())


def complete_schedule(incomplete: str) -> list[str]:
    """Complete a folder, or a file that may be a schedule."""
    return _paths(incomplete, SCHEDULE_SUFFIXES)


def complete_format(incomplete: str) -> list[str]:
    """Complete a schedule format."""
    from remat.schedule.formats.base import schedule_formats

    return _beginning(incomplete, [each.name for each in schedule_formats()])


def _paths(incomplete: str, suffixes: Iterable[str]) -> list[str]:
    """Return folders, and files with a suffix, whose paths begin with `incomplete`."""
    folder, slash, name = incomplete.rpartition("/")
    with suppress(OSError):
        found = sorted(Path(f"{folder}{slash}" or ".").iterdir())
        named = (each for each in found if each.name.startswith(name) and (name or not each.name.startswith(".")))
        return [
            f"{folder}{slash}{each.name}{'/' * each.is_dir()}"
            for each in named
            if each.is_dir() or each.suffix.lower() in suffixes
        ]
    return []


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
