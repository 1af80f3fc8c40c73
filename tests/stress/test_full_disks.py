"""A disk that is full: a small tmpfs where that can be mounted, a limit on the size of files elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PROGRAM

from remat.cli import main
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")]
#: The same commands with no file larger than so many bytes.
LIMITED = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); " + PROGRAM


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> None:
    """Leave no byte free."""
    size = 65536
    with (folder / "filler").open("ab", buffering=0) as file:
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def run(program: str, folder: Path, *arguments: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, cwd=folder, timeout=300,
        check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_what_is_found_goes_elsewhere(disk: Path, tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    write_graph(unit_chain(60), graph)
    for command in (("solve", graph, "-b", "60%", "-f", "greedy"), ("minimize", graph, "-t", "3")):
        out = disk / "s.json"
        fill(disk)
        code, shown, err = run(PROGRAM, tmp_path, *command, "-q", "-o", out)
        if "no such" in err or ("cannot be written: No space" in err and not shown):  # seen before the work began
            assert code == 2
            continue
        assert code == 2
        assert "No space left on device; it is in " in err
        other = Path(err.rpartition("it is in ")[2].partition(" instead")[0])
        assert main(["validate", str(graph), str(other)]) == 0
        assert not out.exists()
        assert [path.name for path in disk.iterdir()] == ["filler"]
        other.unlink()


def test_no_file_may_be_that_large(tmp_path: Path) -> None:
    """Nowhere: the schedule is printed, whole."""
    graph = tmp_path / "g.json"
    write_graph(unit_chain(60), graph)
    code, shown, err = run(
        LIMITED, tmp_path, "solve", graph, "-b", "60%", "-f", "greedy", "-q", "-o", tmp_path / "s.json"
    )
    assert code == 2
    assert "nowhere else either; here it is" in err
    document, _ = json.JSONDecoder().raw_decode(shown)
    assert document["format"] == "remat-schedule" and len(document["steps"]) > 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.json"]
