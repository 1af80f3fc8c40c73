"""Commands in child processes, with checks for processes and files that they leave."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from remat.cli import main
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.graphs.layered import layered

#: Source of the program ``remat``. Children inherit ignored signals, such as SIGHUP if these tests run under nohup.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from remat.cli import main
sys.exit(main())
"""
#: Bit of SIGTERM in the mask of handled signals.
SIGTERM_BIT = 1 << (signal.SIGTERM - 1)
#: Environment variable that marks every process of a command.
MARK = "REMAT_STRESS_MARK"
#: Seconds that processes and files may outlive their command.
LINGER = 3.0


def count(name: str, default: int) -> int:
    """Return the environment variable REMAT_STRESS_<name>, or a default."""
    return int(os.environ.get(f"REMAT_STRESS_{name}", default))


def turns(number: int, seconds: float) -> Iterator[int]:
    """Yield 0, 1, ... below `number`; after `seconds` stop as soon as a quarter is done."""
    until = time.monotonic() + seconds
    for turn in range(number):
        if turn >= number / 4 and time.monotonic() > until:
            return
        yield turn


def wait_for_handlers(process: subprocess.Popen[str]) -> None:
    """Wait until a process handles signals or has ended."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        if int((status.partition("SigCgt:")[2].split() or ["0"])[0], 16) & SIGTERM_BIT:
            return
        time.sleep(0.005)


@dataclass
class Ended:
    """Outcome of a command."""

    code: int
    out: str
    err: str
    seconds: float
    """From the signal to the end of the process."""
    before: bool
    """True if the process had ended before the signal."""
    left: list[str] = field(default_factory=list)
    """Processes and files that remain."""


class Command:
    """Command in a process with its own folder for temporary files."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.arguments = [str(word) for word in arguments]
        environment = os.environ | {MARK: self.mark, "TMPDIR": str(self.temporary), "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *self.arguments], cwd=folder, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace",
        )  # fmt: skip
        self.folder = folder

    def family(self) -> list[int]:
        """Return all processes that carry the mark."""
        return [
            process.pid
            for process in psutil.process_iter(["environ", "status"])
            if (process.info["environ"] or {}).get(MARK) == self.mark and process.info["status"] != psutil.STATUS_ZOMBIE
        ]

    def end(self, number: int, victim: int | None = None, timeout: float = 90, linger: float = LINGER) -> Ended:
        """Send a signal to the process, or to the child `victim`, and wait for the end; see :meth:`left`."""
        before = self.process.poll() is not None
        began = time.monotonic()
        try:
            os.kill(victim or self.process.pid, number)
        except ProcessLookupError:
            before = True
        try:
            out, err = self.process.communicate(timeout=timeout)
        finally:
            seconds = time.monotonic() - began
            self.process.kill()
            self.process.wait()
        return Ended(self.process.returncode, out, err, seconds, before, self.left(linger))

    def left(self, linger: float) -> list[str]:
        """List processes and temporary files that remain after `linger` seconds."""
        until = time.monotonic() + linger
        while True:
            left = [f"process {pid}: {command_of(pid)}" for pid in self.family()]
            left += [f"file {path.name}" for path in self.temporary.iterdir()]
            left += [f"file {path.name}" for path in self.folder.iterdir() if path.name.endswith(".part")]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.05)


def command_of(pid: int) -> str:
    """Return the command line of a process, or "gone"."""
    try:
        return " ".join(psutil.Process(pid).cmdline())[:200]
    except psutil.Error:
        return "gone"


#: Methods, with their solvers.
METHODS = (
    "auto", "auto/highs", "lns", "annealing", "drops", "eviction", "lp-rounding", "chen-sqrt",
    "retention-intervals/cp-sat", "retention-intervals/highs", "stages/highs", "stages/cp-sat", "checkmate/highs",
    "checkmate/cp-sat",
)  # fmt: skip


def graphs(folder: Path) -> Path:
    """Return a folder with graphs for the commands and a schedule to improve.

    Kernels are compiled first, because a compiling process outlives its command on purpose.
    """
    assert main(["warm-up"]) == 0
    folder.mkdir()
    write_graph(layered(120, seed=1), folder / "small.json")
    write_graph(layered(900, seed=2), folder / "large.json")
    write_graph(unit_chain(150), folder / "chain.json")
    chain, schedule = str(folder / "chain.json"), str(folder / "s.json")
    assert main(["solve", chain, "-b", "60%", "-m", "chen-sqrt", "-q", "-o", schedule]) == 0
    return folder


def commands(where: Path, choice: random.Random, extra_methods: tuple[str, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Yield random commands of every kind, most of them long; schedules are written to ``out.json``."""
    while True:
        graph = where / choice.choice(["small.json", "large.json", "chain.json"])
        budget = choice.choice(["85%", "70%", "50%"])
        named = choice.choice(METHODS + extra_methods)
        method, _, backend = named.partition("/")
        by = ("--method", method, *(("--backend", backend) if backend else ()))
        limits = ("-t", "60", "--threads", choice.choice("12"), *choice.choice([(), (), ("-q",)]))
        isolate = () if method == "lp-rounding" else choice.choice([(), (), (), ("--isolate",)])  # refused there
        fixed = method.startswith(("lp", "chen", "check", "sta"))
        order = () if fixed else choice.choice([(), ("--order", "free")])
        if method == "chen-sqrt":  # for chains
            graph = where / "chain.json"
        some = [
            ("solve", graph, "-b", budget, *by, *limits, *isolate, *order, "-o", "out.json"),
            ("improve", where / "chain.json", where / "s.json", "-b", "50%", *by, *limits, "-o", "out.json"),
            ("minimize", graph, "-t", "60", "--threads", "1", *order, "-o", "out.json"),
            ("bounds", graph, "-b", budget, "-t", "60"),
            ("compare", graph, "-b", "85%,60%", "-m", f"greedy,{named}", *limits, "-o", "c.csv"),
            ("frontier", graph, "-b", "60%:90%:10%", "-m", "eviction,lns", *limits, "--store", "sqlite:///s.db"),
            ("frontier", graph, "-b", "70%,90%", "-m", "annealing,stages/highs", "-t", "60", "--workers", "2"),
            ("batch", "vgg16", "--memory", "16GiB", "-m", "greedy", "-m", "retention-intervals/cp-sat", "-t", "20"),
            ("show", where / "large.json"),
            ("validate", where / "chain.json", where / "s.json", "-b", "60%"),
            ("plot", where / "chain.json", where / "s.json", "-o", "p.svg"),
            ("convert", where / "large.json", "out.dot"),
            ("generate", "resnet50", "-o", "g.json"),
        ]
        weights = [12, 4, 4, 3, 3, 2, 2, 2] + [1] * (len(some) - 8)
        yield choice.choices(some, weights)[0]
