"""Faulty backends for the tests of isolation, in a module that child processes can import."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import numpy as np

from remat.backends.base import Availability, AvailabilityState, Backend
from remat.backends.results import Incumbent, OnBound, OnIncumbent, RawResult, Values
from remat.errors import ModelError
from remat.modeling import Linear, Model
from remat.runtime.interruption import SAME, interrupted, interrupts
from remat.runtime.processes.running import run_interruptible
from remat.runtime.solve_options import SolveOptions, Status, StopReason


class Fragile(Backend):
    """Backend that reports a first solution, the upper bounds, and then fails as its variant says.

    Variants that begin with ``first`` fail before that solution.
    """

    name = "fragile"
    native = frozenset({Linear})

    @classmethod
    def availability(cls) -> Availability:
        return Availability(AvailabilityState.READY)

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        return tuple(name.removeprefix("do_") for name in dir(cls) if name.startswith("do_"))

    def solve(
        self,
        model: Model,
        options: SolveOptions,
        hint: Values | None = None,
        on_incumbent: OnIncumbent | None = None,
        on_bound: OnBound | None = None,
    ) -> RawResult:
        self.model, self.options = model, options
        if not self.variant.startswith("first"):
            assert on_bound is not None
            assert on_incumbent is not None
            self.report = on_incumbent
            on_bound(options.deadline.elapsed, 1.0)
            on_incumbent(Incumbent(options.deadline.elapsed, model.objective.value(model.upper), 1.0, model.upper))
        return getattr(self, f"do_{self.variant}")()

    def do_segfault(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def do_first_abort(self) -> NoReturn:
        os.abort()

    def do_exit(self) -> NoReturn:
        os._exit(7)

    def do_hang(self) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            time.sleep(1)

    def do_hang_with_child(self) -> NoReturn:
        if os.fork() == 0:
            os.setsid()  # solvers behind drivers may have their own session
            os.execvp("sleep", ["sleep", "86399"])
        self.do_hang()

    def do_exhaust_memory(self) -> NoReturn:
        held = []
        while True:
            held.append(np.ones(2**22))  # 32 MiB at a time
            time.sleep(0.01)

    def do_first_exhaust_memory(self) -> NoReturn:
        self.do_exhaust_memory()

    def do_raise(self) -> NoReturn:
        raise RuntimeError("something\nbroke")

    def do_first_refuse(self) -> NoReturn:
        raise ModelError("record 'r' is too odd")

    def do_wait(self) -> RawResult:
        ended: list[int] = []
        stopped = run_interruptible(lambda: self._wait(ended), lambda: ended.append(1))
        stop = StopReason.INTERRUPTED if stopped else StopReason.OTHER
        return RawResult(Status.FEASIBLE, stop, self.model.objective.value(self.model.upper), 1.0, self.model.upper)

    def do_improve(self) -> RawResult:
        """Report four better solutions, also after the request to stop."""
        values = self.model.upper.copy()
        with interrupts():
            for place in (0, 1, 2, 0):
                values[place] -= 1
                self.report(Incumbent(self.options.deadline.elapsed, self.model.objective.value(values), 1.0, values))
                time.sleep(1.2 * SAME)
            return RawResult(Status.UNKNOWN, StopReason.INTERRUPTED if interrupted() else StopReason.OTHER)

    @staticmethod
    def _wait(ended: list[int]) -> None:
        while not ended:
            time.sleep(0.01)

    def do_print(self) -> RawResult:
        print("on standard output")
        os.system("echo more of it")
        assert self.options.log is not None
        self.options.log("a line")
        return RawResult(Status.UNKNOWN, StopReason.OTHER, message="no solution")


class ForkedFragile(Fragile):
    """The same faults in a child forked from a process that has imported these modules."""

    preload = ("remat.runtime.processes.wire", "fragile_backend")

    def do_first_environment(self) -> NoReturn:
        raise RuntimeError(f"{os.environ.get('SEEN')} {Path.cwd()} {sys.path[0]}")

    def do_first_threads(self) -> NoReturn:
        raise RuntimeError(f"{len(list(Path(f'/proc/{os.getppid()}/task').iterdir()))} thread in the parent")


def small_model() -> Model:
    """Return a model that is feasible at its upper bounds, with objective 9 there."""
    model = Model("small")
    x = model.integers("x", 3, 0, 3)
    model.add(Linear.rows("sum", [0, 0, 0], x.index, 1, lower=[4]))
    model.minimize(x.index, 1)
    return model
