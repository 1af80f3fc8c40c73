"""``remat new``: a package with a part of its own, its entry point, and tests that pass the conformance kit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from remat.cli.screen import say_sentence


class Kind(StrEnum):
    """Kind of part."""

    FORMULATION = "formulation"
    HEURISTIC = "heuristic"
    BACKEND = "backend"
    FORMAT = "format"


@dataclass(frozen=True)
class Template:
    """Working part that the package starts with, and the names in it that are replaced.

    Attributes
    ----------
    part, label : str
        Names of the class or object, and of the part.
    checks : str
        Lines of the tests after the imports; ``PART`` is the loaded part.
    example : str
        Python code that uses the part by its name; the package's page shows it and its tests run it.
    """

    part: str
    label: str
    checks: str
    example: str


_EFFORT = "Effort(most_ops=4, cases=2, grace=5.0)"
_LOOP = '''@pytest.mark.parametrize("check", {checks})
def test_{name}(check):
    """{docstring}"""
    check({arguments})
'''
_SOLVE = """from remat import Problem, layered, solve

result = solve(Problem(layered(8, seed=3), "90%"{rules}), {arguments})
print(result)
"""
_ALONE = "Check the part alone."
TEMPLATES = {
    Kind.FORMULATION: Template(
        "LiveInSlots",
        "live-in-slots",
        _LOOP.format(checks="FORMULATION_CHECKS", name="formulation", docstring=_ALONE, arguments="PART")
        + "\n\n"
        + _LOOP.format(
            checks="PAIR_CHECKS",
            name="formulation_with_a_solver",
            docstring="Compare with optima found by exhaustive search.",
            arguments=f'PART, registry.make_backend("highs"), {_EFFORT}',
        ),
        _SOLVE.format(rules="", arguments='"{label}", "highs", stop=60'),
    ),
    Kind.HEURISTIC: Template(
        "RandomOrders",
        "random-orders",
        _LOOP.format(checks="HEURISTIC_CHECKS", name="heuristic", docstring=_ALONE, arguments=f"PART, {_EFFORT}"),
        _SOLVE.format(rules=', order="free"', arguments='"{label}", stop=10'),
    ),
    Kind.BACKEND: Template(
        "ScipyMilp",
        "scipy-milp",
        _LOOP.format(checks="BACKEND_CHECKS", name="backend", docstring=_ALONE, arguments="PART()")
        + "\n\n"
        + _LOOP.format(
            checks="PAIR_CHECKS",
            name="backend_with_a_formulation",
            docstring="Compare with optima found by exhaustive search.",
            arguments=f'registry.load("formulations", "checkmate"), PART(), {_EFFORT}',
        ),
        _SOLVE.format(rules="", arguments='"checkmate", "{label}", stop=60'),
    ),
    Kind.FORMAT: Template(
        "EDGE_LIST",
        "edge-list",
        _LOOP.format(checks="FORMAT_CHECKS", name="format", docstring=_ALONE, arguments="PART, Effort(cases=2)"),
        """from remat import layered, read_graph, write_graph

write_graph(layered(8, seed=3), "graph.edges")
print(read_graph("graph.edges"))
""",
    ),
}
GROUPS = {
    Kind.FORMULATION: "formulations",
    Kind.HEURISTIC: "heuristics",
    Kind.BACKEND: "backends",
    Kind.FORMAT: "graph_formats",
}
PYPROJECT = """[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "remat-{label}"
version = "0.1.0"
description = "The {kind} {label} for remat"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["remat", "numpy", "scipy"]

[project.entry-points."remat.{group}"]
{label} = "{package}.{kind}:{part}"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.pytest.ini_options]
testpaths = ["tests"]
"""
README = """# remat-{label}

The {kind} `{label}` for [remat](https://remat.readthedocs.io), in `{package}/{kind}.py`.

    pip install -e .
    remat backends    # lists it
    pytest            # the conformance kit

[docs/{label}.md](docs/{label}.md) shows how to use it.
"""
PAGE = """# {label}

A {kind} for [remat](https://remat.readthedocs.io). Replace this text: what it does, its source, its limits.

    pip install -e .

It is found by its name, in Python and in the shell:

```python
{example}```

Its code is `{package}/{kind}.py`. The page [How to add a {kind}](https://remat.readthedocs.io/en/latest/extend/{kind}/)
explains each part of that file. Its tests are the [conformance kit](https://remat.readthedocs.io/en/latest/extend/conformance/).
"""
PAGE_TEST = '''"""The page's example runs."""

import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "{label}.md"


@pytest.mark.parametrize("code", re.findall(r"```python\\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
def test_example(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("example.py").write_text(code, encoding="utf-8")
    runpy.run_path("example.py")
'''
TESTS = '''"""Conformance of `{label}`, found by its entry point."""

import pytest

from remat import registry
from remat.testing import {imports}

PART = registry.load("{group}", "{label}")


'''
FORMAT_TESTS = '''"""Conformance of `{label}`, found by its entry point."""

from importlib.metadata import entry_points

import pytest

from remat.testing import {imports}

PART = entry_points(group="remat.{group}")["{label}"].load()


'''


def files(kind: Kind, label: str) -> dict[str, str]:
    """Return the files of a package by their paths."""
    template, package = TEMPLATES[kind], f"remat_{label.replace('-', '_')}"
    words = label.split("-")
    part = "_".join(words).upper() if kind is Kind.FORMAT else "".join(word.capitalize() for word in words)
    source = resources.files("remat.cli").joinpath("templates", f"{kind}.txt").read_text(encoding="utf-8")
    source = source.replace(template.part, part).replace(template.label, label)
    if not source.startswith('"""'):
        source = f'"""The {kind} `{label}`."""\n\n{source}'
    imports = sorted({*re.findall(r"[A-Z]+_CHECKS", template.checks), *re.findall("Effort", template.checks)})
    names = {"label": label, "kind": kind, "group": GROUPS[kind], "package": package, "part": part}
    loading = FORMAT_TESTS if kind is Kind.FORMAT else TESTS
    tests = loading.format(imports=", ".join(imports), **names) + template.checks
    return {
        "pyproject.toml": PYPROJECT.format(**names),
        "README.md": README.format(**names),
        f"docs/{label}.md": PAGE.format(example=template.example.format(label=label), **names),
        "tests/test_page.py": PAGE_TEST.format(**names),
        f"{package}/__init__.py": f'"""The {kind} `{label}` for remat."""\n',
        f"{package}/{kind}.py": source,
        "tests/test_kit.py": tests,
    }


def command(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=f"One of {', '.join(Kind)}.", show_default=False)],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the part, such as my-slots.", show_default=False)
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="New folder; default: remat-NAME.", show_default=False),
    ] = None,
) -> None:
    """Write a package with a part of your own: code, entry point, page and tests.

    Examples
    --------
    remat new heuristic my-slots
    """
    from importlib.metadata import entry_points

    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise typer.BadParameter(f"{name!r} is not a name: use small letters, digits and hyphens, such as my-slots")
    if name in entry_points(group=f"remat.{GROUPS[kind]}").names:
        raise typer.BadParameter(f"{name!r} is the name of another {kind}; choose another one")
    folder = output if output is not None else Path(f"remat-{name}")
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists; name another folder with --output")
    for path, text in files(kind, name).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    say_sentence(f"{folder}: install it with `pip install -e {folder}`, then run `pytest {folder}`")
