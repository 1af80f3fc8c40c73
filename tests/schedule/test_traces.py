"""Traces: events that sum to the simulated memory, files for their viewers."""

import json
import pickle
import pickletools
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers import steps
from refusals import refused
from schedule_oracle import random_graph, random_valid_steps

from remat.errors import FormatError
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.layered import layered
from remat.schedule import Addresses, Machine, Schedule, schedule_buffers, simulate, time_schedule
from remat.schedule.schedule import StepKind
from remat.schedule.traces import (
    chrome_trace,
    chrome_trace_text,
    layer_table,
    memory_snapshot,
    perfetto_trace,
    save_chrome_trace,
    save_memory_snapshot,
    snapshot_bytes,
)


@pytest.fixture
def graph() -> ComputeGraph:
    """Return two equal layers and their gradients: input, workspace, constants, a tensor named like a buffer."""
    modules = {"a": "net.0.lin", "b": "net.1.lin", "gb": "net.1.lin", "ga": "net.0.lin"}
    lines = {"a": "net.py:12, in forward", "b": ["net.py", 13, "forward"]}
    builder = GraphBuilder(
        "small", cost_unit="us", constant_memory=1000, meta={"modules": modules, "source_lines": lines}
    )
    builder.input("x", 64)
    builder.op("a", inputs=["x"], size=4096, cost=3, workspace=512, type="lin", phase="forward")
    builder.op("b", inputs=["a"], size=4096, cost=3, workspace=512, type="lin", phase="forward")
    builder.op("loss", inputs=["b"], outputs={"a#2": 4}, phase="loss")
    builder.op("gb", inputs=["a#2", "b", "a"], size=2048, cost=5, phase="backward")
    builder.op("ga", inputs=["gb", "a"], size=2048, cost=5, phase="backward")
    builder.output("ga")
    return builder.build()


@pytest.fixture
def schedule() -> Schedule:
    return steps("a b -a loss a gb -b -a#2 ga -a -gb")


def running_sums(snapshot: dict[str, Any]) -> list[int]:
    held, sums = 0, []
    for event in snapshot["device_traces"][0]:
        held += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
        sums.append(held)
    return sums


def plain(value: object) -> bool:
    if type(value) is dict:
        return all(type(key) is str for key in value) and all(map(plain, value.values()))
    return all(map(plain, value)) if type(value) is list else type(value) in (int, str)


def random_case(seed: int) -> tuple[ComputeGraph, Schedule]:
    """Return a random graph, and its order with repeated ops."""
    graph, random = layered(30, seed=seed), Random(seed)
    order = list(graph.order or ())
    for _ in range(12):
        place = random.randrange(1, len(order))
        order.insert(place, random.choice(order[:place]))
    return graph, steps(order)


@pytest.mark.parametrize("count", [False, True])
def test_snapshot_events_sum_to_the_simulated_memory(graph: ComputeGraph, schedule: Schedule, count: bool) -> None:
    run = simulate(graph, schedule, count_constant_memory=count)
    found = memory_snapshot(graph, schedule, count_constant_memory=count)
    sums = running_sums(found)
    assert max(sums) == run.peak
    assert sums[-1] == sum(segment["requested_size"] for segment in found["segments"]) == 2048 + 64 + 1000 * count
    events = found["device_traces"][0]
    kinds = Counter(event["category"] for event in events if event["action"] == "alloc")
    assert kinds == {"input": 1, "activation": 2, "workspace": 3, "loss": 1, "gradient": 2, "recomputed": 1} | (
        {"constant": 1} if count else {}
    )
    # the viewer requires one event of this category, and two consecutive events per free
    assert "unknown" in {event["category"] for event in events}
    for first, second in pairwise(events):
        assert (first["action"] == "free_requested") == (second["action"] == "free_completed")
        if first["action"] == "free_requested":
            assert (first["addr"], first["size"]) == (second["addr"], second["size"])


def test_blocks_are_contiguous_and_live_buffers_disjoint() -> None:
    for seed in range(3):
        graph, schedule = random_case(seed)
        found = memory_snapshot(graph, schedule)
        assert max(running_sums(found)) == simulate(graph, schedule).peak
        (segment,) = found["segments"]
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
        held: dict[int, int] = {}
        for event in found["device_traces"][0]:
            if event["action"] == "alloc":
                start, end = event["addr"], event["addr"] + event["size"]
                assert all(end <= a or b <= start for a, b in held.items())
                held[start] = end
            elif event["action"] == "free_completed":
                del held[event["addr"]]
        blocks = {b["address"]: b["address"] + b["size"] for b in segment["blocks"] if b["state"] != "inactive"}
        assert blocks == held
        run = simulate(graph, schedule)
        made, freed = Counter(run.intervals.tensor.tolist()), Counter(run.free_tensor.tolist())
        assert sum(b["requested_size"] for b in segment["blocks"]) == sum(
            graph.tensors[tensor].size for tensor in (made - freed).elements()
        )


def test_snapshot_pickle_has_only_opcodes_of_the_viewer(
    graph: ComputeGraph, schedule: Schedule, tmp_path: Path
) -> None:
    content = snapshot_bytes(graph, schedule)
    # opcodes of ``unpickle`` in MemoryViz.js for dicts, lists, strings and integers
    known = {"PROTO", "FRAME", "EMPTY_DICT", "EMPTY_LIST", "MEMOIZE", "MARK", "SHORT_BINUNICODE", "BINUNICODE",
             "BININT", "BININT1", "BININT2", "LONG1", "BINGET", "LONG_BINGET", "APPEND", "APPENDS", "SETITEM",
             "SETITEMS", "STOP"}  # fmt: skip
    opcodes = list(pickletools.genops(content))
    assert {op.name for op, _, _ in opcodes} <= known
    assert opcodes[0][1] == 4
    loaded = pickle.loads(content)
    assert loaded == memory_snapshot(graph, schedule)
    assert plain(loaded)
    assert content == snapshot_bytes(graph, schedule)
    save_memory_snapshot(graph, schedule, tmp_path / "s.pickle")
    assert (tmp_path / "s.pickle").read_bytes() == content
    with pytest.raises(FormatError, match="nowhere"):
        save_memory_snapshot(graph, schedule, tmp_path / "nowhere" / "s.pickle")


def test_frames_name_instance_op_module_and_user_line(graph: ComputeGraph, schedule: Schedule) -> None:
    events = memory_snapshot(graph, schedule)["device_traces"][0]
    (again,) = [event["frames"] for event in events if event["category"] == "recomputed" and event["action"] == "alloc"]
    assert [(frame["filename"], frame["line"], frame["name"]) for frame in again] == [
        ("a#2'", 3, "recomputed"),
        ("op a", 3, "lin"),
        ("net.0.lin", 0, "module"),
        ("net.py", 12, "forward"),
    ]


def test_blocks_have_the_given_addresses(graph: ComputeGraph, schedule: Schedule) -> None:
    buffers = schedule_buffers(graph, schedule)
    stacked = [0]
    for size in buffers.rounded(16).tolist():
        stacked.append(stacked[-1] + size)
    placed = Addresses.in_one_memory(buffers, stacked[:-1], alignment=16)
    found = memory_snapshot(graph, schedule, addresses=placed)
    assert max(running_sums(found)) == simulate(graph, schedule).peak
    assert {e["addr"] for e in found["device_traces"][0] if e["action"] == "alloc"} == set(stacked[:-1])
    (segment,) = found["segments"]
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"] == stacked[-1]
    wrong = Addresses.in_one_memory(buffers, [0] * len(buffers))
    with refused("schedule.other-addresses"):
        memory_snapshot(graph, schedule, addresses=wrong)


def test_torch_reads_a_snapshot(graph: ComputeGraph, schedule: Schedule) -> None:
    pytest.importorskip("torch")
    from torch.cuda import _memory_viz as viewer

    loaded = pickle.loads(snapshot_bytes(graph, schedule, count_constant_memory=True))
    assert "segments: 1" in viewer.segsum(loaded)
    trace = viewer.trace(loaded)
    assert trace.count("# free completed") == sum(e["action"] == "free_completed" for e in loaded["device_traces"][0])
    assert "net.py:12:forward" in viewer.memory(loaded, format_flamegraph=str) or viewer.trace_plot(loaded)
    for draw in (viewer.trace_plot, viewer.segment_plot):
        assert "add_local_files" in draw(loaded)


def test_chrome_trace_slices_and_counters(graph: ComputeGraph, schedule: Schedule) -> None:
    run = simulate(graph, schedule)
    found = chrome_trace(graph, schedule, budget=10_000)
    slices = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in slices] == [
        ("a", 2, 0, 3), ("b", 2, 3, 3), ("loss", 2, 6, 0.001), ("a", 3, 6.001, 2.999), ("gb", 2, 9, 5), ("ga", 2, 14, 5)
    ]  # fmt: skip
    assert sum(e["args"]["cost"] for e in slices) == run.cost == slices[-1]["ts"] + slices[-1]["dur"]
    assert [e["args"]["memory"] for e in slices] == run.memory[run.is_compute].tolist()
    assert slices[3]["args"] == {
        "op": "a", "type": "lin", "phase": "forward", "module": "net.0.lin", "source": "net.py:12, in forward",
        "step": 3, "compute": 2, "reads": ["x"], "writes": ["a"], "bytes_written": 4096, "workspace": 512,
        "memory": 4096 + 4096 + 64 + 4 + 512, "cost": 3,
    }  # fmt: skip
    counters = {name: [e for e in found["traceEvents"] if e["ph"] == "C" and e["name"] == name] for name in
                ("memory", "held", "budget")}  # fmt: skip
    assert max(e["args"]["bytes"] for e in counters["memory"]) == run.peak == found["otherData"]["peak"]
    assert {e["args"]["bytes"] for e in counters["budget"]} == {10_000}
    at = {e["ts"]: sum(e["args"].values()) for e in counters["held"]}
    for event in counters["memory"]:
        assert at.get(event["ts"], event["args"]["bytes"]) == event["args"]["bytes"]
    assert max(at.values()) == run.peak


def test_other_costs_are_scaled_and_slices_are_disjoint(tmp_path: Path) -> None:
    graph, schedule = random_case(1)
    large = GraphBuilder("flops", cost_unit="flop")
    large.op("a", size=1, cost=3 * 10**17)
    large.op("b", inputs=["a"], size=1, cost=0)
    large.op("c", inputs=["b"], size=1, cost=7)
    exact, random = GraphBuilder("times", cost_unit="ns"), Random(0)
    for k in range(300):
        exact.op(f"a{k}", size=1, cost=random.randrange(1, 10**7))
    built = [exact.build(), large.build()]
    for each, run in ((graph, schedule), *((one, Schedule.reference(one)) for one in built)):
        text = chrome_trace_text(each, run)
        assert text == chrome_trace_text(each, run)
        assert text.isascii()
        found = json.loads(text)
        slices = [event for event in found["traceEvents"] if event["ph"] == "X"]
        ends = [(round(1000 * e["ts"]), round(1000 * (e["ts"] + e["dur"]))) for e in slices]
        assert all(start < end for start, end in ends)
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(slices))  # in floating point, as in viewers
        assert [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]]
        assert ends[-1][1] <= 10_000_000_000 + len(slices)
    assert found["otherData"]["cost_per_microsecond"] == 10**11
    save_chrome_trace(graph, schedule, tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["peak"] == simulate(graph, schedule).peak


Fields = dict[int, list[Any]]


def protobuf(content: bytes) -> Fields:
    """Return the values of each field of a protobuf message: integers, and bytes of strings and messages."""
    found: Fields = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = content[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(content):
        key = varint()
        assert key & 7 in (0, 2)
        value: Any = varint()
        if key & 7 == 2:
            assert at + value <= len(content)
            value, at = content[at : at + value], at + value
        found.setdefault(key >> 3, []).append(value)
    return found


def test_perfetto_trace_has_the_events_of_chromes_and_one_scale(
    graph: ComputeGraph, schedule: Schedule, tmp_path: Path
) -> None:
    run, content = simulate(graph, schedule), perfetto_trace(graph, schedule, budget=10_000)
    packets = [protobuf(packet) for packet in protobuf(content)[1]]
    assert all(packet[10] == [1] for packet in packets)
    tracks = {track[1][0]: track for track in (protobuf(packet[60][0]) for packet in packets if 60 in packet)}
    names = {number: track[2][0].decode() for number, track in tracks.items()}
    (root,) = (number for number, track in tracks.items() if 5 not in track)
    assert (names[root], tracks[root][11]) == ("small", [3])
    children = sorted((track for track in tracks.values() if 5 in track), key=lambda track: track[12])
    assert all(track[5] == [root] for track in children)
    assert [track[2][0].decode() for track in children] == [
        "memory", "budget", "input", "activation", "loss", "gradient", "recomputed", "workspace", "compute", "recompute"
    ]  # fmt: skip
    assert [protobuf(track[8][0]) for track in children if 8 in track] == [{3: [3], 7: [b"bytes"]}] * 8

    slices: list[list[Any]] = []
    values: dict[str, dict[int, int]] = {name: {} for name in names.values()}
    for packet in packets:
        for event in map(protobuf, packet.get(11, [])):
            (at,), (kind,), name = packet[8], event[9], names[event[11][0]]
            if kind == 4:
                values[name][at] = event[30][0]
            elif kind == 1:
                notes = [protobuf(note) for note in event[4]]
                slices.append([name, event[23][0].decode(), at, None, {note[10][0].decode(): note for note in notes}])
            else:
                assert (kind, slices[-1][0]) == (2, name)
                slices[-1][3] = at
    chrome = [event for event in chrome_trace(graph, schedule)["traceEvents"] if event["ph"] == "X"]
    assert [each[1] for each in slices] == [event["name"] for event in chrome]
    assert [each[2] for each in slices] == [round(1000 * event["ts"]) for event in chrome]
    assert [each[3] for each in slices] == [round(1000 * (event["ts"] + event["dur"])) for event in chrome]
    assert [each[0] for each in slices].count("recompute") == run.recomputations == 1
    for each, event in zip(slices, chrome, strict=True):
        assert list(each[4]) == list(event["args"])
        assert each[4]["memory"][4] == [event["args"]["memory"]]
        read = [protobuf(note)[6][0].decode() for note in each[4]["reads"].get(12, [])]
        assert read == event["args"]["reads"]
    assert max(values["memory"].values()) == run.peak
    assert set(values["budget"].values()) == {10_000}
    assert len({max(at for at in series) for name, series in values.items() if series}) == 1


def moving() -> tuple[ComputeGraph, Schedule]:
    """Return a path whose first tensor leaves the device and comes back."""
    builder = GraphBuilder("path", cost_unit="us")
    builder.op("a", size=4, cost=2)
    builder.op("b", inputs=["a"], size=2, cost=3)
    builder.op("c", inputs=["b"], size=1, cost=1)
    builder.op("d", inputs=["a", "c"], size=1, cost=5)
    return builder.build(), steps("a >a b -a <a c -b d")


def test_transfers_are_slices_on_tracks_of_the_links() -> None:
    graph, schedule = moving()
    machine = Machine(10**6, 2 * 10**6)  # a takes 4 us out and 2 us back
    run = simulate(graph, schedule)
    timing = time_schedule(run, machine)
    found = chrome_trace(graph, schedule, budget=7, machine=machine)
    events = found["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(tracks.values()) == ["compute", "recompute", "to host", "from host"]
    slices = [(tracks[e["tid"]], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        ("compute", "a", 0, 2), ("to host", "a", 2, 6), ("compute", "b", 2, 5), ("from host", "a", 6, 8),
        ("compute", "c", 6, 7), ("compute", "d", 8, 13),
    ]  # fmt: skip
    worked = np.isin(run.kinds, [StepKind.COMPUTE, StepKind.OFFLOAD, StepKind.FETCH])
    assert [each[2] for each in slices] == timing.start[worked].tolist()
    assert [each[3] for each in slices] == timing.end[worked].tolist()
    values = {name: [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["name"] == name]
              for name in ("memory", "host memory")}  # fmt: skip
    assert values == {
        "memory": [(0, 4), (2, 6), (6, 7), (8, 6), (13, 6)],
        "host memory": [(0, 0), (2, 4), (13, 4)],
    }
    about = found["otherData"]
    assert (about["time"], about["stall"], about["host_peak"], about["peak"]) == (13, 2, 4, run.peak)
    held = [e["args"] for e in events if e["name"] == "held"]
    assert [sum(each.values()) for each in held] == [4, 6, 6, 7, 6, 6]
    assert held[2]["fetched"] == 4
    with refused("schedule.trace-machine", culprit="--machine"):
        chrome_trace(graph, schedule)

    content = perfetto_trace(graph, schedule, machine=machine)
    packets = [protobuf(packet) for packet in protobuf(content)[1]]
    described = [protobuf(packet[60][0]) for packet in packets if 60 in packet]
    children = sorted((track for track in described if 5 in track), key=lambda track: track[12])
    names = {track[1][0]: track[2][0].decode() for track in children}
    assert list(names.values()) == ["memory", "host memory", "activation", "fetched", *tracks.values()]
    assert [protobuf(track[8][0])[7] for track in children if 8 in track] == [[b"bytes"]] * 4  # one scale
    begins = [(packet[8][0] // 1000, protobuf(packet[11][0])) for packet in packets if 11 in packet]
    assert [(names[event[11][0]], event[23][0].decode(), at) for at, event in begins if event[9] == [1]] == [
        each[:3] for each in slices
    ]


def test_random_transfers_do_not_overlap_on_their_track() -> None:
    for seed in range(20):
        random = Random(seed)
        graph = replace(random_graph(random), cost_unit="ns")
        schedule = Schedule.from_steps(random_valid_steps(random, graph, frees=True, moves=True))
        machine = Machine(random.choice([None, 10**9]), 10**8, full_duplex=bool(seed % 2))
        found = chrome_trace(graph, schedule, machine=machine)
        run, events = simulate(graph, schedule), found["traceEvents"]
        slices = [event for event in events if event["ph"] == "X"]
        for track in range(2, 6):
            mine = [event for event in slices if event["tid"] == track]
            assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(mine))
        memory = {name: [e["args"]["bytes"] for e in events if e["name"] == name] for name in ("memory", "host memory")}
        assert max(memory["memory"]) == run.peak
        assert max(memory["host memory"]) == (0 if run.host is None else run.host.peak)
        timing, worked = time_schedule(run, machine), ~np.isin(run.kinds, [StepKind.FREE, StepKind.DISCARD])
        late = np.array([round(1000 * event["ts"]) for event in slices]) - timing.start[worked]
        # a slice takes at least a nanosecond, and later ones of the device start so much later
        assert late.min(initial=0) >= 0
        assert late.max(initial=0) <= np.count_nonzero(timing.start[worked] == timing.end[worked])
        snapshot = memory_snapshot(graph, schedule)
        assert max(running_sums(snapshot)) == run.peak


def test_layers_by_hand(graph: ComputeGraph, schedule: Schedule) -> None:
    table = layer_table(graph, schedule)
    rows = {row.layer: row for row in table.rows}
    assert list(rows) == ["net.0", "net.1", "(no module)", "(graph inputs)"]
    first, second = rows["net.0"], rows["net.1"]
    assert (first.activations, first.saved, first.recomputed, first.cost, first.extra_cost) == (4096, 4096, 4096, 8, 3)
    assert (second.activations, second.saved, second.recomputed, second.extra_cost) == (4096, 4096, 0, 0)
    run = simulate(graph, schedule)
    assert table.total.at_peak == run.peak == sum(row.at_peak for row in table.rows)
    assert table.total.cost + table.total.extra_cost == run.cost
    assert table.total.recomputed == 4096


def test_equal_layers_share_a_row(tmp_path: Path) -> None:
    from remat.graphs.zoo.transformers import gpt

    graph = gpt(layers=12, sequence=16, width=32, heads=2, vocabulary=50)
    plain_table = layer_table(graph, Schedule.reference(graph))
    assert ("layers.0-11", 12) in [(row.layer, row.count) for row in plain_table.rows]
    every = layer_table(graph, Schedule.reference(graph), collapse=False)
    assert len(every.rows) == len(plain_table.rows) + 11
    assert every.total == plain_table.total
    assert plain_table.total.saved == plain_table.total.activations
    deep = [(row.layer, row.count) for row in layer_table(graph, Schedule.reference(graph), depth=3).rows]
    assert {("layers.0-11.attn", 12), ("layers.0-11.mlp", 12)} <= set(deep)

    # a layer with another schedule has its own row
    order = list(graph.order or ())
    order.insert(order.index("grad_layers.7.mlp.up"), "layers.7.mlp.gelu")
    table = layer_table(graph, steps(order))
    layers = [row.layer for row in table.rows if row.layer.startswith("layers")]
    assert layers == ["layers.0-6", "layers.7", "layers.8-11"]

    table.save(tmp_path / "t.md")
    table.save(tmp_path / "t.csv")
    header, *lines = (tmp_path / "t.csv").read_text().splitlines()
    assert header.startswith("layer,count,ops,activations,saved,recomputed,at_peak,cost,extra_cost")
    assert lines[-1].split(",")[6] == str(table.total.at_peak)
    assert "| layers.0-6 (7x) |" in (tmp_path / "t.md").read_text()
    with refused("format.layer-table"):
        table.save(tmp_path / "t.txt")


def test_layers_without_modules_or_backward_pass(graph: ComputeGraph) -> None:
    bare = layered(12, seed=1)
    with refused("problem.layers"):
        layer_table(bare, Schedule.reference(bare), by="module")
    table = layer_table(bare, Schedule.reference(bare))
    assert table.total.saved is None
    assert table.total.at_peak == bare.reference_peak
    assert [row.layer for row in table.rows] == [f"op {name}" for name in bare.order]
    long = layered(90, seed=1)
    parts = layer_table(long, Schedule.reference(long)).rows
    assert (parts[0].layer, parts[-1].layer) == ("ops 0 … 2", "ops 87 … 89")
    assert [row.ops for row in parts] == [3] * 30
    with refused("problem.layers"):
        layer_table(graph, Schedule.reference(graph), by="colour")  # type: ignore[arg-type]
    with refused("problem.layers"):
        layer_table(graph, Schedule.reference(graph), depth=0)
