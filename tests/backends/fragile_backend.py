"""Faulty backends for the tests of isolation, in a module that child processes can import."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from remat.backends.base import Availability, AvailabilityState, Backend
from remat.backends.results import Incumbent, RawResult
from remat.errors import ModelError
from remat.modeling import Linear
from remat.runtime.processes.running import run_interruptible
from remat.runtime.solve_options import Status, StopReason


class Fragile(Backend):
    """Backend that reports a first solution, the upper bounds, and then fails as its variant says.

    Variants that begin with ``first`` fail before that solution.
    """

    name = "fragile"
    native = frozenset({Linear})

    @classmethod
    def availability(cls):
        return Availability(AvailabilityState.READY)

    @classmethod
    def variants(cls):
        return tuple(name.removeprefix("do_") for name in dir(cls) if name.startswith("do_"))

    def solve(self, model, options, hint=None, on_incumbent=None, on_bound=None):
        self.model, self.options, self.on_incumbent = model, options, on_incumbent
        if not self.variant.startswith("first"):
            on_bound(options.deadline.elapsed, 1.0)
            on_incumbent(Incumbent(options.deadline.elapsed, model.objective.value(model.upper), 1.0, model.upper))
        return getattr(self, f"do_{self.variant}")()

    def do_segfault(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def do_first_abort(self):
        os.abort()

    def do_exit(self):
        os._exit(7)

    def do_hang(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            time.sleep(1)

    def do_hang_with_child(self):
        if os.fork() == 0:
            os.setsid()  # solvers behind drivers may have their own session
            os.execvp("sleep", ["sleep", "86399"])
        self.do_hang()

    def do_exhaust_memory(self):
        held = []
        while True:
            held.append(np.ones(2**22))  # 32 MiB at a time
            time.sleep(0.01)

    def do_first_exhaust_memory(self):
        self.do_exhaust_memory()

    def do_raise(self):
        raise RuntimeError("something\nbroke")

    def do_first_refuse(self):
        raise ModelError("record 'r' is too odd")

    def do_wait(self):
        ended = []
        stopped = run_interruptible(lambda: self._wait(ended), lambda: ended.append(1))
        stop = StopReason.INTERRUPTED if stopped else StopReason.OTHER
        return RawResult(Status.FEASIBLE, stop, self.model.objective.value(self.model.upper), 1.0, self.model.upper)

    @staticmethod
    def _wait(ended):
        while not ended:
            time.sleep(0.01)

    def do_print(self):
        print("on standard output")
        os.system("echo more of it")
        self.options.log("a line")
        return RawResult(Status.UNKNOWN, StopReason.OTHER, message="said enough")


class ForkedFragile(Fragile):
    """The same faults in a child forked from a process that has imported these modules."""

    preload = ("remat.runtime.processes.wire", "fragile_backend")

    def do_first_environment(self):
        raise RuntimeError(f"{os.environ.get('SEEN')} {Path.cwd()} {sys.path[0]}")

    def do_first_threads(self):
        raise RuntimeError(f"{len(list(Path(f'/proc/{os.getppid()}/task').iterdir()))} thread in the parent")
