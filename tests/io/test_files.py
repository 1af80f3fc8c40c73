"""Safe writing: links, modes, pipes, devices, standard streams, full disks, repeated outputs."""

import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from refusals import refused
from shell import program

from remat.cli import main
from remat.errors import FormatError
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.io.files import check_output, check_outputs, exists, read_bytes, write_atomic
from remat.schedule.io import read_schedule

Capture = pytest.CaptureFixture[str]
ODD = ["a\0b", "\ud800", "x" * 5000, "/".join(["y" * 200] * 40), ""]


def test_links_are_kept(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link, far = tmp_path / "real" / "target", tmp_path / "link", tmp_path / "far"
    target.write_text("before")
    link.symlink_to("real/target")
    far.symlink_to("link")
    write_atomic(far, "after")
    assert far.is_symlink() and link.is_symlink() and target.read_text() == "after"
    dangling = tmp_path / "dangling"
    dangling.symlink_to("real/new")
    check_output(dangling)
    write_atomic(dangling, "made")
    assert (tmp_path / "real" / "new").read_text() == "made" and dangling.is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    for call in (check_output, lambda path: write_atomic(path, "x")):
        with refused("format.not-written"):
            call(tmp_path / "loop")
    assert not list(tmp_path.rglob("*.part"))


def test_modes_of_existing_and_new_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    for mode in (0o640, 0o600, 0o755):
        path.chmod(mode)
        write_atomic(path, "after")
        assert stat.S_IMODE(path.stat().st_mode) == mode
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_umask_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The umask belongs to the whole process, so a change would affect all threads."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("umask changed"))
    write_atomic(tmp_path / "file", "x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_are_written_in_place(tmp_path: Path) -> None:
    fifo, null = tmp_path / "fifo", tmp_path / "null"
    os.mkfifo(fifo)
    null.symlink_to("/dev/null")
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    check_output(fifo)
    write_atomic(fifo, "through")
    reader.join(10)
    assert received == [b"through"] and fifo.is_fifo()
    for path in (null, Path("/dev/null")):
        check_output(path)
        write_atomic(path, "gone")
        assert path.is_char_device()
    with refused("format.not-written"):
        write_atomic("/dev/full", "x")


def test_pipe_whose_reader_closes(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    threading.Thread(target=lambda: fifo.open("rb").close(), daemon=True).start()
    with refused("format.not-written"):
        write_atomic(fifo, b"x" * 10_000_000)


def test_read_from_a_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    threading.Thread(target=write_graph, args=(unit_chain(2), fifo), daemon=True).start()
    assert read_graph(fifo) == unit_chain(2)


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused("format.not-written"):
        write_atomic(path, "after")
    assert path.read_text() == "before" and [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ODD, ids=["nul", "surrogate", "long", "deep", "empty"])
def test_unusable_paths_are_refused(name: str, tmp_path: Path) -> None:
    assert exists(tmp_path / name) == (name == "")
    path = tmp_path / name if name else Path()
    for call in (check_output, read_bytes, read_graph, lambda path: write_atomic(path, "x")):
        with pytest.raises(FormatError):
            call(path)


def test_outputs_must_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("a.json")
    for one, two in (("a.json", "a.json"), ("a.json", "sub/../a.json"), ("link", "a.json"), ("-", "/dev/stdout"),
                     (str(tmp_path / "a.json"), "./a.json")):  # fmt: skip
        with refused("format.output"):
            check_outputs((one, ()), (None, ()), (two, ()))
    check_outputs(("a.json", ()), ("b.json", ()), ("/dev/null", ()), ("/dev/null", ()), (None, ()), (None, ()))
    with refused("format.output"):
        (tmp_path / "a.json").write_text("x")
        check_outputs(("link", ()), inputs=["a.json"])


def test_commands_connected_by_pipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Graphs and schedules go through pipes; messages go to standard error."""
    monkeypatch.chdir(tmp_path)

    def remat(*words: str, given: bytes = b"") -> bytes:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert main(list(words)) == 0
        return capsysbinary.readouterr().out

    graph = remat("generate", "unit-chain", "-n", "3", "-o", "-")
    Path("g.json").write_bytes(graph)
    assert read_graph("g.json") == unit_chain(3)
    assert b"unit-chain-3" in remat("show", "-", given=graph)
    schedule = remat("solve", "-", "-b", "100%", "-q", "-o", "-", given=graph)
    Path("s.json").write_bytes(schedule)
    assert read_schedule("s.json").num_computes == 7
    assert b"valid" in remat("validate", "g.json", "-", given=schedule)
    better = remat("improve", "g.json", "/dev/stdin", "-b", "100%", "-q", "-o", "/dev/stdout", given=schedule)
    assert better.startswith(b'{\n"format": "remat-schedule"')
    assert remat("convert", "-", "-", "--graph", "g.json", given=schedule) == schedule
    done = subprocess.run(program("convert - -"), input=graph, capture_output=True, check=True, cwd=tmp_path)
    assert done.stdout == graph


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"once")))
    assert read_bytes("-") == b"once"
    with refused("format.no-file"):
        read_bytes("-")
