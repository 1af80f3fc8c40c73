"""The JSON Schemas in the package, as the models say them: ``make schemas`` writes them again."""

from __future__ import annotations

from pathlib import Path

from remat.graphs.formats import remat_json as graph_file
from remat.io.documents import schema_text
from remat.io.files import write_atomic
from remat.schedule.formats import plan_files
from remat.schedule.formats import remat_json as schedule_file


def schemas() -> dict[Path, str]:
    """The text of each schema, by the file that has it."""
    graphs, schedules = Path(graph_file.__file__).parent, Path(schedule_file.__file__).parent
    return {
        graphs / "graph.schema.json": schema_text(graph_file.GraphDocument, "remat graph, version 1"),
        schedules / "schedule.schema.json": schema_text(schedule_file.ScheduleDocument, "remat schedule, version 1"),
        schedules / "plan.schema.json": schema_text(plan_files.PlanDocument, "remat execution plan, version 1"),
    }


if __name__ == "__main__":
    for path, text in schemas().items():
        write_atomic(path, text)
