"""Bounds computed in a child process, which also builds their models, so that they cannot exhaust this one's memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from remat.backends.highs import Highs
from remat.bounds.base import Bound, Measure
from remat.errors import RematError
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE, Scope
from remat.runtime.deadline import Deadline
from remat.runtime.processes import guard, wire
from remat.runtime.processes.process_trees import cap
from remat.runtime.processes.supervised import Supervised
from remat.runtime.solve_options import StopReason

#: Seconds between the deadline and the termination of the process.
GRACE = 1.0
#: Modules that the fork server imports once for all children.
PRELOAD = (*Highs.preload, "remat.bounds.selection", "numba")
#: Fields of a bound that JSON can represent.
PLAIN = ("value", "kind", "base_cost", "infeasible", "relaxed", "seconds", "measure", "cause", "note")


def isolated_bounds(
    compute: Callable[[], Iterator[Bound]], problem: Problem, deadline: Deadline, memory_limit: int | None
) -> Iterator[Bound]:
    """Yield the bounds of `problem` from a generator that runs in a child process.

    The child is killed if it exceeds the deadline or `memory_limit`, or if the iterator is closed. Bounds received by
    then remain valid. If the child did not finish, the note of the last bound gives the reason. `compute` returns the
    generator and is pickled. Raise RematError if computing the bounds raises it in the child.
    """
    given = (compute, memory_limit, dict(os.environ))
    child = Supervised(_serve, given, PRELOAD, deadline, memory_limit, grace=GRACE, passes_interrupt=False)
    with child:
        for message in child.messages():
            if message.kind == "done":
                return
            if message.kind == "failure":
                raise wire.error_of(message)
            if message.kind == "memory":
                yield _unfinished(problem, "ran out of memory")
                return
            yield _bound(message)
        if child.failure is not None:
            raise child.failure
        if child.ending is None:
            child.process.join(GRACE)
            yield _unfinished(problem, f"ended with exit code {child.process.exitcode}")
        elif child.ending.stop is not StopReason.INTERRUPTED:
            yield _unfinished(problem, child.ending.reason)


def _unfinished(problem: Problem, why: str) -> Bound:
    base = problem.graph.base_cost
    return Bound(base, "computing each op once", EVERY_SCHEDULE, base, note=f"the process of the bounds {why}")


def _message(bound: Bound) -> wire.Message:
    """Return a bound as JSON and arrays."""
    head = {name: getattr(bound, name) for name in PLAIN}
    return wire.Message(
        "bound", {**head, "versions": dict(bound.versions), "scope": bound.scope.as_dict()}, bound.duals
    )


def _bound(message: wire.Message) -> Bound:
    head = dict(message.head)
    scope, measure = Scope.from_dict(head.pop("scope")), Measure(head.pop("measure"))
    return Bound(**head, scope=scope, measure=measure, duals=message.arrays)


def _serve(
    connection: Connection,
    compute: Callable[[], Iterator[Bound]],
    memory_limit: int | None,
    environment: dict[str, str],
) -> None:
    """Send each bound when it is found, and exit; runs in the child."""
    guard.enter_child(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    if memory_limit is not None:
        cap(os.getpid(), memory_limit)
    try:
        try:
            for bound in compute():
                wire.write(connection, _message(bound))
            wire.write(connection, wire.Message("done"))
        except MemoryError:
            wire.write(connection, wire.Message("memory"))
        except RematError as error:
            wire.write(connection, wire.Message("failure", wire.error_head(error)))
    except BrokenPipeError:  # the parent closed the iterator
        pass
    finally:
        os._exit(0)  # without the interpreter's cleanup: a solver past its deadline may still be running
