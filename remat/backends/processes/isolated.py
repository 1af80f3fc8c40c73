"""Any backend in a process of its own: a hard deadline, a cap on memory, and nothing lost when it dies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

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
from remat.backends.processes import preloaded, wire
from remat.errors import BackendError, ModelError
from remat.interruption import interrupted, interrupts, since
from remat.modeling import Model

#: Seconds after the deadline at which the process is killed.
GRACE = 0.6
#: Seconds that it may take to end after a callback's wish, and after Ctrl-C.
PATIENCE, INTERRUPTED_PATIENCE = 10.0, 1.0
#: Seconds between two looks at the memory that it holds.
TICK = 0.02
MIB = 2**20


class Isolated(Backend):
    """A backend in a child process.

    The model goes there and solutions and bounds come back as arrays over pipes; nothing is unpickled. Each is kept as
    it comes, so whatever becomes of the child, the best solution so far is the result, and the message says what
    happened: killed at the deadline, over its memory limit, crashed. The child's whole family dies with it, and it
    ends when this process does.

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
        return child.run(job)


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
        self.modules = backend.preload if preloaded.possible() else ()
        self.on_incumbent, self.on_bound = on_incumbent, on_bound
        self.incumbents: list[Incumbent] = []
        self.bound: float | None = None
        self.result: RawResult | None = None
        self.failure: Exception | None = None
        self.asked: float | None = None  # when it was asked to stop
        self.killed: tuple[StopReason, str] | None = None
        self.most_memory = 0
        self.threads: list[threading.Thread] = []

    def run(self, job: wire.Message) -> RawResult:
        began = time.monotonic()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
            "OPENBLAS_NUM_THREADS": "1",  # each of its threads would set aside memory that nobody uses
        }
        command = [sys.executable, "-m", "remat.backends.processes.isolated_worker", str(self.limit or 0)]
        self.process: subprocess.Popen[bytes] | preloaded.Child
        with interrupts(), tempfile.TemporaryFile() as errors:
            # a session of its own: the terminal's Ctrl-C comes here alone, and the family can be killed as one
            if self.modules:
                self.process = preloaded.start(self.modules, self.limit or 0, errors, environment)
                job = preloaded.with_surroundings(job, environment)
            else:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment,
                    start_new_session=True,
                )  # fmt: skip
            try:
                self._attend(job)
            except KeyboardInterrupt:
                self._kill(StopReason.INTERRUPTED, "was killed after a second Ctrl-C")
            finally:
                self._kill()
                self.process.wait()
                for thread in self.threads:
                    thread.join(1)
                for pipe in (self.process.stdin, self.process.stdout):
                    with contextlib.suppress(OSError):
                        cast(BinaryIO, pipe).close()
            last_words = _last_line(errors)
        return self._conclude(last_words, time.monotonic() - began)

    # -- while it lives --------------------------------------------------------------------------------------------

    def _attend(self, job: wire.Message) -> None:
        inbox: queue.SimpleQueue[wire.Message | None] = queue.SimpleQueue()
        stdin, stdout = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)

        def feed() -> None:
            with contextlib.suppress(OSError, ValueError):  # it died; the reader sees the same
                wire.write(stdin, job)

        def listen() -> None:
            message: wire.Message | None = None
            with contextlib.suppress(OSError, ValueError):
                while (message := wire.read(stdout)) is not None:
                    inbox.put(message)
            inbox.put(None)

        for work in (feed, listen):  # both end when the child does
            self.threads.append(threading.Thread(target=work, daemon=True, name=f"remat-{work.__name__}"))
            self.threads[-1].start()
        while self.result is None and self.failure is None:
            with contextlib.suppress(queue.Empty):
                message = inbox.get(timeout=TICK)
                if message is None:
                    return
                self._take(message)
                if not inbox.empty():
                    continue
            if self.killed:
                continue  # until the pipe is empty: what was on its way counts
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
        elif self.limit is not None:
            self.most_memory = max(self.most_memory, sum(_held(pid) for pid in family(self.process.pid)))
            if self.most_memory > self.limit:
                self._kill(StopReason.OTHER, f"was killed: {self._over()}")

    def _over(self) -> str:
        assert self.limit is not None
        return f"it needs more memory than its limit of {self.limit / MIB:,.0f} MiB"

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
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)

    def _kill(self, stop: StopReason | None = None, reason: str = "") -> None:
        """Kill the child and all that descends from it; `reason` is kept."""
        if stop is not None:
            self.killed = self.killed or (stop, reason)
        if self.process.poll() is not None:
            return  # and its number may be somebody else's by now
        for pid in family(self.process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

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
        code = self.process.wait()
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


def family(pid: int) -> list[int]:
    """The process and all its descendants; itself alone where Linux's ``/proc`` is missing."""
    found = [pid]
    for member in found:  # grows on the way
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{member}/task").iterdir():
                with contextlib.suppress(OSError):
                    found += map(int, (task / "children").read_text().split())
    return found


def _held(pid: int) -> int:
    """Bytes of memory that a process holds; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * int(os.sysconf("SC_PAGE_SIZE"))
