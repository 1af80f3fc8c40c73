"""Solved schedules on disk, so that the second run of a script solves nothing."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from dataclasses import replace
from pathlib import Path

import torch

from remat._version import __version__
from remat.errors import RematError
from remat.problem import Problem
from remat.runtime.compiled.places import user_cache
from remat.runtime.text import json_text
from remat.schedule import Schedule
from remat.schedule.io import read_schedule, write_schedule

_log = logging.getLogger("remat.torch")

#: Environment variable with the folder of schedules; ``off``: nothing is stored or read.
FOLDER = "REMAT_SCHEDULES"
#: Most bytes of all stored schedules: the oldest are deleted first.
MOST = 256 * 2**20


def folder() -> Path | None:
    """Return the folder of schedules: ``REMAT_SCHEDULES``, or ``remat/schedules`` in the user's cache; None if off."""
    chosen = os.environ.get(FOLDER, "")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen)
    cache = user_cache()
    return None if cache is None else cache / "remat" / "schedules"


def stored_path(problem: Problem, how: object) -> Path | None:
    """Return the file for a question, by a digest of graph, shapes, budget, rules, search and versions.

    Costs do not count, since measured rates differ from run to run; the name of the cost model does.

    Parameters
    ----------
    how : object
        Search and its limits; its ``repr`` counts.
    """
    where = folder()
    if where is None:
        return None
    graph = problem.graph
    free = replace(graph, ops=[replace(op, cost=0) for op in graph.ops], meta={})
    question = (
        free.digest, problem.budget_bytes, problem.count_constant_memory, problem.compute_limits, problem.machine,
        graph.meta.get("cost_model"), how, torch.__version__, __version__,
    )  # fmt: skip
    return where / f"{hashlib.sha256(json_text([repr(each) for each in question]).encode()).hexdigest()[:32]}.json"


def find(path: Path | None, problem: Problem) -> Schedule | None:
    """Return the stored schedule of a problem, certified; None if there is none, or the file is damaged."""
    if path is None or not path.is_file():
        return None
    try:
        found = read_schedule(path).signed_for(problem.graph)
        certificate = problem.validate(found)
        if certificate.accepted:
            os.utime(path)
            return found
        reason = str(certificate.first)
    except (RematError, OSError) as error:
        reason = str(error)
    _log.warning(
        "stored schedule %s is not used, and the step is solved again: %s", path.name, " ".join(reason.split())
    )
    return None


def add(path: Path | None, schedule: Schedule) -> None:
    """Store a schedule atomically; delete the oldest ones above the size budget. A full disk is only logged."""
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_schedule(schedule, path)
        _trim(path.parent)
    except (RematError, OSError) as error:
        _log.info("the schedule is not stored: %s", error)


def _trim(where: Path) -> None:
    """Delete the schedules used longest ago until the rest fits the size budget."""
    known = sorted(where.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
    total = 0
    for each in known:
        total += each.stat().st_size
        if total > MOST:
            with contextlib.suppress(OSError):  # another process was faster
                each.unlink()
