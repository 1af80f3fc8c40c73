"""Schedules that move tensors between device and host: times, optima of tiny graphs, host memory, certificates."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from schedule_oracle import random_graph, random_valid_steps

from remat.errors import ProblemError
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.schedule import (
    Machine,
    Rule,
    Rules,
    Schedule,
    Verdict,
    read_schedule,
    simulate,
    time_schedule,
    validate,
    write_schedule,
)
from remat.testing.exhaustive_transfers import least_time

SECOND = 10**6  # of graphs in microseconds
randoms = st.integers(0, 2**32).map(Random)


def chain(n, forward=1, backward=1):
    """Return f1..fn and bn..b1; b(i) reads f(i) and b(i+1); sizes are 1."""
    b = GraphBuilder("chain", cost_unit="us")
    for i in range(1, n + 1):
        b.op(f"f{i}", inputs=[f"f{i - 1}"] if i > 1 else [], size=1, cost=forward)
    for i in range(n, 0, -1):
        b.op(f"b{i}", inputs=[f"f{i}", *([f"b{i + 1}"] if i < n else [])], size=1, cost=backward)
    return b.build().with_outputs(["b1"])


def symmetric(time, host=None, *, full_duplex=True):
    """Return a machine that moves a byte in `time` microseconds; None: without links."""
    rate = 0 if time is None else None if time == 0 else 1
    latency = 0 if not time else (time - 1) * 1000
    return Machine(rate and SECOND, rate and SECOND, host, latency, full_duplex)


#: Least time by time of a transfer (None: no host), for n, costs of forward and backward ops, and budget.
LEAST = {
    (3, 1, 1, 3): {0: 6, 1: 7, 2: 7, 3: 7, None: 7},
    (4, 1, 1, 3): {0: 8, 1: 10, 2: 11, 3: 11, None: 11},
    (4, 1, 1, 4): {0: 8, 1: 8, 2: 9, 3: 9, None: 9},
    (4, 2, 4, 3): {1: 26, 2: 28, 3: 29, 4: 30, 6: 30, None: 30},
    (4, 2, 4, 4): {1: 24, 2: 24, 3: 24, 4: 24, 6: 26, None: 26},
}
#: Entries that are larger if the host has room for one copy only.
ONE_COPY = {(4, 1, 1, 3, 0): 9, (4, 2, 4, 3, 1): 27}


def assert_least(case, time, machine, expected):
    graph, budget = chain(*case[:3]), case[3]
    best = least_time(graph, budget, machine)
    rules = Rules(budget, "fixed", machine=machine)
    certificate = validate(graph, best.schedule, rules)
    assert (certificate.verdict, certificate.time, best.time) == (Verdict.VALID, expected, expected)
    if time is None:
        assert certificate.time == certificate.cost
    return best.schedule


@pytest.mark.parametrize("case", LEAST, ids=str)
def test_least_times_with_one_copy(case):
    for time, expected in LEAST[case].items():
        assert_least(case, time, symmetric(time, 1), ONE_COPY.get((*case, time), expected))


@pytest.mark.slow
@pytest.mark.parametrize("full_duplex", [True, False])
@pytest.mark.parametrize("case", LEAST, ids=str)
def test_least_times(case, full_duplex):
    for time, expected in LEAST[case].items():
        assert_least(case, time, symmetric(time, full_duplex=full_duplex), expected)


# -- times -------------------------------------------------------------------------------------------------------------


def longest_path_time(graph, steps, machine):
    """Return the time of a valid schedule without in-place ops: the longest path through its events."""
    write, read = (dict(zip(graph.tensor_names, some, strict=True)) for some in machine.transfer_times(graph))
    ends = []  # of each step on its stream

    def latest(words, name=None):
        found = [k for k, (word, target) in enumerate(steps[: len(ends)]) if word in words and name in (None, target)]
        return ends[found[-1]] if found else 0

    device = 0
    out, back = (("offload",), ("fetch",)) if machine.full_duplex else (("offload", "fetch"),) * 2
    for word, name in steps:
        if word == "compute":
            op = graph.ops[graph.op_index[name]]
            device = max([device, *(latest(["fetch"], t) for t in (*op.inputs, *op.outputs))]) + op.cost
            ends.append(device)
        elif word == "offload":
            ends.append(max(device, latest(out)) + write[name])
        elif word == "fetch":
            ends.append(max(device, latest(back), latest(["offload"], name)) + read[name])
        else:
            device = max(device, latest(["offload"], name), latest(["fetch"], name))
            ends.append(device)
    return max([device, *(end for end, (word, _) in zip(ends, steps, strict=True) if word == "fetch")])


def random_machine(random):
    rates = [random.choice([None, random.randint(1, 100) * SECOND]) for _ in range(2)]
    return Machine(*rates, latency=random.choice([0, 2500]), full_duplex=random.random() < 0.5)


@settings(max_examples=100, deadline=None)
@given(randoms)
def test_time_is_the_longest_path(random):
    graph = replace(random_graph(random), cost_unit="us")
    steps = random_valid_steps(random, graph, frees=True, moves=True)
    schedule, machine = Schedule.from_steps(steps), random_machine(random)
    if not schedule.has_frees:
        return
    timing = time_schedule(simulate(graph, schedule), machine)
    assert timing.time == longest_path_time(graph, steps, machine)
    assert timing.stall == timing.time - simulate(graph, schedule).cost >= 0
    assert (timing.start <= timing.end).all()
    slower = replace(machine, latency=machine.latency + 1000)
    assert time_schedule(simulate(graph, schedule), slower).time >= timing.time
    assert time_schedule(simulate(graph, schedule), replace(machine, full_duplex=False)).time >= timing.time


def test_in_place_output_waits_for_the_write_of_its_input():
    b = GraphBuilder("g", cost_unit="us")
    b.op("a", size=8, cost=1)
    b.op("b", inputs=["a"], size=8, cost=1, in_place=[("b", "a")])
    graph = b.build().with_outputs(["b"])
    words = [("compute", "a"), ("offload", "a"), ("compute", "b"), ("free", "a")]
    run = simulate(graph, Schedule.from_steps(words))
    assert run.peak == 8
    assert time_schedule(run, Machine(SECOND, SECOND)).start.tolist() == [0, 1, 9, 10]


# -- rules -------------------------------------------------------------------------------------------------------------

PATH = [("compute", "f1"), ("compute", "f2"), ("offload", "f1"), ("free", "f1"), ("compute", "b2"), ("free", "f2")]
MOVED = Schedule.from_steps([*PATH, ("fetch", "f1"), ("compute", "b1")])


def test_certificate_names_host_peak_time_and_bytes():
    found = validate(chain(2), MOVED, Rules(3, machine=Machine(SECOND, SECOND // 4, 1)))
    assert (found.verdict, found.peak, found.cost, found.time) == (Verdict.VALID, 3, 4, 9)
    moved = found.transfers
    assert (moved.offloads, moved.fetches, moved.bytes_written, moved.bytes_read) == (1, 1, 1, 1)
    assert (moved.host_peak, moved.host_peak_step, moved.stall) == (1, 2, 5)
    text = str(found)
    assert "moved         1 byte out in 1 offload, 1 byte in by 1 fetch" in text
    assert "host peak     1 byte at step 2" in text
    assert "time          9, 5 of it waiting for transfers, 125 % more than each op once" in text


def test_figures_are_unknown_without_a_machine_and_absent_without_moves():
    graph = chain(2)
    assert validate(graph, MOVED).time is None
    plain = validate(graph, Schedule.reference(graph))
    assert (plain.transfers, plain.time) == (None, plain.cost)
    assert "transfers" not in plain.as_dict()
    assert "machine" not in plain.as_dict()["rules"]
    with_machine = validate(graph, Schedule.reference(graph), Rules(machine=Machine()))
    assert (with_machine.time, with_machine.transfers.host_peak_step) == (4, None)


@pytest.mark.parametrize(
    ("machine", "rule", "step", "verdict"),
    [
        (Machine(host=0), Rule.HOST_CAPACITY, 2, Verdict.OVER_BUDGET),
        (Machine(write_rate=0), Rule.NO_LINK, 2, Verdict.INVALID),
        (Machine(read_rate=0), Rule.NO_LINK, 6, Verdict.INVALID),
    ],
)
def test_limits_of_the_machine(machine, rule, step, verdict):
    found = validate(chain(2), MOVED, Rules(machine=machine))
    assert (found.verdict, found.first.rule, found.first.step, found.first.tensor) == (verdict, rule, step, "f1")
    assert f"step {step}" in found.first.message


def test_energy_and_time_limit():
    """Transfers of one byte take 1 us, at 2.5 of the power of computing 3 units each, rounded up."""
    machine = Machine.parse("rate=1MB/s,link-power=2.5")
    free = validate(chain(2), MOVED, Rules(machine=machine))
    moves = free.transfers.offloads + free.transfers.fetches
    assert free.accepted and moves and free.energy == free.cost + 3 * moves
    assert ("energy", f"{free.energy:,}, {3 * moves} of it for transfers") in free.rows()
    assert free.as_dict()["transfers"]["energy"] == free.energy
    for percent, accepted in ((100 * free.time / free.base_cost, True), (100 * free.time / free.base_cost - 1, False)):
        limited = replace(machine, time_limit=int(10 * percent))
        assert Machine.parse(limited.settings) == limited
        found = validate(chain(2), MOVED, Rules(machine=limited))
        assert found.accepted is accepted and found.time == free.time
        if not accepted:
            assert (found.verdict, found.first.rule, found.first.step) == (Verdict.OVER_BUDGET, Rule.TIME_LIMIT, None)
    assert validate(chain(2), MOVED, Rules(machine=Machine(10**6, 10**6))).energy is None


def test_tensors_that_something_else_holds_stay():
    graph = replace(unit_chain(2), cost_unit="us", meta={"on_device": ["f0"]})
    steps = [("compute", "f0"), ("offload", "f0"), *[("compute", op) for op in ("f1", "loss", "g1", "g0")]]
    machine = Machine(10**6, 10**6)
    certificate = validate(graph, Schedule.from_steps(steps), Rules(machine=machine))
    assert (certificate.first.rule, certificate.first.step, certificate.first.tensor) == (Rule.NO_LINK, 1, "f0")
    assert [None in times for times in zip(*machine.transfer_times(graph), strict=True)].count(True) == 1


def test_fetch_over_the_budget_names_its_tensor():
    steps = [*PATH[:4], ("fetch", "f1"), ("fetch", "f1")]
    found = validate(chain(2), Schedule.from_steps(steps), Rules(1))
    assert [v.rule for v in found.violations if v.step is not None] == [Rule.BUDGET, Rule.FETCH_OF_LIVE]
    assert "on the device since step 4" in found.violations[1].message
    b = GraphBuilder("g")
    b.op("large", size=2)
    b.op("small", size=1)
    steps = [("compute", "large"), ("offload", "large"), ("free", "large"), ("compute", "small"), ("fetch", "large")]
    over = validate(b.build(), Schedule.from_steps(steps), Rules(2)).first
    assert (over.step, over.op, over.tensor) == (4, None, "large")
    assert "the fetch of tensor 'large' needs 3 bytes, 1 more" in over.message


def test_costs_that_are_no_times_need_a_rate():
    graph = replace(chain(2), cost_unit="flop")
    with refused("problem.no-times", ProblemError, culprit="chain"):
        validate(graph, MOVED, Rules(machine=Machine(1)))
    machine = Machine(10, 10, compute_rate=100)  # a transfer takes a tenth of a second, or 10 flops
    assert validate(graph, MOVED, Rules(machine=machine)).time == 24


@pytest.mark.parametrize(
    "text",
    [
        "pcie9",
        "rate=fast",
        "rate=3GB",
        "host=lots",
        "latency=5",
        "duplex=2",
        "speed=1",
        "compute=1 apple",
        "measured",
        "",
    ],
)
def test_machines_that_cannot_be_read(text):
    with refused("problem.machine", ProblemError, culprit=text.partition("=")[2] or text):
        Machine.parse(text)


def test_machines_as_text():
    machine = Machine.parse("pcie5, write=1.5GB/s,host=1e3KB,latency=2us,duplex=half,compute=312Tflop/s")
    assert machine == Machine(1_500_000_000, 50_000_000_000, 1_000_000, 2000, False, 312 * 10**12)
    assert str(machine) == (
        "1.5 GB/s to the host, 50 GB/s back, 1,000,000 bytes of host memory, latency 2,000 ns, half duplex"
    )
    with refused("problem.machine", ProblemError, culprit="-1"):
        Machine(host=-1)


@pytest.mark.parametrize("format_name", ["plain-list", "checkmate", "rockmate"])
def test_formats_with_one_memory_refuse_moves(tmp_path, format_name):
    with refused("schedule.transfers", culprit="offload 'f1'"):
        write_schedule(MOVED, tmp_path / "moved", format_name, chain(2))
    assert not (tmp_path / "moved").exists()


def test_code_without_links_refuses_moves():
    with refused("problem.no-link", ProblemError, culprit="f1"):
        time_schedule(simulate(chain(2), MOVED), Machine(write_rate=0))
    b = GraphBuilder("g", cost_unit="us")
    b.tensor("sum", 1)
    b.op("a", outputs=["sum"])
    b.op("b", outputs=["sum"])
    with refused("problem.buffers", ProblemError):
        least_time(b.build(), 1, Machine())


def test_file_with_moves_has_version_2(tmp_path):
    path = tmp_path / "moved.json"
    write_schedule(MOVED, path)
    text = path.read_text()
    assert json.loads(text)["version"] == 2
    assert read_schedule(path) == MOVED
    with refused("format.version", culprit=str(path)):
        path.write_text(text.replace('"version": 2', '"version": 1'))
        read_schedule(path)
