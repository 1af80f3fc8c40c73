"""Any backend in a process of its own: a hard deadline, a cap on memory, and nothing lost when it dies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from remat.backends.base import (
    Availability,
    AvailabilityState,
    Backend,
    Incumbent,
    OnBound,
    OnIncumbent,
    RawResult,
    SolveOptions,
    Status,
    StopReason,
    Values,
)
from remat.backends.processes import guard, isolated_worker, wire
from remat.backends.processes.families import too_large
from remat.backends.processes.supervised import Ending, Supervised
from remat.errors import BackendError
from remat.interruption import interrupts
from remat.modeling import Model, violations

#: Seconds after the deadline at which the process is killed.
GRACE = 0.6


class Isolated(Backend):
    """A backend in a child process.

    The model goes there and solutions and bounds come back as JSON and arrays; none is ever pickled. Each is kept as it
    comes, so whatever becomes of the child, the best solution so far is the result, and the message says what happened:
    killed at the deadline, over its memory limit, crashed. The child's whole family dies with it, and it ends when this
    process does.

    The class of the backend, and that of every record, must be importable by name.

    Parameters
    ----------
    backend : Backend
    memory_limit : int, optional
        Bytes that the child and its own children may hold. Kept in two ways, both by Linux: the kernel refuses a
        process more private memory than that, and a family that holds more in all is killed. Defaults to
        ``SolveOptions.memory_limit``.

    Examples
    --------
    >>> from remat.backends.highs import Highs
    >>> from remat.modeling import Model
    >>> model = Model("two")
    >>> model.minimize(model.integers("x", 2, [3, 4], 9).index, 1)
    >>> Isolated(Highs()).solve(model, SolveOptions()).objective
    7.0
    """

    name: ClassVar[str] = "isolated"
    native: ClassVar = frozenset()
    own_process: ClassVar[bool] = True

    def __init__(self, backend: Backend, memory_limit: int | None = None) -> None:
        super().__init__()
        self.backend = backend
        self.memory_limit = memory_limit
        self.native = backend.native  # type: ignore[misc]

    @property
    def full_name(self) -> str:
        return self.backend.full_name

    @classmethod
    def availability(cls) -> Availability:
        return Availability(AvailabilityState.READY, "runs any other backend in a process of its own")

    def ready(self) -> Availability:
        return self.backend.ready()

    def solve(
        self,
        model: Model,
        options: SolveOptions,
        hint: Values | None = None,
        on_incumbent: OnIncumbent | None = None,
        on_bound: OnBound | None = None,
    ) -> RawResult:
        limit = options.memory_bytes if self.memory_limit is None else self.memory_limit
        if limit is not None and not Path("/proc/self/statm").exists():
            raise BackendError("a limit of memory needs Linux")
        job = _job(self.backend, model, options, hint)
        child = _Child(self.backend, options, limit, on_incumbent, on_bound)
        raw = child.run(job)
        if child.result is not None or raw.values is not None or hint is None or hint.shape != (model.num_vars,):
            return raw
        return raw if violations(model, hint) else _with_hint(raw, model.objective.value(hint), hint)


def _with_hint(raw: RawResult, objective: float, hint: Values) -> RawResult:
    """The end of a child that said nothing, as it had hardly begun: the hint is a solution all the same."""
    found = Incumbent(raw.solve_seconds, objective, None, hint)
    return dataclasses.replace(
        raw, status=Status.FEASIBLE, objective=objective, values=hint, incumbents=(found,),
        bound=None if raw.bound is None else min(raw.bound, objective), message=f"{raw.message}; the hint is kept",
    )  # fmt: skip


def placed(backend: Backend, options: SolveOptions) -> Backend:
    """`backend` where the options want it to work: in a process of its own, or as it is.

    Examples
    --------
    >>> from remat.backends.highs import Highs
    >>> type(placed(Highs(), SolveOptions(isolate=True))).__name__, type(placed(Highs(), SolveOptions())).__name__
    ('Isolated', 'Highs')
    """
    return Isolated(backend) if options.isolate and not backend.own_process else backend


def _job(backend: Backend, model: Model, options: SolveOptions, hint: Values | None) -> wire.Message:
    packed = wire.pack(model)
    try:
        solver = json.loads(json.dumps(dict(options.solver)))
    except (TypeError, ValueError) as error:
        raise BackendError(
            f"an option of the solver cannot be sent to another process: {error}", "option-not-plain"
        ) from None
    head = {
        "model": packed.head,
        "backend": wire.path_of(type(backend)),
        "variant": backend.variant,
        "options": {
            "seconds": options.deadline.seconds,
            "started": options.deadline.started,  # the monotonic clock is one for the whole machine
            "threads": options.threads,
            "seed": options.seed,
            "relative_gap": options.relative_gap,
            "log": options.log is not None,
            "solver": solver,
        },
    }
    return wire.Message("job", head, dict(packed.arrays) | ({} if hint is None else {"hint": hint}))


class _Child:
    """One child process, and what it has said."""

    def __init__(
        self,
        backend: Backend,
        options: SolveOptions,
        limit: int | None,
        on_incumbent: OnIncumbent | None,
        on_bound: OnBound | None,
    ) -> None:
        self.name, self.options, self.limit = backend.full_name, options, limit
        self.modules = backend.preload
        self.on_incumbent, self.on_bound = on_incumbent, on_bound
        self.incumbents: list[Incumbent] = []
        self.bound: float | None = None
        self.result: RawResult | None = None
        self.failure: Exception | None = None

    def run(self, job: wire.Message) -> RawResult:
        began = time.monotonic()
        with interrupts(), guard.temporary_folder() as folder, (folder / "output").open("w+b") as output:
            printed = Connection(os.dup(output.fileno()), readable=False)
            given = (printed, self.limit or 0, dict(os.environ), str(folder))
            self.child = Supervised(
                isolated_worker.serve, given, self.modules, self.options.deadline, self.limit, grace=GRACE
            )
            with self.child:
                try:
                    for message in self.child.messages(job):
                        self._take(message)
                        if self.result is not None or self.failure is not None:
                            break
                except KeyboardInterrupt:
                    self.child.kill(StopReason.INTERRUPTED, "was killed after a second Ctrl-C")
            self.failure = self.failure or self.child.failure
            last_words = _last_line(output)
        return self._conclude(last_words, time.monotonic() - began)

    def _take(self, message: wire.Message) -> None:
        head = message.head
        if message.kind == "incumbent":
            incumbent = Incumbent(head["time"], head["objective"], head["bound"], message.arrays["values"])
            self.incumbents.append(incumbent)
            if self.on_incumbent and self.on_incumbent(incumbent):
                self.child.ask_to_stop()
        elif message.kind == "bound":
            self.bound = head["bound"]
            if self.on_bound:
                self.on_bound(head["time"], head["bound"])
        elif message.kind == "log":
            if self.options.log:
                self.options.log(head["line"])
        elif message.kind == "result":
            self.result = RawResult(
                Status(head["status"]), StopReason(head["stop"]), head["objective"], head["bound"],
                message.arrays.get("values"), (), head["build_seconds"], head["solve_seconds"], head["versions"],
                head["message"],
            )  # fmt: skip
        else:
            self.failure = wire.error_of(message)

    # -- after -----------------------------------------------------------------------------------------------------

    def _conclude(self, last_words: str, seconds: float) -> RawResult:
        best = self.incumbents[-1] if self.incumbents else None
        short = self._out_of_memory(last_words)
        if self.result is not None:
            return self._finished(self.result, seconds, short)
        if self.failure is not None and best is None and not short:
            raise self.failure
        ending = self.child.ending or Ending(StopReason.OTHER, self._death(last_words))
        status = Status.FEASIBLE if best else Status.UNKNOWN if self.child.ending or short else Status.ERROR
        kept = "; the best solution before that is kept" if best else ""
        return RawResult(
            status,
            ending.stop,
            best.objective if best else None,
            self.bound if best is None or self.bound is None else min(self.bound, best.objective),
            best.values if best else None,
            tuple(self.incumbents),
            solve_seconds=seconds,
            message=f"the process of backend {self.name!r} {ending.reason}{kept}",
        )

    def _finished(self, result: RawResult, seconds: float, short: bool) -> RawResult:
        """The child's own result, with what only the parent knows."""
        started = max(0.0, seconds - result.build_seconds - result.solve_seconds)
        changes: dict[str, Any] = {
            "incumbents": tuple(self.incumbents),
            "build_seconds": result.build_seconds + started,
        }
        if self.incumbents and result.status is Status.UNKNOWN:  # interrupted in a step that cannot give its best
            best = self.incumbents[-1]
            changes |= {"status": Status.FEASIBLE, "objective": best.objective, "values": best.values}
        if short and result.stop is StopReason.OTHER and not result.message:
            changes["message"] = f"backend {self.name!r} gave up: {too_large(self.limit or 0)}"
        return dataclasses.replace(result, **changes)

    def _death(self, last_words: str) -> str:
        """How it died by itself."""
        code = self.child.process.exitcode or 0
        if self.failure is not None:
            what = f"failed: {self.failure}"
        elif code >= 0:
            what = f"ended with exit code {code}"
        else:
            what = f"was killed by signal {_signal_name(-code)}"
        if self._out_of_memory(last_words):
            what += f", as {too_large(self.limit or 0)}"
        elif -code == signal.SIGKILL:
            what += " (somebody's, or the system's for want of memory)"
        return what + (f": {last_words}" if last_words else "")

    def _out_of_memory(self, last_words: str) -> bool:
        """Whether it very likely died of its limit."""
        words = f"{self.failure} {last_words}"
        near = self.limit is not None and self.child.most_memory > 0.8 * self.limit
        return self.limit is not None and (near or "bad_alloc" in words or "MemoryError" in words)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return str(number)


def _last_line(errors: BinaryIO) -> str:
    """The last thing that it wrote to standard error."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 2000))
    lines = errors.read().decode("utf-8", "replace").split("\n")
    return next((" ".join(line.split())[:200] for line in reversed(lines) if line.strip()), "")
