"""``remat allocate`` through the entry point."""

import os
import time
from pathlib import Path

import pytest
from shell import facts, interrupt, ok, start

from remat.schedule.buffer_tables import table_text
from remat.testing.allocator_checks import random_buffers


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("id,lower,upper,size\na,0,2,4\nb,1,3,2\nc,2,3,1\n")


def test_table_of_buffers_gets_valid_offsets() -> None:
    ran = ok("allocate t.csv -o o.csv -q --plot p.png")
    assert "arena         6 bytes (peak 6 bytes, fragmentation 0 %)" in ran.out
    assert "no arena is smaller" in ran.out
    assert ran.err == ""
    out = Path("o.csv")
    assert out.read_text() == "id,lower,upper,size,offset\na,0,2,4,0\nb,1,3,2,4\nc,2,3,1,0\n"
    assert Path("p.png").stat().st_size > 1000
    ok("allocate t.csv --check o.csv")
    shown = ok("allocate t.csv --check o.csv --capacity 5", code=1).out
    assert "ends beyond the capacity of 'memory', 5 bytes" in shown
    out.write_text(out.read_text().replace("1,3,2,4", "1,3,2,6"))
    assert "arena         8 bytes (peak 6 bytes, fragmentation 33.33 %)" in ok("allocate t.csv --check o.csv").out
    out.write_text(out.read_text().replace("1,3,2,6", "1,3,2,3"))
    shown = ok("allocate t.csv --check o.csv", code=1).out
    assert "step 1: buffer 'b' at [3, 5) overlaps buffer 'a' at [0, 4)" in shown
    shown = ok("allocate t.csv --capacity 5 -q", code=1).out
    assert "none: step 1: 6 bytes are held, but there are 5 (memory)" in shown


@pytest.mark.shared
def test_graph_and_schedule_as_input(shared) -> None:
    graph = shared / "data/graphs/swiftnet_hpd_cell_c.json"
    answer = facts(f"allocate {graph} --memory fast=16KiB --memory slow --method first-fit --alignment 16 -o o.json -q")
    fast, slow = answer["certificate"]["memories"]
    assert (fast["name"], fast["capacity"]) == ("fast", 16384)
    assert answer["bound"] <= slow["arena"]
    ok(f"allocate {graph} --check o.json")
    ok(f"order {graph} --method kahn -o s.json -q")
    ok(f"allocate {graph} s.json -q --method first-fit -o o.json")
    assert "fragmentation" in ok(f"validate {graph} s.json --addresses o.json").out
    out = Path("o.json")
    out.write_text(out.read_text().replace('"offset": 0,', '"offset": 1,'))
    found = facts(f"validate {graph} s.json --addresses o.json", code=1)
    assert found["addresses"]["violations"][0]["rule"] == "overlap"
    assert "TFLite file" in ok(f"allocate {graph} -o p.bin -q --method first-fit", code=2).err


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals as POSIX has them")
def test_ctrl_c_keeps_the_incumbent() -> None:
    Path("t.csv").write_text(table_text(random_buffers(3, 500, 30, 500)))
    process = start("allocate t.csv -o o.csv")
    done = interrupt(process, lambda line: line.startswith("arena ") and not time.sleep(0.5))
    assert done.code == 0
    assert "addresses     valid" in done.out
    ok("allocate t.csv --check o.csv")
