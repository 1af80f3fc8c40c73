"""Methods without outputs in place of inputs, on problems that allow them."""

from __future__ import annotations

from dataclasses import replace

from remat.solving.method import Method
from remat.solving.progress import Progress
from remat.solving.session import NOT_COUNTED, NOT_IN_PLACE, Session


def answer_without_in_place(session: Session, method: Method) -> None:
    """Run a method on a session's problem without outputs in place of inputs.

    Its schedules are valid for the problem, with at most the same peak; its proofs do not count.
    """
    problem = session.problem.plain
    session.note(f"{method.name} {NOT_COUNTED}")
    if problem.hopeless:
        session.note(f"{method.name} was left out: {NOT_IN_PLACE}")
        session.conclude()
        return
    start = None if session.warm_start is None else session.problem.for_plain(session.warm_start)
    part = Session(
        problem, session.call, method.name, session.backend, criterion=session.criterion, solver=session.solver,
        warm_start=start,
    )  # fmt: skip

    def take(_: Progress | None = None) -> None:
        for found in (part.incumbents.best, part.incumbents.least_peak):
            if found is not None:
                session.incumbents.add(found.schedule, found.source)
        session.report_progress()

    part.on_progress = take
    try:
        method.run(part)
    finally:
        take()
        session.stop, session.reached, session.size = part.stop, part.reached, part.size
        session.steps = [replace(step, bound=session.bound) for step in part.steps]
        session.timings, session.versions = part.timings, part.versions
        for remark in part.notes:
            session.note(remark)
    if not session.enough:
        session.conclude()
