"""Answers of methods that cannot state everything about a problem: they receive a reduced one."""

from __future__ import annotations

from dataclasses import replace

from remat.problem import Problem
from remat.solving.method import Method
from remat.solving.progress import Progress
from remat.solving.session import NOT_COUNTED, NOT_IN_PLACE, NOT_MOVED, Session


def answer(session: Session, method: Method) -> None:
    """Run a method on the problem of a session, reduced to what the method can state.

    Schedules of the reduced problem are valid for the problem. Proofs do not count, except those for one memory if no
    tensor can be moved.
    """
    problem = session.problem
    if problem.machine is not None and not (method.moves and problem.can_move):
        if problem.can_move:
            session.note(f"{method.name} {NOT_MOVED}")
        _answer_reduced(session, method, problem.one_memory, proves=not problem.can_move)
    elif problem.graph.in_place and not method.counts_in_place:
        session.note(f"{method.name} {NOT_COUNTED}")
        if problem.plain.hopeless:
            session.note(f"{method.name} was left out: {NOT_IN_PLACE}")
            session.conclude()
        else:
            _answer_reduced(session, method, problem.plain, proves=False)
    else:
        method.run(session)


def _answer_reduced(session: Session, method: Method, problem: Problem, *, proves: bool) -> None:
    """Run a method on a reduced problem; adopt its schedules, and its proofs if they count."""
    start = session.start_without_moves(session.warm_start)
    if start is not None and problem.graph is not session.problem.graph:
        start = session.problem.for_plain(start)
    part = Session(
        problem, session.call, method.name, session.backend, solver=session.solver, warm_start=start,
        any_method=session.any_method,
    )  # fmt: skip

    def take(_: Progress | None = None) -> None:
        if proves:
            session.bound, session.scope = part.bound, part.scope
        session.adopt(part)
        part.reached = session.reached  # the criterion refers to the bound of the whole problem

    part.on_progress = take
    try:
        answer(part, method)
    finally:
        take()
        session.stop, session.size = part.stop, part.size
        session.any_method = part.any_method
        session.steps = [step if proves else replace(step, bound=session.bound) for step in part.steps]
        session.timings, session.versions = part.timings, part.versions
        for remark in part.notes:
            session.note(remark)
        if proves:
            session.infeasible, session.proof = part.infeasible, part.proof
    if not session.enough:
        session.conclude()
