"""Signals and kills at random instants, over all commands and methods: no schedule is lost and no process remains.

REMAT_STRESS_SIGNALS, REMAT_STRESS_KILLS and REMAT_STRESS_SEED change the defaults. No command starts after
REMAT_STRESS_SECONDS.

A command must end within 2 seconds of the signal. On a busy machine, 9 of 10 must end within 2 seconds, and all within
5.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from processes import LINGER, Command, Ended, command_of, commands, count, graphs, turns, wait_for_handlers

from remat.cli import main
from remat.registry import make_backend

pytestmark = pytest.mark.skipif(os.name != "posix" or not Path("/proc").exists(), reason="needs Linux")
#: Seconds within which 9 of 10 commands must end, and all.
SOON, LATEST = 2.0, 5.0
#: Longest time before the signal, in seconds.
RUNS = 5.0
SEED = count("SEED", 0)
#: Seconds after which no command starts, for signals and for kills.
SECONDS = count("SECONDS", 900)
#: Seconds that processes of a command killed at its start may outlive it: they end after their imports.
START_LINGER = 15.0

#: Optional programs.
OTHERS = {
    "minizinc:gecode": "retention-intervals/minizinc:gecode", "minizinc:cp-sat": "stages/minizinc:cp-sat",
    "pyomo:cbc": "checkmate/pyomo:cbc",
}  # fmt: skip
MORE_METHODS = tuple(method for backend, method in OTHERS.items() if make_backend(backend).ready().ready)


@pytest.fixture(scope="session")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graphs(tmp_path_factory.mktemp("stress") / "graphs")


def faults_of(command: Command, ended: Ended, codes: set[int], where: Path) -> list[str]:
    """List the faults in the outcome of a command."""
    found = [f"left behind: {each}" for each in ended.left]
    if ended.code not in codes:
        found.append(f"exit code {ended.code}, not one of {sorted(codes)}: {ended.err[-500:]}")
    for word in ("Traceback", "Exception ignored", "\x1b", "Fatal Python error"):
        if word in ended.err or word in ended.out:
            found.append(f"{word!r} on the terminal: {ended.err[-2000:]}")
    out = command.folder / "out.json"
    if out.exists() and out.stat().st_size:
        graph, budget = _graph_and_budget(command.arguments)
        try:
            json.loads(out.read_text(encoding="utf-8"))
        except ValueError as error:
            found.append(f"the schedule is incomplete: {error}")
        if main(["validate", graph, str(out), *budget]) != 0:
            found.append("the schedule is not valid")
    elif ended.code == 0 and "out.json" in command.arguments:
        found.append("exit code 0 without a schedule")
    return found


def _graph_and_budget(arguments: list[str]) -> tuple[str, list[str]]:
    budget = ["--budget", arguments[arguments.index("-b") + 1]] if "-b" in arguments else []
    return arguments[1], budget


def _show(number: int, command: Command, ended: Ended, faults: list[str]) -> str:
    words = " ".join(word.rpartition("/")[2] for word in command.arguments)
    return f"[{number}] {words} ended after {ended.seconds:.2f} s with {ended.code}: {'; '.join(faults)}"


def run_signals(folder: Path, where: Path, number: int, capsys: pytest.CaptureFixture[str], runs: float = RUNS) -> None:
    wrong, late = [], []
    choice = random.Random(SEED)
    for turn, arguments in zip(turns(number, SECONDS), commands(where, choice, MORE_METHODS), strict=False):
        command = Command(folder / str(turn), *arguments)
        kind = choice.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
        wait_for_handlers(command.process)
        time.sleep(choice.random() * runs)
        ended = command.end(kind)
        codes = {0, 1} if ended.before else {0, 130} if kind == signal.SIGINT else {143}
        if kind == signal.SIGINT and command.arguments[0] not in ("solve", "improve", "minimize"):
            codes |= {0, 1}  # it may have ended before
        if kind == signal.SIGTERM and "interrupted" not in ended.out:
            codes |= {0, 1}  # it may have ended before
        faults = faults_of(command, ended, codes, where)
        if not ended.before and ended.seconds > SOON:
            late.append(_show(turn, command, ended, []))
        if not ended.before and ended.seconds > LATEST:
            faults.append("late")
        if faults:
            wrong.append(_show(turn, command, ended, faults))
        capsys.readouterr()
    assert not wrong, "\n".join(wrong)
    assert len(late) <= max(1, number // 10), "\n".join(late)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_signals_at_random_instants(tmp_path: Path, where: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_signals(tmp_path, where, count("SIGNALS", 200), capsys)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_kills_at_random_instants(tmp_path: Path, where: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kill the command, or one of its children, after which the command must end in good order.

    One in five is killed during its start.
    """
    wrong = []
    choice = random.Random(SEED + 1)
    for turn, arguments in zip(
        turns(count("KILLS", 100), SECONDS), commands(where, choice, MORE_METHODS), strict=False
    ):
        arguments = [word if word != "60" else "6" for word in arguments]
        if arguments[0] == "solve" and not {"--isolate", "lp-rounding"} & set(arguments) and choice.random() < 0.5:
            arguments.append("--isolate")
        command = Command(tmp_path / str(turn), *arguments)
        early = choice.random() < 0.2
        if not early:
            wait_for_handlers(command.process)
        time.sleep(choice.random() * (1.5 if early else RUNS))
        # Python's tracker of semaphores reports its own death on the terminal.
        family = [pid for pid in command.family() if "resource_tracker" not in command_of(pid)]
        children = [pid for pid in family if pid != command.process.pid]
        victim = choice.choice(children) if children and choice.random() < 0.5 else None
        ended = command.end(signal.SIGKILL, victim, linger=START_LINGER if early else LINGER)
        codes = {0, 1, 2} if ended.before or victim else {-signal.SIGKILL}
        faults = [fault for fault in faults_of(command, ended, codes, where)
                  if victim or not fault.startswith("left behind: file")]  # fmt: skip
        if faults:
            wrong.append(_show(turn, command, ended, [f"killed {victim or 'itself'}", *faults]))
        capsys.readouterr()
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_some_signals(tmp_path: Path, where: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A daily sample, with signals shortly after the start."""
    run_signals(tmp_path, where, count("FEW", 3), capsys, runs=2.0)
