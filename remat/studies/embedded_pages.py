"""Interactive pages of schedules inside a report: one frame, and the data of each schedule, compressed."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable

from remat.io.page import page_text
from remat.schedule.pages import page_data
from remat.studies.solving import problem_of
from remat.studies.store import Result, Store

#: Most bytes of all pages in a report; schedules beyond have none.
MOST = 24 * 2**20
#: Stands for the data in the frame.
MARK = "@DATA@"


def frame() -> str:
    """Return the page of schedules, compressed, with :data:`MARK` where its data belongs."""
    return _packed(page_text({"title": "schedule", "kind": "schedule", "lines": [], MARK: 0}))


def pages(store: Store, results: Iterable[Result]) -> dict[str, str]:
    """Return the compressed data of the page of each cell with a schedule, by the cell's digest."""
    found: dict[str, str] = {}
    size = 0
    for result in results:
        if result.schedule:
            graph, schedule = store.graph(result.cell), store.schedule(result)
            data = page_data(graph, schedule, problem_of(graph, result.cell.run).rules)
            data["title"] = result.cell.title
            text = _packed(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))
            size += len(text)
            if size > MOST:
                break
            found[result.cell.digest] = text
    return found


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
