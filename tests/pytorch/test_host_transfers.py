"""Steps that move tensors to the host: values to the bit, both memories to the byte, streams ordered by events."""

import copy
import gc
import threading
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager import assert_equal, eager, record  # noqa: E402
from generators import moving  # noqa: E402
from models import SMALLEST, captured  # noqa: E402
from refusals import refused  # noqa: E402
from streams import Streams as FakeStreams  # noqa: E402
from test_executor import SEED, check_split, check_step, seeded  # noqa: E402

from remat.errors import ExecutionError, ScheduleError  # noqa: E402
from remat.graphs import ComputeGraph  # noqa: E402
from remat.schedule import Machine, Rules, Schedule, validate  # noqa: E402
from remat.schedule.machine import on_device  # noqa: E402
from remat.torch import Captured, Executor, backend, capture, rematerialize, rematerialize_blocks  # noqa: E402
from remat.torch.execute.split import handed_out, split  # noqa: E402
from remat.torch.rematerialized import planner  # noqa: E402
from remat.torch.rematerialized.autograd_function import Program  # noqa: E402
from remat.torch.transfers import host_memory, links, moves  # noqa: E402

NAMES = ("resnet", pytest.param("gpt", marks=pytest.mark.slow))


@cache
def case(name: str) -> tuple[Any, tuple[Any, ...], Captured]:
    module, args = seeded(name, **SMALLEST[name])
    return module, args, captured(name)[1]


def movable(captured: Captured, seed: int, share: float = 0.1, *, recompute: bool = True) -> Schedule:
    """Return random moves that two passes can execute: results of the forward pass stay."""
    return moving(captured.graph, seed, share, keep=handed_out(captured), recompute=recompute)


def program_of(
    module: Any, args: tuple[Any, ...], captured: Captured, schedule: Schedule
) -> tuple[Any, list[torch.Tensor]]:
    """Return a program, and its arguments for a module."""
    program, tensors = Program(split(captured, schedule)), module.state_dict(keep_vars=True)
    inputs = [captured.inputs[position] for position in program.split.forward_inputs]
    return program, [args[int(each.name)] if each.kind == "input" else tensors[each.name] for each in inputs]


def random_program(name: str, share: float = 0.1) -> tuple[Any, list[torch.Tensor]]:
    module, args, captured = case(name)
    return program_of(copy.deepcopy(module), args, captured, movable(captured, 0, share))


@pytest.mark.parametrize("name", NAMES)
def test_random_moves_keep_values_and_both_memories(name: str) -> None:
    module, args, step = case(name)
    theirs = eager(module, args, seed=SEED)
    fetches = recomputations = 0
    for seed in range(2 if name == "resnet" else 4):
        schedule = movable(step, seed, share=0.1 + 0.05 * seed)
        executor = Executor(step, schedule)
        certificate = validate(step.graph, executor.schedule)
        assert executor.host is not None
        check_step(theirs, executor, module, args)
        assert executor.host.peak == certificate.transfers.host_peak <= executor.host.size
        assert executor.host.steps == 0
        check_split(theirs, step, schedule, module, args)
        fetches += certificate.transfers.fetches
        recomputations += certificate.recomputations
    assert fetches > 40 and recomputations > 40


def test_copies_without_discards_stay_to_the_end() -> None:
    """Also if its fetch has ended: the op ran again for another output."""
    module, args, captured = case("resnet")
    op = next(op for op in captured.graph.ops if op.recomputable and len(op.outputs) > 2)
    first, second = op.outputs[:2]
    first_moves = [("offload", first), ("free", first), ("fetch", first), ("free", second), ("compute", op.name)]
    later = [("offload", second), ("free", second), ("fetch", second)]
    computes = [step for step in Schedule.reference(captured.graph).steps() if step[0] == "compute"]
    executor = Executor(captured, Schedule.from_steps([*computes, *first_moves, *later]))
    check_step(eager(module, args, seed=SEED), executor, module, args)
    assert executor.host is not None
    sizes = {tensor.name: tensor.size for tensor in captured.graph.tensors}
    assert executor.host.peak == sizes[first] + sizes[second]


def test_two_calls_before_their_backward_passes_have_host_memory_each() -> None:
    """Also with a retained graph, whose second pass reads the same copies."""
    original, args, captured = case("resnet")
    theirs, ours = copy.deepcopy(original), copy.deepcopy(original)
    program, given = program_of(ours, args, captured, forward_moves(captured.graph))
    losses = [theirs(*args) + 2 * theirs(*args), program(given)[0] + 2 * program(given)[0]]
    assert (program.host.steps, program.host.pooled) == (2, 0)
    for each in losses:
        each.backward(retain_graph=True)
    assert program.host.steps == 2
    for each in losses:
        each.backward()
    assert_equal(record(ours, losses[1]), record(theirs, losses[0]))
    assert (program.host.steps, program.host.pooled) == (0, 2 * program.host.size)
    program.host.clear()
    assert program.host.pooled == 0


def forward_moves(graph: ComputeGraph, every: int = 2) -> Schedule:
    """Move every k-th value that the backward pass reads: written after its last forward use, read before the next."""
    order = [graph.ops[position] for position in graph.arrays.order.tolist()]
    middle = [op.name for op in order].index("begin_backward")
    written = {tensor: place for place, op in enumerate(order) for tensor in op.outputs}
    uses = {tensor: [place] for tensor, place in written.items()}
    for place, op in enumerate(order):
        for tensor in op.inputs:
            uses[tensor].append(place)
    saved = [
        tensor for tensor, places in uses.items()
        if places[0] < middle < places[-1] and tensor not in on_device(graph)
    ]  # fmt: skip
    moved = set(saved[::every])
    steps: list[tuple[str, str]] = []
    for place, op in enumerate(order):
        steps += [("fetch", t) for t in moved if place == min(u for u in uses[t] if u > middle)]
        steps.append(("compute", op.name))
        for tensor in dict.fromkeys((*op.inputs, *op.outputs)):
            if tensor in moved and place == max(u for u in uses[tensor] if u < middle):
                steps += [("offload", tensor), ("free", tensor)]
            elif uses[tensor][-1] == place and tensor not in graph.outputs:
                steps.append(("free", tensor))
    return Schedule.from_steps(steps)


def test_backward_moves_refuse_a_retained_graph() -> None:
    program, given = random_program("resnet")
    loss = program(given)[0]
    with refused("execution.retained", ExecutionError):
        loss.backward(retain_graph=True)


@pytest.mark.parametrize("failing", ["forward", "backward", "between"])
def test_errors_leave_no_host_memory(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, given = random_program("resnet", share=0.15)
    program(given)[0].backward()
    assert program.host.pooled == program.host.size
    real, calls = moves.arrive, []
    count = sum(node.target is real for node in program.split.forward.graph.nodes)

    def arrive(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == (1 if failing == "forward" else count + 3):
            raise MemoryError("out of memory")
        return real(*given)

    arrive.__name__, arrive.__module__ = "arrive", moves.__name__
    for graph_module in (program.split.forward, program.split.backward):
        for node in graph_module.graph.nodes:
            if node.target is real:
                node.target = arrive
        graph_module.recompile()
    program.forward, program.backward = program.split.forward.forward, program.split.backward.forward
    if failing == "between":
        loss = program(given)[0]
        assert program.host.steps == 1
        del loss
        assert (program.host.steps, program.host.pooled) == (0, program.host.size)
        return
    with pytest.raises(MemoryError):
        program(given)[0].backward()
    gc.collect()
    assert (program.host.steps, program.host.pooled) == (0, 0)
    calls += [1] * 1000  # the next step has new memory
    program(given)[0].backward()
    assert (program.host.steps, program.host.pooled) == (0, program.host.size)


def test_threads_have_host_memory_each() -> None:
    program, given = random_program("resnet")
    found: list[Any] = []

    def run() -> None:
        for _ in range(3):
            loss = program(given)[0]
            found.append(torch.autograd.grad(loss, [each for each in given if each.requires_grad]))

    torch.manual_seed(0)
    run()
    workers = [threading.Thread(target=run) for _ in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert len(found) == 12 and program.host.steps == 0
    for gradients in found[1:]:
        assert all(map(torch.equal, gradients, found[0]))


MACHINES = [
    Machine(2_000_000, 1_000_000, compute_rate=10**9, latency=2000),
    Machine(2_000_000, 3_000_000, compute_rate=10**9, full_duplex=False),
]


@pytest.mark.parametrize("machine", MACHINES, ids=["full", "half"])
@pytest.mark.parametrize("name", NAMES)
def test_streams_wait_as_the_schedule_is_timed(name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On recording streams, no two accesses race, and the time is the certified one.

    It may be longer if an op with several outputs runs again: it waits for copies of those that are live.
    """
    module, args, step = case(name)
    graph = step.graph
    costs = {op.name: op.cost for op in graph.ops}
    for seed in range(3):
        schedule = movable(step, seed, recompute=seed > 1)
        rules = Rules(machine=machine)
        executor = Executor(step, schedule, rules)
        write, read = machine.transfer_times(graph)
        by_size: Any = {tensor.size: times for tensor, *times in zip(graph.tensors, write, read, strict=True)}
        fake = FakeStreams(lambda number, size: by_size[size][number - 1])  # noqa: B023
        made = links.Streams(torch.device("cpu"), machine.full_duplex, fake)
        if not machine.full_duplex:
            direct(made, fake, by_size)
        monkeypatch.setattr(host_memory, "links_of", lambda *_: made)  # noqa: B023

        def ran(run: Any) -> None:
            fake.compute.time += costs[run.op]  # noqa: B023

        with fake:
            executor.step(copy.deepcopy(module), *args, on_op=ran)
        assert not fake.races
        assert len(fake.all) == 2 + machine.full_duplex
        time, certified = max(each.time for each in fake.all), validate(graph, executor.schedule, rules).time
        assert time == certified or (seed > 1 and time > certified)


def direct(made: links.Streams, fake: FakeStreams, by_size: Any) -> None:
    """Let copies on the one stream take the time of their direction."""
    for way, call in enumerate(("write", "read")):
        real = getattr(made, call)

        def copied(*given: Any, real: Any = real, way: int = way) -> Any:
            fake.duration = lambda _, size: by_size[size][way]
            return real(*given)

        setattr(made, call, copied)


@pytest.mark.parametrize("lost", ["write", "read", "wait"])
def test_recording_streams_find_lost_waits(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that do not wait for computation, and computation that does not wait, race."""
    module, args, step = case("resnet")
    executor = Executor(step, movable(step, 0))
    fake = FakeStreams()
    made = links.Streams(torch.device("cpu"), True, fake)
    monkeypatch.setattr(host_memory, "links_of", lambda *_: made)
    if lost == "wait":
        made.wait = lambda event: None
    else:
        stream = made._out if lost == "write" else made._back
        stream.wait_event = lambda event: None
    with fake:
        executor.step(copy.deepcopy(module), *args)
    assert fake.races


@pytest.mark.parametrize("name", NAMES)
def test_two_passes_do_not_race(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeStreams()
    made = links.Streams(torch.device("cpu"), True, fake)
    monkeypatch.setattr(host_memory, "links_of", lambda *_: made)
    program, given = random_program(name)
    for _ in range(2):
        with fake:
            program(given)[0].backward()
    assert len(fake.accesses) > 100 and not fake.races


def test_result_of_the_forward_pass_is_not_fetched_later() -> None:
    _, _, step_ = case("resnet")
    result = max(handed_out(step_))
    steps = [*Schedule.reference(step_.graph).steps(), ("offload", result), ("fetch", result)]
    steps.insert(-1, ("free", result))
    with refused("schedule.handed-out", culprit=result):
        split(step_, Schedule.from_steps(steps))


class Wide(torch.nn.Module):
    """Blocks whose saved values are cheap to move and dear to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
        self.last = torch.nn.Linear(64, 1)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.last(x).square().mean(), x


def test_rematerialized_module_moves_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs stay on the device. The report has both peaks, the bytes moved, and the time with stalls."""
    module, x = Wide(), torch.randn(128, 64)
    captured = capture(module, (x,))
    schedule = forward_moves(captured.graph)
    model = rematerialize(module, x, "80%", schedule=schedule, offload="1MiB", machine="pcie3", verify=True)
    report, size = model.report, 128 * 64 * 4
    assert report.verification.bitwise and report.verification.measured_peak <= report.predicted_peak + 8
    assert report.verification.host_peak == report.certificate.transfers.host_peak == 2 * size
    assert report.certificate.rules.machine == Machine.parse("pcie3,host=1MiB")
    rows = dict(report.rows())
    assert rows["machine"] == "12 GB/s, 1,048,576 bytes of host memory"
    assert rows["moved"].startswith(f"{2 * size:,} bytes out in 2 offloads") and "waiting" in rows["time"]
    monkeypatch.setattr(planner, "capture", lambda *_, **__: model.captured)
    with refused("schedule.step-over-host", ScheduleError):
        rematerialize(module, x, "80%", schedule=schedule, offload="32KiB")
    again = copy.deepcopy(model)
    again(x)[0].backward()
    assert again.report is report


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("problem.no-times", {"costs": "flops"}),
        ("problem.bad-memory", {"offload": "much"}),
        ("problem.step-offload", {"engine": "inductor"}),
        ("problem.machine", {"machine": "pcie9"}),
    ],
)
def test_refused_options(kind: str, options: dict[str, Any]) -> None:
    with refused(kind):
        rematerialize(Wide(), torch.randn(4, 64), "60%", **{"offload": "1GiB", **options})


@pytest.mark.parametrize("option", ["offload", "machine", "optimizer"])
def test_blocks_and_compiled_modules_refuse_what_only_steps_do(option: str) -> None:
    with refused("problem.step-setting", culprit=f"rematerialize_blocks has no option '{option}'"):
        rematerialize_blocks(Wide(), "60%", torch.randn(4, 64), **{option: "adam"})
    with refused("problem.step-setting", culprit=f"backend has no option '{option}'"):
        backend("60%", **{option: "adam"})


def test_memory_that_cannot_be_pinned_and_devices_without_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=lambda *_: 2))
    with refused("execution.not-pinned"):
        host_memory.pin_for_cuda(0, 4096)
    with refused("execution.no-streams", culprit="mps"):
        links.links_of(torch.device("mps"))
