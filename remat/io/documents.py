"""JSON documents as models with exact types; all faults of a file are reported together.

Formats define their documents as subclasses of :class:`Document`. Readers, messages and the JSON Schemas in the package
derive from these.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from remat.errors import FormatError, RematError
from remat.io.limits import draw
from remat.runtime.text import LISTED, clipped, one_line, short, together

T = TypeVar("T")


class Document(BaseModel):
    """JSON object of a format of this project: immutable, exact types, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ForeignDocument(BaseModel):
    """JSON object of another tool's format: exact types; other keys are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Shape:
    """One message for any fault inside a value, for an ``Annotated`` type.

    `message` describes a faulty list or object: ``{at}`` is its place, ``{number}`` its position in a list, ``{value}``
    the value. `kind` is the kind expected instead of another value; if empty, `message` describes that as well.
    """

    def __init__(self, message: str, kind: str = "a list") -> None:
        self.message, self.kind = message, kind

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.custom_error_schema(
            handler(source),
            custom_error_type="shape",
            custom_error_message="shape",
            custom_error_context={"message": self.message, "kind": self.kind},
        )


#: Expected type, by pydantic's type of the fault.
_KINDS = {
    "string_type": "a string", "string_unicode": "Unicode text", "int_type": "a whole number",
    "int_from_float": "a whole number", "int_parsing": "a whole number", "float_type": "a number",
    "bool_type": "true or false", "list_type": "a list", "tuple_type": "a list", "dict_type": "an object",
    "model_type": "an object", "model_attributes_type": "an object", "dataclass_type": "an object",
}  # fmt: skip
#: Memory in bytes for each fault that pydantic lists.
_FAULT_MEMORY = 1500
_FINER = "pick a finer unit instead of a fraction"


def decoded(kind: type[T], value: Any, at: str = "", error: type[RematError] = FormatError) -> T:
    """Return a parsed JSON value as a document, or as any other type known to pydantic.

    Raise a RematError of one line with all faults and their places: missing or unknown keys, values of another type.

    `at` is the place of the value, for messages; empty for a whole document. `error` is the class to raise.

    Examples
    --------
    >>> class Point(Document):
    ...     x: int
    ...     y: int
    >>> decoded(Point, {"x": True, "z": 2})
    Traceback (most recent call last):
    remat.errors.FormatError: x must be a whole number, not True; key 'y' is missing; unknown key 'z'
    """
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as found:
        raise error(_summary(found, at)) from None


def field_docs(kind: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields of a model.

    pydantic can read them itself (``use_attribute_docstrings``), but does so at each import, for 10 ms a class.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if BaseModel in base.__mro__[1:]:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            for entry, text in pairwise(getattr(tree, "body", ())):
                if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
                    match text:
                        case ast.Expr(ast.Constant(str(words))):
                            found[entry.target.id] = inspect.cleandoc(words)
    return found


def described_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a model with the docstrings of its fields, and of those of models of its module."""
    schema = kind.model_json_schema()
    near = vars(sys.modules[kind.__module__])
    for title, part in ((kind.__name__, schema), *schema.get("$defs", {}).items()):
        model = near.get(title)
        if isinstance(model, type) and issubclass(model, BaseModel):
            for field, text in field_docs(model).items():
                name = model.model_fields[field].alias or field
                entries = {"description": text} | part["properties"][name]
                part["properties"][name] = dict(sorted(entries.items()))
    return schema


def check_header(document: Any, name: str, version: int | tuple[int, ...], remedy: str = "") -> None:
    """Refuse a document of another format, or of another version than those given, before any other check.

    `remedy` ends the message about another format.
    """
    if type(document) is not dict:
        raise FormatError(f"the document must be an object, not {short(document)}", "header")
    if document.get("format") != name:
        raise FormatError(f"format is {short(document.get('format'))}, not {name!r}{remedy}", "header")
    known = (version,) if isinstance(version, int) else version
    if type(document.get("version")) is not int or document["version"] not in known:
        readable = f"version{'s' if len(known) > 1 else ''} {' and '.join(map(str, known))}"
        raise FormatError(f"version is {short(document.get('version'))}; this program reads {readable}", "header")


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _adapters:
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel)  # models define their own strictness
        _adapters[kind] = TypeAdapter(kind, config=None if is_model else ConfigDict(strict=True))
    return _adapters[kind]


def _summary(error: ValidationError, at: str) -> str:
    """Return all faults on one line; the first :data:`LISTED` in words."""
    draw(_FAULT_MEMORY * error.error_count())
    faults = error.errors(include_url=False)
    said = together([_fault(fault, at) for fault in faults[: LISTED + 1]], len(faults))
    if any(fault["type"].startswith("int") and type(fault["input"]) is float for fault in faults):
        said += f"; {_FINER}"
    return said


def _fault(fault: ErrorDetails, start: str) -> str:
    kind, value, keys = fault["type"], fault["input"], fault["loc"]
    if kind in ("missing", "extra_forbidden"):
        at = place(keys[:-1], start)
        what = f"key {short(keys[-1], 40)} is missing" if kind == "missing" else f"unknown key {short(keys[-1], 40)}"
        return f"{at}: {what}" if at else what
    at = place(keys, start) or "the document"
    if kind == "shape":
        context = fault["ctx"]
        if context["kind"] and not isinstance(value, list | dict):
            return f"{at} must be {context['kind']}, not {short(value, 40)}"
        number = keys[-1] if keys else 0
        return context["message"].format(at=at, number=number, value=clipped(one_line(repr(value)), 80))
    if kind == "greater_than_equal":
        return f"{at} must not be negative, but is {short(value, 40)}"
    if kind == "literal_error":
        return f"{at} is {short(value, 40)}, not {fault['ctx']['expected']}"
    if kind in _KINDS:
        return f"{at} must be {_KINDS[kind]}, not {short(value, 40)}"
    return f"{at}: {one_line(fault['msg'])}"


def place(keys: Sequence[int | str], start: str = "") -> str:
    """Return the place of a value in a document, for messages.

    Examples
    --------
    >>> place(("ops", 3, "cost")), place((0, "id"), "nodes")
    ('ops[3].cost', 'nodes[0].id')
    """
    text = start
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else ("." if text else "") + one_line(key)[:60]
    return text


class Lines(tuple[str, ...]):
    """JSON texts that :func:`canonical` writes as a list with one line each."""

    __slots__ = ()


def canonical(fields: Mapping[str, Any], meta: Mapping[str, Any] | None = None, owner: str = "") -> str:
    r"""Return the text of a JSON object with a line for each field, in ASCII; equal content gives equal text.

    Raise FormatError if JSON cannot express `meta`.

    `meta` is written last, with its keys sorted; `owner` names the object it belongs to, for messages.

    Examples
    --------
    >>> print(canonical({"format": "points", "points": Lines(["[0, 1]", "[2, 3]"])}, {}), end="")
    {
    "format": "points",
    "points": [
    [0, 1],
    [2, 3]
    ],
    "meta": {}
    }
    """
    values = (
        "[\n" + ",\n".join(value) + "\n]" if isinstance(value, Lines) and value else json.dumps(value)
        for value in fields.values()
    )
    parts = [f"{json.dumps(key)}: {value}" for key, value in zip(fields, values, strict=True)]
    if meta is not None:
        try:
            parts.append(f'"meta": {json.dumps(dict(meta), sort_keys=True, allow_nan=False)}')
        except (TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"meta of {owner} is not JSON: {error}") from None
    return "{\n" + ",\n".join(parts) + "\n}\n"
