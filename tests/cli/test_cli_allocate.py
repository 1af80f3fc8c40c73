"""``remat allocate``, as a person calls it."""

import json
import os
import time

import pytest
from shell import interrupt, start

from remat.cli import main
from remat.schedule.buffer_tables import table_text
from tests.allocation.test_allocators import jagged, tangled

TABLE = "id,lower,upper,size\na,0,2,4\nb,1,3,2\nc,2,3,1\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    return path


def test_a_table_gets_offsets_that_check(table, tmp_path, capsys) -> None:
    out = tmp_path / "o.csv"
    assert main(["allocate", str(table), "-o", str(out), "-q", "--plot", str(tmp_path / "p.png")]) == 0
    said = capsys.readouterr()
    assert "arena         6 bytes (peak 6, fragmentation 0 %)" in said.out
    assert "no arena is smaller" in said.out
    assert said.err == ""
    assert out.read_text() == "id,lower,upper,size,offset\na,0,2,4,0\nb,1,3,2,4\nc,2,3,1,0\n"
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert main(["allocate", str(table), "--check", str(out)]) == 0
    assert main(["allocate", str(table), "--check", str(out), "--capacity", "5"]) == 1
    assert "ends beyond the capacity of 'memory', 5 bytes" in capsys.readouterr().out
    out.write_text(out.read_text().replace("1,3,2,4", "1,3,2,3"))
    assert main(["allocate", str(table), "--check", str(out)]) == 1
    assert "step 1: buffer 'b' at [3, 5) overlaps buffer 'a' at [0, 4)" in capsys.readouterr().out


def test_what_cannot_be_is_said(table, capsys) -> None:
    assert main(["allocate", str(table), "--capacity", "5", "-q"]) == 1
    assert "none: step 1: 6 bytes are held, but there are 5 (memory)" in capsys.readouterr().out


@pytest.mark.shared
def test_a_schedule_in_two_memories_and_as_json(shared, tmp_path, capsys) -> None:
    graph = str(shared / "data/graphs/swiftnet_hpd_cell_c.json")
    out = tmp_path / "o.json"
    words = ["--memory", "fast=16KiB", "--memory", "slow", "--method", "first-fit", "--alignment", "16"]
    assert main(["allocate", graph, *words, "-o", str(out), "--json", "-q"]) == 0
    said = json.loads(capsys.readouterr().out)
    fast, slow = said["certificate"]["memories"]
    assert (fast["name"], fast["capacity"]) == ("fast", 16384)
    assert said["bound"] <= slow["arena"]
    assert main(["allocate", graph, "--check", str(out)]) == 0
    order = tmp_path / "s.json"
    assert main(["order", graph, "--method", "kahn", "-o", str(order), "-q"]) == 0
    assert main(["allocate", graph, str(order), "-q", "--method", "first-fit", "-o", str(out)]) == 0
    assert main(["validate", graph, str(order), "--addresses", str(out)]) == 0
    assert "fragmentation" in capsys.readouterr().out
    out.write_text(out.read_text().replace('"offset": 0,', '"offset": 1,'))
    assert main(["validate", graph, str(order), "--addresses", str(out), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["addresses"]["violations"][0]["rule"] == "overlap"
    assert main(["allocate", graph, "-o", str(tmp_path / "p.bin"), "-q", "--method", "first-fit"]) == 0
    assert main(["allocate", graph, "--check", str(tmp_path / "p.bin")]) == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals as POSIX has them")
def test_ctrl_c_keeps_the_best(tmp_path) -> None:
    (tmp_path / "t.csv").write_text(table_text(jagged(3, 500, 30)))
    process = start("allocate", "t.csv", "-o", "o.csv", cwd=tmp_path)
    done = interrupt(process, lambda line: line.startswith("arena ") and not time.sleep(0.5))
    assert done.code == 0
    assert "addresses     valid" in done.out
    assert main(["allocate", str(tmp_path / "t.csv"), "--check", str(tmp_path / "o.csv")]) == 0


def test_tangled_buffers_need_more_than_their_peak(tmp_path, capsys) -> None:
    (tmp_path / "t.csv").write_text(table_text(tangled()))
    assert main(["allocate", str(tmp_path / "t.csv"), "-q"]) == 0
    assert "arena         11 bytes (peak 10, fragmentation 10 %)" in capsys.readouterr().out
