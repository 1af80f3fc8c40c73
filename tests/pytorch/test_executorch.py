"""Programs for ExecuTorch: their graph, and order, sharing and addresses of its memory planning."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

torch = pytest.importorskip("torch")

from programs import Chosen, Irregular, RandomProgram  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from remat.schedule import check_addresses  # noqa: E402
from remat.torch.executorch import planned_addresses, program_graph  # noqa: E402


class Cells(nn.Module):
    """Cells of branches: the wide half of each branch runs before the narrow half of any."""

    def __init__(self, seed: int, cells: int = 2) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.wide, self.narrow, channels = nn.ModuleList(), nn.ModuleList(), 4
        for _ in range(cells):
            widths = [draw.randrange(6, 16) for _ in range(3)]
            self.wide.append(nn.ModuleList(nn.Conv2d(channels, width, 1) for width in widths))
            self.narrow.append(nn.ModuleList(nn.Conv2d(width, 2, 1) for width in widths))
            channels = 2 * len(widths)

    def forward(self, x: Tensor) -> Tensor:
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            halves = [torch.relu(conv(x)) for conv in wide]
            x = torch.cat([conv(half) for conv, half in zip(narrow, halves, strict=True)], 1)
        return x.flatten(1)


class Counter(nn.Module):
    """Reads its buffer, changes it, and reads it again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.cat([x, x, x], 1)
        before = self.total * 2
        self.total.add_(x)
        return torch.cat([before, self.total, torch.relu(wide)], 1)


class Branches(nn.Module):
    """Control flow whose bodies have wide values."""

    def forward(self, x: Tensor) -> Tensor:
        def cells(x: Tensor) -> Tensor:
            wide = [torch.sin(torch.cat([x, x + k], 1)) for k in range(3)]
            return torch.stack([each.sum(1) for each in wide])

        def chain(x: Tensor) -> Tensor:
            return torch.relu(x).sum(1).expand(3, 4).clone()

        y = torch.sin(x)
        return torch.cond(x.sum() > 0, cells, chain, (y,)) + x.sum(1)


SAMPLE: tuple[Tensor, ...] = (torch.randn(1, 4, 8, 8),)


def test_graph_of_an_exported_program() -> None:
    graph = program_graph(torch.export.export(Cells(0), SAMPLE))
    assert (graph.ops[0].name, graph.ops[0].outputs) == ("inputs", ("x",))
    size = {tensor.name: tensor.size for tensor in graph.tensors}
    assert size["x"] == 4 * 64 * 4
    assert size["cat_1"] == 6 * 64 * 4
    assert graph.reference_peak > graph.structural_bound.peak
    assert program_graph(torch.export.export(nn.ReLU(), (torch.ones(3),)), alignment=64).reference_peak == 128


def test_accesses_of_a_buffer_keep_their_order() -> None:
    """With and without functionalization; the buffer is held to the end."""
    exported = torch.export.export(Counter(), (torch.ones(4, 8),))
    for program in (exported, exported.run_decompositions({})):
        graph = program_graph(program)
        assert "b_total" in graph.outputs
        assert {tensor.size for tensor in graph.tensors if tensor.name.endswith("done")} <= {0}
    graph = program_graph(exported)
    (add,) = (op for op in graph.ops if "add_" in op.type)
    assert "mul done" in add.inputs
    assert not add.recomputable
    assert "add_ done" in next(op for op in graph.ops if op.name == "cat_1").inputs


def test_sizes_must_be_fixed() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(nn.ReLU(), (torch.ones(4, 3),), dynamic_shapes=({0: batch},))
    with refused("capture.dynamic-size", culprit="input"):
        program_graph(program)
    with refused("capture.not-planned"):
        planned_addresses(torch.export.export(nn.ReLU(), (torch.ones(3),)))


def planned(module: nn.Module, args: tuple[Any, ...], planning: Any = None, **settings: Any) -> Any:
    exir = pytest.importorskip("executorch.exir")
    if planning is not None:
        settings["memory_planning_pass"] = planning
    program = torch.export.export(module.eval(), args)
    return exir.to_edge(program).to_executorch(exir.ExecutorchBackendConfig(**settings))


def sizes(manager: Any) -> tuple[int, ...]:
    return tuple(manager.executorch_program.execution_plan[0].non_const_buffer_sizes)


def outputs(manager: Any, args: tuple[Any, ...], folder: Path, runs: int = 1) -> list[bytes]:
    from executorch.runtime import Runtime

    path = folder / f"{id(manager)}.pte"
    path.write_bytes(manager.buffer)
    method = Runtime.get().load_program(path).load_method("forward")
    return [each.numpy().tobytes() for _ in range(runs) for each in method.execute(args)]


def checked(module: nn.Module, args: tuple[Any, ...], folder: Path, **arguments: Any) -> Any:
    """Return the plan of a module; its outputs must be those of ExecuTorch's plan, and its sizes the certified ones."""
    pytest.importorskip("executorch.exir")
    from remat.torch.executorch import MemoryPlanning

    planning = MemoryPlanning(time_limit=5, **arguments)
    default, found = planned(module, args), planned(module, args, planning)
    (plan,) = planning.plans
    assert (plan.before, plan.after) == (sizes(default), sizes(found))
    assert sum(plan.after) <= sum(plan.before)
    assert outputs(found, args, folder, 2) == outputs(default, args, folder, 2)
    certificate = check_addresses(planned_addresses(found.exported_program()))
    assert certificate.accepted
    assert certificate.arena <= sum(plan.after)
    return plan


@pytest.mark.slow
def test_order_sharing_and_addresses(tmp_path: Path) -> None:
    plan = checked(Cells(1), SAMPLE, tmp_path)
    assert plan.proved
    assert plan.moved
    assert plan.in_place
    ordered = checked(Cells(1), SAMPLE, tmp_path, in_place=False)
    assert sum(plan.after) <= sum(ordered.after) < sum(ordered.before)
    alone = checked(Cells(1), SAMPLE, tmp_path, in_place=False, reorder=False)
    assert alone.moved == alone.in_place == 0
    assert sum(ordered.after) < sum(alone.after)


@pytest.mark.parametrize("size", [(1,), (4, 8)])
def test_program_of_one_call(size: tuple[int, ...], tmp_path: Path) -> None:
    x = torch.randn(size)
    assert checked(nn.Tanh(), (x,), tmp_path).after == (0, -(-x.nbytes // 16) * 16)


class Split(nn.Module):
    """Calls with several results, as items of one list of allocations."""

    def forward(self, x: Tensor) -> Tensor:
        halves = [torch.cat(torch.split(torch.cat([x, x + k], 1), 2, 1)[1:], 1) for k in range(3)]
        return torch.cat([torch.relu(each).sum(1) + each.max(1).values for each in halves], 1)


@pytest.mark.slow
def test_calls_with_several_results(tmp_path: Path) -> None:
    plan = checked(Split(), SAMPLE, tmp_path)
    assert plan.moved
    assert plan.proved


@pytest.mark.slow
def test_graph_of_a_planned_program_shows_the_gap() -> None:
    found = planned(Cells(1), SAMPLE).exported_program()
    addresses = planned_addresses(found)
    assert check_addresses(addresses).accepted
    assert addresses.buffers.graph_digest == program_graph(found).digest
    assert addresses.arena > program_graph(found).reference_peak


@pytest.mark.slow
def test_changed_buffer_and_control_flow(tmp_path: Path) -> None:
    """Each in two runs of the runtime: the buffer keeps its value."""
    assert checked(Counter(), (torch.ones(4, 8),), tmp_path).after[1] > 0
    for x in (torch.ones(4, 8), -torch.ones(4, 8)):
        plan = checked(Branches(), (x,), tmp_path)
        assert sum(plan.after) < sum(plan.before)


@pytest.mark.slow
def test_alignment_and_inputs_of_the_caller(tmp_path: Path) -> None:
    plan = checked(Cells(2), SAMPLE, tmp_path, alloc_graph_input=False, alloc_graph_output=False)
    assert plan.after[1] % 16 == 0
    from remat.torch.executorch import MemoryPlanning

    found = planned(Cells(2), SAMPLE, MemoryPlanning(time_limit=5, alignment=256))
    addresses = planned_addresses(found.exported_program(), alignment=256)
    assert check_addresses(addresses).accepted
    assert addresses.arena == sizes(found)[1]


@pytest.mark.slow
def test_padding_of_delegates(tmp_path: Path) -> None:
    exir = pytest.importorskip("executorch.exir")
    partitioner = pytest.importorskip("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    from remat.torch.executorch import MemoryPlanning

    module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), Cumulated(), nn.Conv2d(8, 4, 3)).eval()
    results = []
    for planning in (None, MemoryPlanning(time_limit=5)):
        program = torch.export.export(module, SAMPLE)
        edge = exir.to_edge_transform_and_lower(program, partitioner=[partitioner.XnnpackPartitioner()])
        config = exir.ExecutorchBackendConfig(**({"memory_planning_pass": planning} if planning else {}))
        results.append(edge.to_executorch(config))
    old, new = (sizes(each)[1] for each in results)
    assert new <= old
    assert check_addresses(planned_addresses(results[1].exported_program())).arena == new - 64
    assert outputs(results[0], SAMPLE, tmp_path) == outputs(results[1], SAMPLE, tmp_path)


class Cumulated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 1)


@pytest.mark.slow
def test_banks(tmp_path: Path) -> None:
    """The slowest bank has the fewest bytes possible; ExecuTorch's planner puts more into it, or finds no plan."""
    banked = pytest.importorskip("executorch.exir.banked_memory_planning")
    from remat.torch.executorch import MemoryPlanning

    least = checked(Cells(3), SAMPLE, tmp_path).after[1]
    for fast, slow in ((least, least), (least // 2, least), (least // 2, least - least // 2 + 1024)):
        banks = [banked.Bank("fast", fast, 1), banked.Bank("slow", slow, 3, 64)]
        planning = MemoryPlanning(memory_map=banked.TargetMemoryMap(banks), time_limit=5)
        found = planned(Cells(3), SAMPLE, planning)
        used = (*sizes(found), 0, 0, 0)
        assert used[1] <= fast
        assert used[3] <= slow
        assert outputs(found, SAMPLE, tmp_path) == outputs(planned(Cells(3), SAMPLE), SAMPLE, tmp_path)
        (plan,) = planning.plans
        assert "proved least" in plan.notes[0]
        if plan.before:
            assert used[3] <= (*plan.before, 0, 0, 0)[3]
        assert (used[3] == 0) == (fast == least)
    tiny = MemoryPlanning(memory_map=banked.TargetMemoryMap([banked.Bank("fast", 64, 1)]), time_limit=1)
    with pytest.raises(banked.BankPlacementError, match="no addresses within the banks"):
        planned(Cells(3), SAMPLE, tiny)


@pytest.mark.slow
def test_worse_plans_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ExecuTorch's own plan is kept, and said to be."""
    pytest.importorskip("executorch.exir")
    from remat.torch.executorch import planning

    def apart(problem: Any, **_: Any) -> Any:
        offset = np.cumsum(problem.sizes) - problem.sizes
        return type("Found", (), {"addresses": problem.addresses(offset), "proved": False, "price": 0})

    monkeypatch.setattr(planning, "allocate", apart)
    monkeypatch.setattr(planning, "greedy", lambda *args, **kw: given(*args, **kw) if first(args) else None)
    calls: list[Any] = []

    def first(args: tuple[Any, ...]) -> bool:
        calls.append(args)
        return len(calls) == 1

    from executorch.exir.memory_planning import greedy as given

    plan = checked(Cells(4), SAMPLE, tmp_path)
    assert plan.before == plan.after
    assert plan.moved == plan.in_place == 0
    assert "ExecuTorch's own" in plan.notes[0]


def test_wrong_arguments() -> None:
    banked = pytest.importorskip("executorch.exir.banked_memory_planning")
    from remat.torch.executorch import MemoryPlanning

    with refused("problem.algorithm"):
        MemoryPlanning(memory_planning_algo=print)
    with refused("problem.shared-buffers"):
        MemoryPlanning(
            memory_map=banked.TargetMemoryMap([banked.Bank("fast", 64, 1)]), share_mutable_buffers=True
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_irregular_networks(seed: int, tmp_path: Path) -> None:
    """Proved least, and the more branches run one by one, the better."""
    plan = checked(Cells(seed, cells=3), SAMPLE, tmp_path)
    assert plan.proved
    assert sum(plan.after) < 0.6 * sum(plan.before)


#: Elementwise calls of each kind that may be written in place; the runtime must give the same bits.
ELEMENTWISE = (
    torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.neg, torch.abs, torch.cos, torch.sqrt, torch.rsqrt,
    torch.erf, torch.floor, torch.nn.functional.gelu, torch.nn.functional.leaky_relu, torch.nn.functional.hardtanh,
    lambda x: torch.clamp(x, -0.5, 0.5), lambda x: x * 2.5, lambda x: x + 1, lambda x: 1 - x, lambda x: x / 3,
    lambda x: x.pow(2), lambda x: torch.where(x > 0, x, x * 3), lambda x: torch.maximum(x, x.mean()),
    lambda x: x * x.sum(1, keepdim=True), lambda x: x - x.flip(0), lambda x: x.masked_fill(x > 0.3, 7.0),
)  # fmt: skip


class Elementwise(nn.Module):
    """Random elementwise calls, views and products on a few values."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        draw = random.Random(self.seed)
        held = [x * 0.5, torch.cumsum(x, 0)]
        for _ in range(20):
            a = draw.choice(held)
            new = draw.choice(ELEMENTWISE)(a) if draw.random() < 0.7 else a + draw.choice(held)
            if draw.random() < 0.2:
                new = torch.cumsum(new.reshape(new.shape[::-1]), 0).reshape(new.shape)
            held[draw.randrange(len(held)) if len(held) > 3 else len(held) :] = [new]
        return torch.stack([torch.nan_to_num(each) for each in held]).flatten()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_elementwise_results_in_place(seed: int, tmp_path: Path) -> None:
    plan = checked(Elementwise(seed), (torch.randn(6, 8),), tmp_path)
    assert plan.in_place


@pytest.mark.slow
def test_irregular_network_of_the_table(tmp_path: Path) -> None:
    """The same bytes with and without results in place, since none of the wide values is elementwise."""
    x = (torch.randn(Irregular.SHAPE),)
    plan = checked(Irregular(), x, tmp_path)
    assert (sum(plan.after), plan.proved) == (1_069_056, True)
    assert sum(plan.before) >= 2_064_384
    assert sum(checked(Irregular(), x, tmp_path, in_place=False).after) == 1_069_056
    assert sum(checked(Irregular(), x, tmp_path, in_place=False, reorder=False).after) == 2_064_384


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    x = torch.linspace(-1, 2, 32).reshape(4, 8)
    checked(RandomProgram(seed, ("", "cond", "map", "scan")[seed % 4]), (x,), tmp_path)


@pytest.mark.slow
def test_results_of_branches_are_not_overwritten(tmp_path: Path) -> None:
    """As they are in ExecuTorch's own plan if another call with a body follows."""
    pytest.importorskip("executorch.exir")
    from remat.torch.executorch import MemoryPlanning

    for x in (torch.linspace(-1, 2, 32).reshape(4, 8), torch.linspace(-2, 1, 32).reshape(4, 8)):
        found = outputs(planned(Chosen(), (x,), MemoryPlanning(time_limit=5)), (x,), tmp_path, 2)
        for each in found:
            np.testing.assert_allclose(np.frombuffer(each, np.float32), Chosen()(x).numpy().ravel(), atol=1e-5)
