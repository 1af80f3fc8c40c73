"""Limits on small files that expand to large data."""

import io
import os
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import at_most
from refusals import refused

from remat.errors import FormatError, FormatRemark, RematError, ScheduleError
from remat.graphs import ComputeGraph, Op, Tensor, read_graph
from remat.graphs.families import path, unit_chain
from remat.graphs.profiles import read_profile
from remat.io.files import parse_json, read_toml
from remat.io.formats import reading
from remat.io.limits import MAX_STEPS, draw, draw_json, read_limits
from remat.schedule import Schedule, read_schedule, simulate

CHAIN = unit_chain(4)


def test_values_exceed_the_memory_limit() -> None:
    for piece in ("[],", "{},", '{"a":1},', '{"a":{}},', "0.1,", "[[[[]]]],", '"a",'):
        with at_most(2), read_limits(memory="80MiB"), refused("format.read-memory", culprit="bomb"):
            parse_json('{"format": "remat-graph", "ops": [' + piece * (5_000_000 // len(piece)) + "1]}", "bomb")


def test_punctuation_of_large_files_is_within_limits() -> None:
    """300,000 ops and a million steps."""
    op = '{"name": "op_123456", "type": "t", "cost": 1, "inputs": ["a", "b", "c"], "outputs": ["d"], "workspace": 5},'
    with read_limits(memory="800MiB"):
        draw_json((op + '{"name": "d", "size": 4},') * 300_000)
        draw_json('["compute", "op_123456"],' * 1_000_000)
    assert MAX_STEPS >= 1_000_000


def test_numbers_of_many_digits() -> None:
    with refused("format.json"):
        parse_json("[" + "9" * 5000 + "]", "bomb")
    assert parse_json("[" + "9" * 4000 + "]", "fine") == [10**4000 - 1]
    assert parse_json("[0." + "1" * 1_000_000 + "]", "fine") == [1 / 9]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["i1", "f8"])
def test_archive_with_millions_of_computes(dtype: str, tmp_path: Path) -> None:
    graph = path(2850)
    matrix, bomb = np.tril(np.ones((2850, 2850), dtype=np.dtype(dtype))), tmp_path / "bomb.npz"
    np.savez_compressed(bomb, R=matrix, S=np.tril(matrix, -1))
    assert bomb.stat().st_size < 300_000
    tracemalloc.start()
    try:
        with at_most(20), pytest.raises(FormatError, match=r"R asks for .* too many"):
            read_schedule(bomb, graph)
        assert tracemalloc.get_traced_memory()[1] < 3 * 8 * matrix.size  # 8 bytes per entry
    finally:
        tracemalloc.stop()


def zipped(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_2_0(file, {"descr": "|i1", "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_archives_larger_than_their_matrices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat.schedule.formats.checkmate.MAX_ENTRIES", 250_000)  # a hundredth of the real limit
    ops = len(CHAIN.ops)
    small, long_header = header((ops, ops)) + bytes(ops * ops), b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little")
    for content, message in (
        (zipped(R=small + bytes(100_000), S=small), f"R is longer than a matrix of shape \\({ops}, {ops}\\)"),
        (zipped(R=header((500, 500)) + bytes(250_000), S=small), "the graph has 9 ops, one column each"),
        (zipped(R=header((10**6, 10**6)) + bytes(1000), S=small), "no matrix with at most 250,000 entries"),
        (zipped(zipfile.ZIP_LZMA, R=b"", S=b""), "R is compressed in a way that numpy does not write"),
        (zipped(R=small + bytes(2_100_000), S=small), "R unpacks to 2,100,"),
        (zipped(R=long_header + b" " * 2_000_000, S=small), "not an archive of matrices R and S"),
        (zipped(R=small, S=small, **{f"x{number}": b"" for number in range(100)}), "bytes or 64 files"),
    ):
        (tmp_path / "bomb.npz").write_bytes(content)
        with pytest.raises(FormatError, match=message):
            read_schedule(tmp_path / "bomb.npz", CHAIN)


def test_dotted_keys_of_toml(tmp_path: Path) -> None:
    """The parser copies all earlier parts for each part: gigabytes for 20,000 parts in 40 kB."""
    path = tmp_path / "run.toml"
    long = ".".join(["a"] * 100_000)
    for text in (f"x = 1\n{long} = 1\n", f"x = 1\n[{long}]\n", f"x = 1\ny = {{{long} = 1}}\n",
                 "x = 1\n" + " . ".join(['"a"', "'b'", "c"] * 1000) + " = 1\n"):  # fmt: skip
        path.write_text(text)
        with refused("format.toml-keys"):
            read_toml(path)
    for text in (
        "x = 1\n" + "a" * 900_000,
        '"' * 500_000,
        "a." * 20 + "a = [" + "0.1, " * 1000 + "]",
        "a" * 9 + " ." * 400_000,
    ):
        path.write_text(text)
        with at_most(5):
            try:
                read_toml(path)
            except RematError as error:
                assert "run.toml" in str(error)


def test_too_many_steps(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    for text in ("a\n" * (MAX_STEPS + 1), "#\n" * (MAX_STEPS + 1)):
        path.write_text(text)
        with pytest.raises(FormatError, match="more than the 4,000,000 that are read"):
            read_schedule(path, CHAIN)
    path.write_text("op,us\n" + "a,1\n" * MAX_STEPS)
    with pytest.raises(FormatError, match="more than the 4,000,000 cells that are read"):
        read_profile(path)


def test_endless_and_large_files(tmp_path: Path) -> None:
    with refused("format.no-file"):
        read_graph("/dev/zero")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(600 * 1024 * 1024)
    with refused("format.too-large"):
        read_graph(tmp_path / "sparse")


def test_nested_limits() -> None:
    with read_limits(memory=100), read_limits(memory="1GiB", seconds=60), refused("format.read-memory"):
        draw(101)
    with read_limits(seconds=0):
        draw(seconds=0.5)  # at least one second, as limits of searches may be very short
        with read_limits(seconds=60), refused("format.read-time"):
            draw(seconds=1)
    draw(100 << 20)
    with read_limits(memory="1GiB"), reading():
        draw(1 << 29)
        draw(1 << 29)
        with reading(), refused("format.read-memory"):  # nested readers share one budget
            draw(1)


def many_faults() -> str:
    return '{"format": "remat-plan", "version": 1, "statements": [' + '["x"],' * 20_000 + "[]]}"


def repeated_long_names(length: int, arrays: int) -> str:
    """Return an op of many results that each repeat its name."""
    name, shape = "n" * length, "s4[]," * arrays
    return (
        f"HloModule m\nENTRY e {{\n x = s4[] parameter(0)\n {name} = ({shape}s4[]) custom-call(x)\n"
        f" ROOT r = s4[] get-tuple-element({name}), index=0\n}}\n"
    )


def tuple_parameters(count: int, arrays: int) -> str:
    lines = "".join(f" p{number} = ({'s4[],' * arrays}s4[]) parameter({number})\n" for number in range(count))
    return f"HloModule m\nENTRY e {{\n{lines} x = f32[] parameter({count})\n ROOT r = f32[] negate(x)\n}}\n"


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        (many_faults(), None),
        (repeated_long_names(20_000, 2000), repeated_long_names(10, 2000)),
        (tuple_parameters(100, 2000), tuple_parameters(100, 2)),
    ],
    ids=["plan", "long names of HLO", "tuples of HLO"],
)
def test_expanding_texts(text: str, fine: str | None, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    bomb.write_text(text)
    with at_most(5), read_limits(memory="16MiB"):
        with refused("format.read-memory", culprit=str(bomb)):
            read_schedule(bomb, CHAIN) if fine is None else read_graph(bomb)
        if fine is not None:
            bomb.write_text(fine)
            with pytest.warns(FormatRemark, match="not scheduled"):
                assert read_graph(bomb).ops


def test_time_limit_of_readers(tmp_path: Path) -> None:
    slow = tmp_path / "slow.hlo"
    slow.write_text(tuple_parameters(100, 20_000))  # 2 million arrays: many seconds
    with at_most(2, time.monotonic), read_limits(seconds=1), refused("format.read-time", culprit=str(slow)):
        read_graph(slow)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipe_without_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat.io.limits.LEAST_SECONDS", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    hide = {"within 0.1 s": "within 1 s"}
    with at_most(2, time.monotonic), read_limits(seconds=0.1), refused("format.pipe", culprit=str(pipe), hide=hide):
        read_graph(pipe)


def test_steps_that_touch_too_many_tensors(tmp_path: Path) -> None:
    """With implied frees, simulation has one entry per tensor read or written."""

    names = [f"t{number}" for number in range(10_000)]
    graph = ComputeGraph("g", [Tensor(name, 1) for name in names], [Op("a", tuple(names))], inputs=names)
    with pytest.raises(ScheduleError, match="touch 300,000,000 tensors"):
        simulate(graph, Schedule.of_computes(graph, np.zeros(30_000, dtype=np.int64)))
    assert simulate(graph, Schedule.of_computes(graph, np.zeros(3, dtype=np.int64))).peak == 10_000
