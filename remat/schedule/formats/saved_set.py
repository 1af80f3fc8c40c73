"""Saved sets: the tensors that the forward pass keeps, as torch's partitioner and selective checkpointing choose them.

A file is a JSON object ``{"saved": ["tensor", ...]}``.
"""

from __future__ import annotations

from remat.graphs import ComputeGraph
from remat.io.documents import ForeignDocument, decoded
from remat.io.formats import Source
from remat.schedule.formats.base import ScheduleFormat, needed_graph
from remat.schedule.saved_sets import schedule_of_saved
from remat.schedule.schedule import Schedule


class SavedDocument(ForeignDocument):
    """File of a saved set."""

    saved: list[str]


def _read(source: Source, graph: ComputeGraph | None) -> Schedule:
    return schedule_of_saved(needed_graph(graph, "a saved set"), decoded(SavedDocument, source.json).saved)


FORMAT = ScheduleFormat(
    name="saved-set",
    description="tensors that the forward pass keeps (JSON)",
    recognizes=lambda source: source.looks_like_json and "saved" in source.json and "steps" not in source.json,
    read=_read,
)
