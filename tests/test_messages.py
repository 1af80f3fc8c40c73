"""Kinds of errors: all in the source have recorded messages, and all recorded ones are tested."""

import ast
from pathlib import Path

import refusals

from remat.errors import RematError
from remat.solving.backend_call import SolverFailedError

PACKAGE = Path(__file__).resolve().parent.parent / "remat"
AREAS = {kind.__name__: kind.area for kind in (*RematError.__subclasses__(), RematError, SolverFailedError)}


def kinds_in_source() -> set[str]:
    """Return the kinds in calls ``SomeError(message, kind, ...)`` of the package."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "Error(" in source else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                given = node.args[1:2] + [keyword.value for keyword in node.keywords if keyword.arg == "kind"]
                area = AREAS.get(node.func.id)
                found |= {f"{area}.{kind.value}" for kind in given if area and isinstance(kind, ast.Constant)}
    return found


def recorded_kinds() -> set[str]:
    return {kind for path in refusals.MESSAGES.glob("*.txt") for kind in refusals.read_texts(path.stem)}


def test_all_kinds_have_recorded_messages() -> None:
    assert kinds_in_source() <= recorded_kinds()


def test_all_recorded_kinds_are_tested() -> None:
    tests = Path(__file__).parent.rglob("test_*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    kinds = {kind for kind in recorded_kinds() if f'f"{kind.partition(".")[0]}.{{' not in text}  # composed in a test
    assert not {kind for kind in kinds if f'"{kind}"' not in text}
