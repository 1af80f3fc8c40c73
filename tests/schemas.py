"""JSON Schemas of the package, derived from its models; ``make schemas`` writes them."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from remat.graphs.formats import remat_json as graph_file
from remat.io.documents import described_schema
from remat.io.files import write_atomic
from remat.schedule.formats import plan_files
from remat.schedule.formats import remat_json as schedule_file


def schema_text(kind: type[BaseModel], title: str) -> str:
    """Return the JSON Schema of a document as the text of a file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **described_schema(kind), "title": title}
    for part in (schema, *schema.get("$defs", {}).values()):
        part["description"] = " ".join(part["description"].split())
        for entry in part["properties"].values():
            entry.pop("title", None)
    return json.dumps(schema, indent=1) + "\n"


def schemas() -> dict[Path, str]:
    """Return the text of each schema by its file."""
    graphs, schedules = Path(graph_file.__file__).parent, Path(schedule_file.__file__).parent
    return {
        graphs / "graph.schema.json": schema_text(graph_file.GraphDocument, "remat graph"),
        schedules / "schedule.schema.json": schema_text(schedule_file.ScheduleDocument, "remat schedule"),
        schedules / "plan.schema.json": schema_text(plan_files.PlanDocument, "remat execution plan"),
    }


if __name__ == "__main__":
    for path, text in schemas().items():
        write_atomic(path, text)
