"""Bounds for a running session."""

from __future__ import annotations

from remat.bounds.base import Bound
from remat.bounds.selection import best_bound
from remat.bounds.stage_bound import Programmes
from remat.errors import BackendError
from remat.runtime.deadline import Deadline
from remat.solving.session import Session


def raise_bounds(session: Session, deadline: Deadline, programmes: Programmes | None = None) -> None:
    """Compute all bounds until the deadline, as a step of the session, which keeps the best.

    The stage bound resumes `programmes`. Raise BackendError, naming both, if a bound exceeds the cost (time) of a known
    schedule or claims that there is none.
    """
    moves = session.problem.can_move

    def known() -> int | None:
        return session.value if moves else session.cost

    def take(bound: Bound) -> bool:
        with session.lock:
            value = known()
            if session.best is not None and value is not None and (bound.value or 0) > value:
                verb = session.problem.objective.verb if moves else "costs"
                raise BackendError(
                    f"{bound.kind} claims '{bound}', but the schedule of {session.best.source} {verb} {value:,}",
                    "refuted",
                )
            if bound.infeasible:
                session.end_infeasible(bound.scope, bound.kind)
            elif moves:
                session.raise_bound(bound.value, bound.scope)
            else:
                session.raise_cost_bound(bound.value, bound.scope)
            return session.enough

    with session.step("bounds"):
        call = session.call
        take(
            best_bound(
                session.problem, deadline, threads=call.threads, memory_limit=call.memory_bytes, enough=known(),
                on_bound=take, on_note=session.note, isolate=call.isolate, programmes=programmes,
            )
        )  # fmt: skip
