"""Any backend in a process of its own: a hard deadline, a cap on memory, and nothing lost when it dies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
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
from remat.backends.processes import children, guard, guard_process, isolated_worker, wire
from remat.backends.processes.families import LOOK, memory_of, too_large
from remat.errors import BackendError, ModelError
from remat.interruption import interrupted, interrupts, since
from remat.modeling import Model, violations

#: Seconds after the deadline at which the process is killed.
GRACE = 0.6
#: Seconds that it may take to end after a callback's wish, and after Ctrl-C.
PATIENCE, INTERRUPTED_PATIENCE = 10.0, 1.0
#: Seconds between two looks at it.
TICK = 0.02


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
        raise BackendError(f"an option of the solver cannot be sent to another process: {error}") from None
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
        self.asked: float | None = None  # when it was asked to stop
        self.killed: tuple[StopReason, str] | None = None
        self.killed_at = self.memory_seen = 0.0
        self.most_memory = 0
        self.started, self.sent, self.over = threading.Event(), threading.Event(), threading.Event()
        self.inbox: queue.SimpleQueue[wire.Message | None] = queue.SimpleQueue()

    def run(self, job: wire.Message) -> RawResult:
        began = time.monotonic()
        with interrupts(), guard.temporary_folder() as folder, (folder / "output").open("w+b") as output:
            here, there = multiprocessing.Pipe()
            printed = Connection(os.dup(output.fileno()), readable=False)
            given = (there, printed, self.limit or 0, dict(os.environ), str(folder))
            self.process = children.child(isolated_worker.serve, given, self.modules)
            threads = [
                threading.Thread(target=work, args=arguments, daemon=True, name=f"remat-{work.__name__.strip('_')}")
                for work, arguments in ((self._start, (job, here, (there, printed))), (self._listen, (here,)))
            ]
            try:
                for thread in threads:
                    thread.start()
                self._attend()
            except KeyboardInterrupt:
                self._kill(StopReason.INTERRUPTED, "was killed after a second Ctrl-C")
            finally:
                self.over.set()
                self._kill()
                if self.started.is_set():  # otherwise the threads see to it that it ends at once when it has begun
                    for thread in threads:
                        thread.join(1)
                    self.process.join(1)
                    guard.forget(self.process.pid)
            last_words = _last_line(output)
        return self._conclude(last_words, time.monotonic() - began)

    # -- in threads of their own, which end when the child does ------------------------------------------------------

    def _start(self, job: wire.Message, here: Connection, theirs: tuple[Connection, ...]) -> None:
        """Start the child (its server may be importing for seconds), guard it until its end, and send it the job."""
        try:
            self.process.start()
        except Exception as error:
            self.failure = error if isinstance(error, BackendError) else BackendError(f"no child process: {error}")
            self.inbox.put(None)
            self.sent.set()
            return
        finally:
            for end in theirs:
                end.close()
        guard.watch(self.process.pid)
        self.started.set()
        if self.over.is_set():
            self._kill()
        try:
            with contextlib.suppress(OSError, ValueError):  # it died; the reader sees the same
                wire.write(here, job)
        finally:
            self.sent.set()

    def _listen(self, here: Connection) -> None:
        while (message := wire.read(here)) is not None:
            self.inbox.put(message)
        self.inbox.put(None)
        self.sent.wait()  # closed while the other thread writes, its number might be another file's by then
        here.close()

    # -- while it lives --------------------------------------------------------------------------------------------

    def _attend(self) -> None:
        while self.result is None and self.failure is None:
            with contextlib.suppress(queue.Empty):
                message = self.inbox.get(timeout=TICK)
                if message is None:
                    return
                self._take(message)
                if not self.inbox.empty():
                    continue
            if self.killed:
                # until the pipe is empty, since what was on its way counts; somebody who escaped may hold it open
                if not self.started.is_set() or time.monotonic() > self.killed_at + GRACE:
                    return
                continue
            if interrupted() and self.asked is None:
                self._ask_to_stop()
            self._watch()

    def _watch(self) -> None:
        """Kill it if it is too late or too large."""
        deadline = self.options.deadline
        if deadline.elapsed > deadline.seconds + GRACE:
            self._kill(StopReason.DEADLINE, "did not stop at the deadline and was killed")
        elif since() > INTERRUPTED_PATIENCE:
            self._kill(StopReason.INTERRUPTED, "did not stop after Ctrl-C and was killed")
        elif self.asked is not None and time.monotonic() > self.asked + PATIENCE:
            self._kill(StopReason.INTERRUPTED, f"did not stop within {PATIENCE:g} seconds when asked to and was killed")
        elif self.limit is not None and self.started.is_set() and time.monotonic() > self.memory_seen + LOOK:
            self.memory_seen = time.monotonic()
            self.most_memory = max(self.most_memory, memory_of(self.process.pid))
            if self.most_memory > self.limit:
                self._kill(StopReason.OTHER, f"was killed: {self._over()}")

    def _over(self) -> str:
        assert self.limit is not None
        return too_large(self.limit)

    def _take(self, message: wire.Message) -> None:
        head = message.head
        if message.kind == "incumbent":
            incumbent = Incumbent(head["time"], head["objective"], head["bound"], message.arrays["values"])
            self.incumbents.append(incumbent)
            if self.on_incumbent and self.on_incumbent(incumbent):
                self._ask_to_stop()
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
            kinds: dict[str, Callable[[str], Exception]] = {"ModelError": ModelError, "BackendError": BackendError}
            self.failure = kinds.get(head["type"], BackendError)(head["text"])

    def _ask_to_stop(self) -> None:
        """Pass Ctrl-C on."""
        self.asked = self.asked or time.monotonic()
        if self.started.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)

    def _kill(self, stop: StopReason | None = None, reason: str = "") -> None:
        """Kill the child and all that descends from it; `reason` is kept."""
        if stop is not None:
            self.killed_at = time.monotonic() if self.killed is None else self.killed_at
            self.killed = self.killed or (stop, reason)
        if self.started.is_set():
            guard_process.kill([self.process.pid])  # first, while it is known who descends from it
            self.process.kill()

    # -- after -----------------------------------------------------------------------------------------------------

    def _conclude(self, last_words: str, seconds: float) -> RawResult:
        best = self.incumbents[-1] if self.incumbents else None
        short = self._out_of_memory(last_words)
        if self.result is not None:
            return self._finished(self.result, seconds, short)
        if self.failure is not None and best is None and not short:
            raise self.failure
        stop, what = self.killed or (StopReason.OTHER, self._death(last_words))
        status = Status.FEASIBLE if best else Status.UNKNOWN if self.killed or short else Status.ERROR
        kept = "; the best solution before that is kept" if best else ""
        return RawResult(
            status,
            stop,
            best.objective if best else None,
            self.bound if best is None or self.bound is None else min(self.bound, best.objective),
            best.values if best else None,
            tuple(self.incumbents),
            solve_seconds=seconds,
            message=f"the process of backend {self.name!r} {what}{kept}",
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
            changes["message"] = f"backend {self.name!r} gave up: {self._over()}"
        return dataclasses.replace(result, **changes)

    def _death(self, last_words: str) -> str:
        """How it died by itself."""
        code = self.process.exitcode or 0
        if self.failure is not None:
            what = f"failed: {self.failure}"
        elif code >= 0:
            what = f"ended with exit code {code}"
        else:
            what = f"was killed by signal {_signal_name(-code)}"
        if self._out_of_memory(last_words):
            what += f", as {self._over()}"
        elif -code == signal.SIGKILL:
            what += " (somebody's, or the system's for want of memory)"
        return what + (f": {last_words}" if last_words else "")

    def _out_of_memory(self, last_words: str) -> bool:
        """Whether it very likely died of its limit."""
        words = f"{self.failure} {last_words}"
        near = self.limit is not None and self.most_memory > 0.8 * self.limit
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
