"""Pydantic schemas of composites and options, which are tables in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


def numbers() -> CoreSchema:
    """Return the schema of a list of op numbers."""
    from pydantic_core import core_schema

    return core_schema.list_schema(core_schema.int_schema(ge=0))


def table_schema(kind: type, make: Callable[..., Any], required: dict[str, Any], other: dict[str, Any]) -> CoreSchema:
    """Return the schema of a class whose objects are tables with these keys; `make` builds one from a table."""
    from pydantic_core import core_schema

    fields = {key: core_schema.typed_dict_field(schema) for key, schema in required.items()}
    fields |= {key: core_schema.typed_dict_field(schema, required=False) for key, schema in other.items()}
    table = core_schema.typed_dict_schema(fields, extra_behavior="forbid")
    return core_schema.json_or_python_schema(
        core_schema.no_info_after_validator_function(lambda given: make(**given), table),
        core_schema.is_instance_schema(kind),
    )
