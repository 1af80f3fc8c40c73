"""Description of configurations: JSON Schema, and an example with every key."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from remat import registry
from remat.config.configuration import METHODS, Config
from remat.io.documents import described_schema, field_docs


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration, with the options of every installed formulation."""
    result = described_schema(Config)
    for group in (*METHODS, "partitioners"):
        tables: dict[str, Any] = {}
        for name, kind in sorted(registry.Registered(group).usable().items()):
            if kind.options_type is not None:
                about = f"Options of the {registry.GROUPS[group]} {name}."
                table = {**TypeAdapter(kind.options_type).json_schema(), "description": about}
                result["$defs"] |= table.pop("$defs", {})
                tables[name] = table
        result["properties"][group].update(properties=tables, additionalProperties=False)
    for part in (result, *result["$defs"].values()):
        part["description"] = _summary(part["description"])
    families = "|".join(sorted(registry.backends()))
    result["properties"]["backends"]["propertyNames"] = {"pattern": f"^({families})(:.+)?$"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **result}


#: Keys that the example shows with another value than the default, and keys that it comments out.
_GIVEN = {"graph": "vgg16", "budget": "90%", "time_limit": 60}
_SHOWN = {"costs": "costs.csv", "device": "gpu", "max_computes": 2, "threads": 2,
          "keep": ["tensor"], "objective": "least-time", "machine": "pcie4,host=64GiB", "memory_limit": "4GiB",
          "warm_start": "start.json",
          "schedule": "schedule.json", "plot": "schedule.png"}  # fmt: skip


def example() -> str:
    """Return a valid configuration with every key and its meaning."""
    lines = ["# A run of `remat solve --config FILE`. Keys after a # are examples, all others have their default."]
    for section in ("problem", "solve", "output"):
        kind: Any = Config.model_fields[section].annotation
        lines += ["", f"# {_summary(kind.__doc__)}", f"[{section}]"]
        meanings = field_docs(kind)
        for name, entry in kind.model_fields.items():
            key = entry.alias or name
            value = _SHOWN.get(key, _GIVEN.get(key, entry.default))
            lines += [
                f"# {entry.description or meanings[name]}",
                f"{'# ' if key in _SHOWN else ''}{key} = {json.dumps(value)}",
            ]
    lines += ["", "# Options of methods: those of the chosen one apply."]
    for group in (*METHODS, "partitioners"):
        for name, member in sorted(registry.Registered(group).usable().items()):
            if member.options_type is not None:
                lines += [f"[{group}.{name}]"]
                for key, value in vars(member.options_type()).items():
                    lines += [f"# {key} =" if value is None else f"{key} = {json.dumps(value)}"]
                lines += [""]
    lines += ["# Passed to solvers untouched, by the names of their manuals.", "[backends.cp-sat]"]
    lines += ["# linearization_level = 2", "", "[backends.highs]", "# mip_heuristic_effort = 0.1"]
    return "\n".join(lines) + "\n"


def _summary(text: str) -> str:
    """Return the first clause of a docstring, as a sentence."""
    return text.partition("\n")[0].partition(";")[0].rstrip(".") + "."
