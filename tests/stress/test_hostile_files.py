"""Randomly damaged files of every format, for every command that reads: a result or a clean error.

REMAT_STRESS_FILES sets the number of files. tests/io has the tests of the readers.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from processes import count

from remat.cli import main
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph

#: Terminal escape sequences, and text that breaks parsers.
NASTY = (
    b"\x1b[31m", b"\x1b]0;x\x07", b"\x9b2J", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"[" * 3000, b"{" * 3000, b"9" * 5000,
    b"-1", b"1e999", b"NaN", b"null", b'""', b"\\u001b[2J", b"\\ud800", b"1.5", b"true", b"1_000", "\u202e".encode(),
    b"../../etc/passwd", b"\n", b"\r", b",", b'"', b"}", b"]",
)  # fmt: skip


def originals(folder: Path) -> dict[str, bytes]:
    """Return a file of every writable format, a profile and a configuration."""
    graph, schedule = folder / "g.json", folder / "s.json"
    write_graph(unit_chain(4), graph)
    assert main(["solve", str(graph), "-b", "5", "-m", "greedy", "-q", "-o", str(schedule)]) == 0
    assert main(["convert", str(graph), str(folder / "g.dot")]) == 0
    files = {path.name: path.read_bytes() for path in (graph, schedule, folder / "g.dot")}
    files["s.txt"] = b"\n".join(op.encode() for op in ("f0", "f1", "f2", "f3", "loss", "g3", "g2", "g1", "f0", "g0"))
    files["costs.csv"] = b"op,cost\nf0,1\nf1,2\nf2,3\nf3,4\nloss,1\ng3,1\ng2,1\ng1,1\ng0,1\n"
    files["run.toml"] = b'[problem]\ngraph = "g.json"\nbudget = "5"\n[solve]\nmethod = "greedy"\ntime_limit = 5\n'
    return files


def commands(name: str, path: str, folder: Path) -> list[list[str]]:
    """Return the commands that read a file of that name."""
    graph = str(folder / "g.json")
    if name.startswith("g."):
        return [
            ["show", path], ["show", path, "--json"], ["validate", path, str(folder / "s.json")],
            ["bounds", path, "-b", "5", "-t", "2"], ["convert", path, str(folder / "out.json")],
            ["solve", path, "-b", "80%", "-m", "greedy", "-t", "5", "-q"],
            ["batch", path, "--memory", "1GiB", "-m", "greedy", "-t", "2", "--batch-size", "1", "-q"],
        ]  # fmt: skip
    if name.startswith("s."):
        return [
            ["validate", graph, path, "--budget", "5"], ["validate", graph, path, "--json"],
            ["improve", graph, path, "-b", "5", "-m", "greedy", "-t", "5", "-q"],
        ]  # fmt: skip
    if name == "costs.csv":
        return [["show", graph, "--costs", path], ["solve", graph, "-b", "5", "-m", "greedy", "-q", "--costs", path]]
    return [["solve", "--config", path, "-q"]]


def damaged(choice: random.Random, data: bytes) -> bytes:
    """Return the data with a few random changes: bytes, cuts, repetitions, nasty text."""
    for _ in range(choice.choice([1, 1, 1, 2, 5])):
        place, kind = choice.randrange(len(data) + 1), choice.randrange(6)
        end = min(len(data), place + choice.choice([1, 1, 8, 100]))
        middle = {
            0: bytes([choice.randrange(256)]), 1: b"", 2: choice.choice(NASTY), 3: choice.choice(NASTY),
            4: data[place:end] * 2, 5: data[place:end] + choice.choice(NASTY),
        }[kind]  # fmt: skip
        data = data[:place] + middle + data[end if kind != 2 else place :]
    return data[: choice.randrange(len(data) + 1)] if choice.random() < 0.05 else data


def run_many(number: int, seed: int, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = originals(folder)
    choice = random.Random(seed)
    capfd.readouterr()
    for turn in range(number):
        name = choice.choice(list(files))
        path = folder / f"bad.{name.partition('.')[2]}"
        data = damaged(choice, files[name])
        path.write_bytes(data)
        command = choice.choice(commands(name, str(path), folder))
        began = time.monotonic()
        code = main(command)
        seconds = time.monotonic() - began
        out, err = capfd.readouterr()
        what = f"[{turn}] {' '.join(command)} of {data[:400]!r}: {code}, {err[-1500:]!r}"
        assert code in (0, 1, 2), what
        assert code != 2 or (err.startswith("remat: error: ") and err.count("\n") == 1), what
        assert "internal error" not in err and "Traceback" not in err, what
        raw = [c for c in out + err if not c.isprintable() and c != "\n"]
        assert not raw, f"{raw} of {what}"
        assert seconds < 20, what


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_damaged_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_many(count("FILES", 1500), count("SEED", 0), tmp_path, capfd)


def test_some_damaged_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_many(25, 1, tmp_path, capfd)
