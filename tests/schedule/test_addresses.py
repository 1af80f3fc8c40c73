"""Buffers of schedules, addresses and their certificate, files of both."""

import itertools
from random import Random

import numpy as np
import pytest
from helpers import steps
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from schedule_oracle import random_graph, random_valid_steps

from remat.allocation import AllocationProblem, allocate
from remat.errors import FormatError
from remat.graphs import ComputeGraph, GraphBuilder
from remat.schedule import Addresses, Buffers, Memory, Schedule, check_addresses, schedule_buffers, simulate
from remat.schedule.address_files import TfliteTensors, read_addresses, write_addresses
from remat.schedule.addresses import AddressRule
from remat.schedule.buffer_tables import read_table, table_text
from remat.schedule.schedule import StepKind
from remat.schedule.simulate import with_frees
from tests.allocation.test_allocators import buffers as buffers_of
from tests.allocation.test_allocators import rows_of


def fan() -> ComputeGraph:
    """Two contributions to one buffer, an input, workspaces, constant memory, and an output of size 0."""
    b = GraphBuilder("fan", constant_memory=100)
    x = b.input("x", 7)
    for name in ("p", "q"):
        b.op(name, inputs=[x], size=4, workspace=2)
    b.tensor("sum", 5)
    for name in ("p", "q"):
        b.op(f"add {name}", inputs=[name], outputs=["sum"])
    b.op("end", inputs=["sum"], size=0)
    return b.build()


#: Steps of the fan that compute `p` twice.
TWICE = ["p", "add p", "-p", "q", "add q", "p", "end"]


def test_buffers_sum_to_the_memory_of_every_step() -> None:
    graph = fan()
    schedule = steps([*TWICE, "-p"])
    found = schedule_buffers(graph, schedule)
    assert set(found.names) == {"x", "p", "p#2", "q", "sum", "p workspace", "p workspace#2", "q workspace"}
    run = simulate(graph, schedule)
    live = [int(found.size[(found.lower <= t) & (t < found.upper)].sum()) for t in range(6)]
    assert live == run.memory[run.is_compute].tolist()
    assert found.peak() == run.peak
    one = found.names.index("sum")  # one accumulation buffer, from its first contribution to the end
    assert (found.lower[one], found.upper[one]) == (1, 6)
    with_all = schedule_buffers(graph, schedule, constant_memory=True)
    assert with_all.peak() == simulate(graph, schedule, count_constant_memory=True).peak
    bare = schedule_buffers(graph, schedule, inputs=False, workspaces=False)
    assert set(bare.names) == {"p", "p#2", "q", "sum"}


def test_fetched_copies_are_buffers_of_their_own() -> None:
    b = GraphBuilder("path")
    b.op("a", size=4)
    b.op("b", inputs=["a"], size=2)
    b.op("c", inputs=["b", "a"], size=1)
    b.op("d", inputs=["a"], size=8)
    found = schedule_buffers(b.build(), steps("a >a b -a <a c -b -c d"))
    assert found.names == ("a", "b", "a#2 fetched", "c", "d")
    assert (found.lower.tolist(), found.upper.tolist()) == ([0, 1, 2, 3, 4], [2, 4, 5, 4, 5])  # b meets the fetch
    assert found.peak() == 12


class Arena:
    """Bytes of a device: each holds the buffer that was written there last."""

    def __init__(self, graph: ComputeGraph, addresses: Addresses) -> None:
        b = addresses.buffers
        self.spans = [range(at, at + n) for at, n in zip(addresses.offset.tolist(), b.size.tolist(), strict=True)]
        self.names = [name.partition("#")[0].rstrip("'") for name in b.names]
        self.sizes = {tensor.name: tensor.size for tensor in graph.tensors}
        self.due = list(range(len(b)))  # by first step
        self.bytes: list[object] = [None] * addresses.arena
        self.live: dict[str, int] = {}
        self.faults: list[str] = []

    def write(self, name: str) -> int:
        """Write the next buffer of a name."""
        buffer = next(k for k in self.due if self.names[k] == name)
        self.due.remove(buffer)
        for byte in self.spans[buffer]:
            self.bytes[byte] = buffer
        return buffer

    def begin(self, tensor: str) -> None:
        if self.sizes[tensor] and tensor not in self.live:
            self.live[tensor] = self.write(tensor)

    def use(self, tensor: str, place: str) -> None:
        if tensor in self.live:
            buffer = self.live[tensor]
            if any(self.bytes[byte] != buffer for byte in self.spans[buffer]):
                self.faults.append(f"{place} {tensor}")


def overwritten(graph: ComputeGraph, schedule: Schedule, addresses: Addresses) -> list[str]:
    """Run a schedule on the bytes of an arena; return the uses of tensors whose bytes hold something else."""
    arena = Arena(graph, addresses)
    for name in graph.inputs:
        arena.begin(name)
    for word, name in with_frees(graph, schedule).steps():
        if word == "compute":
            op = graph.ops[graph.op_index[name]]
            for output in op.outputs:
                arena.begin(output)
            if op.workspace:
                arena.write(f"{name} workspace")
            for tensor in (*op.inputs, *op.outputs):
                arena.use(tensor, f"compute {name}:")
        elif word == "fetch":
            arena.begin(name)
        elif word in ("offload", "free"):
            arena.use(name, word)
            if word == "free":
                arena.live.pop(name, None)
    for name in arena.live:
        arena.use(name, "end")
    return arena.faults


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32).map(Random))
def test_no_live_buffers_overlap_where_schedules_move_tensors(random: Random) -> None:
    graph = random_graph(random, most_size=20)
    schedule = Schedule.from_steps(random_valid_steps(random, graph, frees=random.random() < 0.5, moves=True))
    run, found = simulate(graph, schedule), schedule_buffers(graph, schedule)
    live = [int(found.size[(found.lower <= t) & (t < found.upper)].sum()) for t in range(int(run.allocates.sum()))]
    assert live == run.memory[run.allocates].tolist()
    fetches = graph.arrays.size[run.moved[run.kinds == StepKind.FETCH]]
    assert sum(name.endswith(" fetched") for name in found.names) == np.count_nonzero(fetches)
    placed = allocate(AllocationProblem(found), "first-fit").addresses
    assert check_addresses(placed, found).accepted
    assert not overwritten(graph, schedule, placed)


def test_fetch_before_free_keeps_bytes_apart() -> None:
    b = GraphBuilder("path")
    b.op("a", size=4)
    b.op("b", inputs=["a"], size=4)
    b.op("c", inputs=["a"], size=1)
    graph, schedule = b.build(), steps("a >a b -a <a -b c")
    found = schedule_buffers(graph, schedule)
    assert found.names == ("a", "b", "a#2 fetched", "c")
    together = Addresses.in_one_memory(found, [4, 0, 0, 4])  # at the two computes after it, only one of them is live
    assert check_addresses(together).first.buffer == "a#2 fetched"
    assert overwritten(graph, schedule, together) == ["free b"]
    assert not overwritten(graph, schedule, Addresses.in_one_memory(found, [4, 0, 4, 0]))


def three() -> Buffers:
    return Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])


@pytest.mark.parametrize(
    ("offset", "alignment", "rule", "words"),
    [
        ([0, 3, 0], 1, AddressRule.OVERLAP, "step 1: buffer 'b' at [3, 5) overlaps buffer 'a' at [0, 4)"),
        ([0, 4, -1], 1, AddressRule.NEGATIVE, "buffer 'c' has offset -1, which is negative"),
        ([2, 0, 9], 1, AddressRule.CAPACITY,
         "step 2: buffer 'c' at [9, 10) ends beyond the capacity of 'memory', 6 bytes"),
        ([0, 4, 0], 8, AddressRule.ALIGNMENT, "buffer 'b' has offset 4, not a multiple of 8"),
    ],
)  # fmt: skip
def test_violations_of_addresses(offset: list[int], alignment: int, rule: AddressRule, words: str) -> None:
    found = check_addresses(Addresses.in_one_memory(three(), offset, capacity=6, alignment=alignment))
    assert not found.accepted
    assert rule in [violation.rule for violation in found.violations]
    assert words in [str(violation) for violation in found.violations]


def test_arena_and_peak_include_alignment() -> None:
    right = check_addresses(Addresses.in_one_memory(three(), [0, 8, 0], alignment=8))
    assert (right.accepted, right.arena, right.peak, right.fragmentation) == (True, 16, 16, 0)


def test_memories_are_separate() -> None:
    memories = (Memory("fast", 4), Memory("slow"))
    where = Addresses(three(), np.zeros(3, np.int64), np.array([0, 1, 0]), memories)
    found = check_addresses(where)
    assert found.accepted
    assert (found.arenas, found.peaks) == ((4, 2), (4, 2))
    assert "'fast': 4 of 4 bytes" in str(found)
    both = check_addresses(Addresses(three(), np.zeros(3, np.int64), np.array([0, 0, 1]), memories))
    assert both.first is not None
    assert both.first.rule is AddressRule.OVERLAP


def test_addresses_must_match_the_buffers() -> None:
    given_ = Buffers.of(["a", "b", "d"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 3, 1])
    found = check_addresses(Addresses.in_one_memory(given_, [0, 4, 0]), three())
    assert [v.rule for v in found.violations] == [
        AddressRule.NO_ADDRESS, AddressRule.UNKNOWN_BUFFER, AddressRule.OTHER_BUFFER,
    ]  # fmt: skip
    assert found.violations[2].message == "buffer 'b' has 3 bytes, but 2 in the schedule"


@given(rows_of(7), st.lists(st.integers(0, 12), min_size=7, max_size=7))
@settings(max_examples=40)
def test_check_agrees_with_all_pairs(rows: list[tuple[int, int, int]], at: list[int]) -> None:
    buffers = buffers_of(rows)
    found = check_addresses(Addresses.in_one_memory(buffers, at[: len(rows)]))
    right = not any(
        max(buffers.lower[i], buffers.lower[j]) < min(buffers.upper[i], buffers.upper[j])
        and max(at[i], at[j]) < min(at[i] + rows[i][2], at[j] + rows[j][2])
        for i, j in itertools.combinations(range(len(rows)), 2)
    )
    assert found.accepted == right
    assert found.arena == max(r[2] + offset for r, offset in zip(rows, at, strict=False))


def address_text(size: object = 1, offset: object = 0, memories: str = '[{"name": "m"}]') -> str:
    """Return addresses of one buffer as JSON."""
    return (
        f'{{"format": "remat-addresses", "version": 1, "memories": {memories}, "buffers": '
        f'[{{"id": "a", "lower": 0, "upper": 1, "size": {size}, "offset": {offset}}}]}}'
    )


TABLES = ["", "id,lower,size\n", "id,lower,upper,size,gaps\n", *(f"id,lower,upper,size\n{rows}" for rows in (
    "a,0,2\n", "a,0,2,3\n\na,0,2,3\n", "a,0,2,-3\n", "a,0,2,1e3\n", "a,0,2,９\n", f"a,0,2,{10**23}\n", "a,2,2,3\n",
    ",0,2,3\n", '"a,0,2,3\n', "".join(f"{k},0,1,{2**60}\n" for k in range(3)),
))]  # fmt: skip
TEXTS = [
    '{"format": "remat-addresses", "version": 1, "memories": []}', '{"format": "remat-addresses", "version": 2}',
    '{"name": "OfflineMemoryAllocation", "version": 1, "subgraphs": 1, "offsets": [-7]}',
    address_text(memories="[]"), address_text(offset="1e400"), address_text(size=99999999999999999999),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"), [*(("t.csv", text) for text in TABLES), *(("t.json", text) for text in TEXTS)]
)
def test_wrong_files_are_refused(tmp_path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with refused("format.table" if name == "t.csv" else "schedule-file.addresses", culprit=str(path)):
        read_table(path) if name == "t.csv" else read_addresses(path)


def test_tables_and_json_round_trip(tmp_path) -> None:
    where = Addresses(three(), np.array([0, 4, 8]), np.array([0, 0, 1]), (Memory("fast", 6), Memory("slow")), 4, "me")
    for name in ("x.csv", "x.json"):
        write_addresses(where, tmp_path / name)
        back = read_addresses(tmp_path / name)
        assert back.buffers.names == ("a", "b", "c")
        assert [back.offset.tolist(), back.memory.tolist()] == [[0, 4, 8], [0, 0, 1]]
    assert (back.memories, back.alignment, back.source) == (where.memories, 4, "me")
    (tmp_path / "bare.csv").write_text(table_text(three()))
    buffers, none = read_table(tmp_path / "bare.csv")
    assert none is None
    assert buffers.size.tolist() == [4, 2, 1]
    with refused("format.no-offset"):
        read_addresses(tmp_path / "bare.csv")


def test_tflite_plans_round_trip_and_limits(tmp_path) -> None:
    graph = fan()
    schedule = Schedule.reference(graph)
    buffers = schedule_buffers(graph, schedule)
    total = np.cumsum(buffers.size) - buffers.size
    positions = tuple((2 * k, 2 * k + 1) for k in range(len(graph.tensors)))  # each with a view
    tensors = TfliteTensors(2 * len(graph.tensors) + 2, positions, (2 * len(graph.tensors),))
    where = Addresses.in_one_memory(buffers, total)
    write_addresses(where, tmp_path / "plan.bin", None, tensors)
    back = read_addresses(tmp_path / "plan.bin", buffers, tensors)
    assert check_addresses(back).accepted
    assert set(back.buffers.names) == {"x", "p", "q", "sum"}
    assert back.offset.tolist() == total[buffers.tensor >= 0].tolist()
    words = np.frombuffer((tmp_path / "plan.bin").read_bytes(), dtype="<i4").tolist()
    assert words[:3] == [1, 1, tensors.count]
    assert words[3 + 2 * graph.tensor_index["end"]] == -1  # no buffer for size 0
    assert words[3:-2:2] == words[4:-2:2]  # a view has the address of its base
    assert words[-2:] == [0, -1]  # unused tensor; constant
    with pytest.raises(FormatError, match="only with its graph"):
        read_addresses(tmp_path / "plan.bin")
    (tmp_path / "cut.bin").write_bytes((tmp_path / "plan.bin").read_bytes()[:-4])
    with pytest.raises(FormatError, match="not a TFLite plan"):
        read_addresses(tmp_path / "cut.bin", buffers, tensors)
    twice = schedule_buffers(graph, steps(TWICE))
    with pytest.raises(FormatError, match="'p#2' lies at"):
        write_addresses(Addresses.in_one_memory(twice, np.cumsum(twice.size)), tmp_path / "twice.bin", None, tensors)
    assert not (tmp_path / "twice.bin").exists()
    with refused("format.no-tflite-file", culprit="plan.bin"):
        write_addresses(where, tmp_path / "plan.bin", "tflite", TfliteTensors.of(graph))
