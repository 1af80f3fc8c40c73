"""Bounds found in a process of their own, where their models are built, too: no memory of this one is at stake."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from remat import errors
from remat.backends.highs import Highs
from remat.backends.processes import children, guard, guard_process, wire
from remat.backends.processes.families import LOOK, cap, memory_of, too_large
from remat.bounds.base import Bound, Measure
from remat.deadline import Deadline, OverdueError
from remat.errors import BackendError, RematError
from remat.interruption import interrupted
from remat.problem import Problem
from remat.scope import EVERY_SCHEDULE, Scope

#: Seconds between two looks at the clock and at Ctrl-C.
TICK = 0.05
#: Seconds that the process has after its deadline.
GRACE = 1.0
#: What the server of processes imports once for all of them: of solvers, and of compiled code.
PRELOAD = (*Highs.preload, "remat.bounds.report", "numba")
#: Fields of a bound that JSON can say.
PLAIN = ("value", "kind", "base_cost", "infeasible", "relaxed", "seconds", "measure", "cause", "note")
_FAILURES: dict[str, type[RematError]] = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RematError)
}


def isolated_bounds(problem: Problem, deadline: Deadline, memory_limit: int | None, **more: Any) -> Iterator[Bound]:
    """The bounds of :func:`remat.bounds.report.bounds_in_turn`, found in a child process.

    It is killed if it is late, holds more than `memory_limit`, or nobody asks for more; bounds that it has sent by then
    count. Where it did not end by itself, the last is one whose note says why.

    Parameters
    ----------
    memory_limit : int or None
        Bytes that the process may hold.
    more
        Of :func:`remat.bounds.report.bounds_in_turn`.

    Raises
    ------
    RematError
        What the bounds raise there.
    """
    here, there = multiprocessing.Pipe(duplex=False)
    given = (there, problem, deadline, {"memory_limit": memory_limit, **more}, dict(os.environ))
    process = children.child(_serve, given, PRELOAD, deadline)
    try:
        process.start()
    except OverdueError:
        here.close()
        there.close()
        if not interrupted():
            yield _unfinished(problem, "was not ready at the deadline")
        return
    guard.watch(process.pid)
    there.close()
    if memory_limit is not None:
        cap(process.pid, memory_limit)
    try:
        looked = 0.0
        while not interrupted():
            if here.poll(TICK):
                message = wire.read(here)
                if message is None:
                    process.join(GRACE)
                    yield _unfinished(problem, f"ended with exit code {process.exitcode}")
                    return
                if message.kind == "done":
                    return
                if message.kind == "failure":
                    raise _FAILURES.get(message.head["type"], BackendError)(message.head["text"])
                if message.kind == "memory":
                    yield _unfinished(problem, "ran out of memory")
                    return
                yield _bound(message)
            elif deadline.elapsed > deadline.seconds + GRACE:
                yield _unfinished(problem, "did not stop at the deadline and was killed")
                return
            elif memory_limit is not None and time.monotonic() > looked + LOOK:
                looked = time.monotonic()
                if memory_of(process.pid) > memory_limit:
                    yield _unfinished(problem, f"was killed: {too_large(memory_limit)}")
                    return
    finally:
        guard_process.kill([process.pid])
        process.kill()
        process.join(GRACE)
        guard.forget(process.pid)
        here.close()


def _unfinished(problem: Problem, why: str) -> Bound:
    base = problem.graph.base_cost
    return Bound(base, "computing each op once", EVERY_SCHEDULE, base, note=f"the process of the bounds {why}")


def _message(bound: Bound) -> wire.Message:
    """A bound as JSON and arrays."""
    head = {name: getattr(bound, name) for name in PLAIN}
    return wire.Message(
        "bound", {**head, "versions": dict(bound.versions), "scope": bound.scope.as_dict()}, bound.duals
    )


def _bound(message: wire.Message) -> Bound:
    told = dict(message.head)
    scope, measure = Scope.from_dict(told.pop("scope")), Measure(told.pop("measure"))
    return Bound(**told, scope=scope, measure=measure, duals=message.arrays)


def _serve(
    connection: Connection, problem: Problem, deadline: Deadline, more: dict[str, Any], environment: dict[str, str]
) -> None:
    """In the child: send each bound as it is found; the process ends here."""
    from remat.bounds.report import bounds_in_turn

    with contextlib.suppress(OSError):  # the leader of a session already
        os.setsid()
    guard.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sees to it
    os.environ.clear()
    os.environ.update(environment)
    try:
        try:
            for bound in bounds_in_turn(problem, deadline, **more):
                wire.write(connection, _message(bound))
            wire.write(connection, wire.Message("done"))
        except MemoryError:
            wire.write(connection, wire.Message("memory"))
        except RematError as error:
            wire.write(connection, wire.Message("failure", {"type": type(error).__name__, "text": str(error)}))
    except BrokenPipeError:  # nobody asks for more
        pass
    finally:
        os._exit(0)  # not through the interpreter's end: a solver that missed its deadline may still be at work
