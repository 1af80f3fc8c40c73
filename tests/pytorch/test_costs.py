"""Costs of ops: known counts, unknown ops, rooflines by hand, tables of this machine."""

import math
import re
import time
import warnings
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from models import FULL, step_nodes, traced  # noqa: E402
from refusals import refused  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import flop_registry, register_flop_formula  # noqa: E402

from remat.torch.costs import (  # noqa: E402
    DEVICES,
    CostModel,
    CostRemark,
    Device,
    Flops,
    Roofline,
    cost_model,
    flops,
    products,
)
from remat.torch.costs.calls import Call, call_of  # noqa: E402
from remat.torch.costs.products import product_flops  # noqa: E402
from remat.torch.costs.roofline import bytes_moved  # noqa: E402

aten = torch.ops.aten


Q, K = (2, 3, 16, 8), (2, 3, 24, 8)
PRODUCT = 2 * 2 * 3 * 16 * 24 * 8
IMAGE = (2, 4, 8, 8)


def gradients(*mask: bool, groups: int = 1):
    def backward(gradient, x, w):
        return aten.convolution_backward(
            gradient, x, w, [w.shape[0]], [1, 1], [1, 1], [1, 1], False, [0, 0], groups, list(mask)
        )

    return backward


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        # products, by PyTorch's counter
        (torch.mm, ((2, 3), (3, 4)), 48),
        (torch.addmm, ((4,), (2, 3), (3, 4)), 48),
        (torch.bmm, ((5, 2, 3), (5, 3, 4)), 5 * 48),
        (torch.mv, ((2, 3), (3,)), 12),
        (partial(torch.conv2d, padding=1), ((2, 3, 8, 8), (5, 3, 3, 3)), 2 * 2 * 64 * 5 * 27),
        (partial(torch.conv_transpose2d, stride=2), ((2, 3, 8, 8), (3, 5, 2, 2)), 2 * 2 * 64 * 15 * 4),
        # gradients of a convolution; with one filter per channel a quarter of the products
        (gradients(True, False, False), (IMAGE, IMAGE, (4, 4, 3, 3)), 36_864),
        (gradients(False, True, False), (IMAGE, IMAGE, (4, 4, 3, 3)), 36_864),
        (gradients(True, True, True), (IMAGE, IMAGE, (4, 4, 3, 3)), 2 * 36_864 + 512),
        (gradients(True, True, True, groups=4), (IMAGE, IMAGE, (4, 1, 3, 3)), 2 * 36_864 // 4 + 512),
        # attention on a CPU as on a GPU
        (lambda *qkv: aten._scaled_dot_product_flash_attention_for_cpu(*qkv)[0], (Q, K, K), 2 * PRODUCT),
        (
            lambda *given: aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, False),
            (Q, Q, K, K, Q, (2, 3, 16)), 5 * PRODUCT,
        ),
        # all else by elements: views are free, moves are not
        (torch.add, ((6, 4), (6, 4)), 24),
        (lambda x: x.t().reshape(24), ((6, 4),), 24),
        (lambda x: x.view(24)[:3].unsqueeze(0), ((6, 4),), 0),
        (lambda x: x.softmax(0), ((6, 4),), 5 * 24),
        (lambda x: x.sum(0), ((6, 4),), 24),
        (functional.gelu, ((6, 4),), 5 * 24),
        (partial(functional.max_pool2d, kernel_size=2), ((1, 1, 8, 8),), 64),
        (lambda x: functional.avg_pool2d(x, 3, 3), ((1, 1, 9, 9),), 81),
        (partial(functional.interpolate, scale_factor=2, mode="bilinear"), ((1, 1, 8, 8),), 8 * 256),
        (lambda x: x.sort(0)[0], ((64,),), 64 * 6),
        (lambda x: torch.cat([x, x]), ((6, 4),), 48),
        (lambda x: x.add_(1), ((6, 4),), 24),
        (torch.empty_like, ((6, 4),), 0),
        (lambda x: aten.native_dropout(x, 0.5, True), ((6, 4),), 24 * (flops.RANDOM + 2)),
        (lambda x: aten.bernoulli.p(x, 0.5), ((6, 4),), 24 * flops.RANDOM),
    ],
)  # fmt: skip
def test_flops_of_single_ops(function, shapes: tuple, expected: int) -> None:
    assert sum(Flops().costs(traced(function, *shapes))) == expected


def test_unknown_ops_cost_their_elements_with_a_remark() -> None:
    nodes = traced(lambda x: x * 2, (6, 4))
    with torch.library._scoped_library("remat_costs", "DEF") as library:
        library.define("strange(Tensor x) -> Tensor")
        library.impl("strange", torch.clone, "CompositeExplicitAutograd")
        call = Call(
            "strange_1", torch.ops.remat_costs.strange.default, call_of(nodes[0]).args[:1], {}, call_of(nodes[0]).out
        )
        assert flops.count_flops(call) is None
        assert flops.flops_or_elements(call) == 48
        with pytest.warns(CostRemark, match=r"no formula for remat_costs\.strange\.default: counted one"):
            flops.remark_unknown([call, call])
        assert Roofline("A100").nanoseconds(call) >= 5000
        register_flop_formula(call.packet)(lambda shape, **_: 7 * math.prod(shape))
        try:
            assert flops.count_flops(call) == 7 * 24, "formula of the user"
        finally:
            del flop_registry[call.packet]


#: The first two are not slow.
STEPS = [("gpt", {}), ("resnet", {}), *((name, {}) for name in ("bert", "encoder_decoder", "unet"))]
STEPS += [("gpt", {"dropout": 0.0}), ("bert", {"loss": False})]


@pytest.mark.parametrize(
    ("name", "sizes"), [pytest.param(*step, marks=[pytest.mark.slow][: k > 1]) for k, step in enumerate(STEPS)]
)
def test_ops_of_training_steps_are_known_and_not_free(name: str, sizes: dict) -> None:
    nodes = step_nodes(name, **sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CostRemark)
        for model in (Flops(), Roofline("A100"), Roofline("laptop-cpu")):
            for call, cost in zip(map(call_of, nodes), model.costs(nodes), strict=True):
                assert type(cost) is int
                assert (cost == 0) == call.free, call.name
                assert bytes_moved(call) > 0 or call.free, call.name


def test_tables_name_existing_ops_once() -> None:
    tables = (
        flops.PER_OUTPUT, flops.PER_INPUT, flops.PER_TRAFFIC, flops.NOTHING, flops.TAPS,
        flops.WINDOWS, flops.SORTS, products.OWN,
    )  # fmt: skip
    names = [name for table in tables for name in table]
    assert sorted(set(names)) == sorted(names)
    spaces = (torch.ops.aten, torch.ops.prims)
    assert not [
        name for name in names if not any(hasattr(space, part) for space in spaces for part in (name, name + "_"))
    ]


def test_traffic_counts_each_tensor_once() -> None:
    def moved(function, *shapes) -> int:
        return sum(bytes_moved(call) for call in map(call_of, traced(function, *shapes)))

    assert moved(torch.add, (6, 4), (6, 4)) == 3 * 96
    assert moved(lambda x: x * x, (6, 4)) == 2 * 96, "one tensor, read once"
    assert moved(lambda x: x.expand(6, 4) + 1, (1, 4)) == 16 + 96, "a repeated row is read once"
    assert moved(lambda x: x.add_(1), (6, 4)) == 2 * 96
    assert moved(lambda x: x.t(), (6, 4)) == 0
    chosen = lambda w: torch.nn.functional.embedding(torch.zeros(5, dtype=torch.long), w)  # noqa: E731
    assert moved(chosen, (1000, 4)) == 5 * 16 + 5 * 16 + 5 * 8 + (5 * 8), (
        "rows read, rows written, indices made and read"
    )
    norm = lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)  # noqa: E731
    assert moved(norm, (8, 2, 4, 4)) == 3 * 1024 + 2 * 8, "read twice"


def test_roofline_by_hand() -> None:
    device = Device("toy", {"fp32": 1e12, "bf16": 4e12}, vector=2e12, bandwidth=1e11, launch=100)
    assert Roofline(device).costs(traced(torch.mm, (512, 512), (512, 512))) == [round(2 * 512**3 / 1e3) + 100]
    half = traced(torch.mm, (512, 512), (512, 512), dtype=torch.bfloat16)
    assert Roofline(device).costs(half) == [round(2 * 512**3 / 4e3) + 100]
    assert Roofline(device).costs(traced(torch.relu, (1000, 1000))) == [8_000_000 // 100 + 100]
    assert Roofline(device).costs(traced(torch.relu, (1,))) == [100]
    assert Roofline(Device("none", {}, 1e12, 1e12, launch=0)).costs(traced(torch.relu, (1,))) == [1], "at least 1"
    exact, rounded = (
        Roofline("A100", tf32=tf32).costs(traced(torch.mm, (4096, 4096), (4096, 4096)))[0] for tf32 in (0, 1)
    )
    assert math.isclose(exact, 2 * 4096**3 / 19.5e3, rel_tol=0.01)
    assert math.isclose(rounded, 2 * 4096**3 / 156e3, rel_tol=0.01)


def test_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from remat.torch.costs import machine

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "EACH", 0.01)
    monkeypatch.setattr(machine, "SIDES", {"cpu": 128})
    monkeypatch.setattr(machine, "COPIED", 1 << 16)
    monkeypatch.setattr(machine, "AGREE", 1e9)  # for any load of this machine
    monkeypatch.setattr(machine, "doubt", lambda table: "")
    machine._measured.cache_clear()
    nodes = traced(torch.mm, (64, 64), (64, 64))
    real, busy = machine._measure, iter([1.0, 0.01, 1.0, 1.0])

    def measure(kind: str) -> list[float]:
        assert not isinstance(torch.empty(1), FakeTensor), "fake tensors compute nothing"
        share = next(busy)
        *rates, launch, random = real(kind)
        return [*(share * rate for rate in rates), launch / share, share * random]

    monkeypatch.setattr(machine, "_measure", measure)
    with FakeTensorMode():
        first = Roofline().costs(nodes)
    machine._measured.cache_clear()
    monkeypatch.setattr(machine, "_measure", lambda kind: pytest.fail("measured again"))
    assert Roofline("this-machine").costs(nodes) == first
    assert next(busy, None) is None  # several rounds; a slow one does not count
    assert machine.this_machine().bandwidth > 1e8
    (file,) = tmp_path.rglob("costs-*.json")
    file.write_text("{damaged")
    machine._measured.cache_clear()
    monkeypatch.setattr(machine, "_measure", lambda kind: [1e9] * 7 + [100, 1e6])
    assert Roofline().costs(nodes) == [2 * 64**3 + 100]
    assert Roofline().costs(traced(lambda x: aten.native_dropout(x, 0.5, True), (6, 4)))[0] == 24_000 + 100
    machine._measured.cache_clear()


def test_stale_and_implausible_tables_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads slower than one, differing rounds, old tables, other CPUs; each with a remark."""
    from remat.torch.costs import machine

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    figures = {**dict.fromkeys(machine.FIGURES, 2.5e10), "fp32": 5e10, "bandwidth": 4e10, "launch": 900.0}
    seen: list[dict[str, float]] = []

    def device(*rounds: dict[str, float]) -> Device:
        """Return the table of a new process; the last of the rounds repeats."""
        given = chain(rounds, repeat(rounds[-1])) if rounds else repeat(None)
        seen.clear()

        def measure(kind: str) -> list[float]:
            changes = next(given)
            assert changes is not None, "measured again"
            seen.append(changes)
            return list((figures | changes).values())

        monkeypatch.setattr(machine, "_measure", measure)
        machine._measured.cache_clear()
        return machine.this_machine()

    busy = {"bandwidth": 3.4e9, "lone bandwidth": 26.8e9}
    for rounds, why in (
        ([busy], r"copies run at 3\.4 GB/s with all threads and at 26\.8 GB/s with one"),
        ([{"launch": 1e9}], "launch is 1,000,000,000"),
        ([{"bandwidth": 4e10 * 2**i} for i in range(12)], r"rounds differ by more than 1\.5 times"),
    ):
        with pytest.warns(CostRemark, match=why):
            device(*rounds)
        (file,) = tmp_path.rglob("costs-*.json")
        file.unlink()
    with pytest.warns(CostRemark, match=r"Capture on a quiet machine, .* or name a device"):
        assert device(busy).bandwidth == 26_800_000_000  # at least that of one thread
    assert device().bandwidth == 26_800_000_000  # valid for a short time
    later = time.time() + machine.SHORT + 60
    with monkeypatch.context() as patch:
        patch.setattr(machine, "time", SimpleNamespace(time=lambda: later))
        assert device({"bandwidth": 4.5e10}).bandwidth == 4.5e10
    file.unlink()
    assert device({}, busy, {"bandwidth": 1e9}, {}).bandwidth == 4e10
    assert len(seen) == machine.ROUNDS  # two rounds agree
    assert device().bandwidth == 4e10
    (file,) = tmp_path.rglob("costs-*.json")
    file.unlink()
    assert device({}, {"bandwidth": 1e9}, busy, busy, busy, {"bandwidth": 5e10}).bandwidth == 5e10
    assert len(seen) == 6  # until two rounds agree
    file.unlink()
    device({})
    assert device().bandwidth == 4e10
    later = time.time() + machine.AGE + 60
    with monkeypatch.context() as patch:
        patch.setattr(machine, "time", SimpleNamespace(time=lambda: later))
        assert device({"bandwidth": 4.5e10}).bandwidth == 4.5e10
    assert device({"bandwidth": 4.6e10}).bandwidth == 4.6e10, "the table is dated in the future"
    for name, value in (("METHOD", 99), ("available_cpus", lambda: 99)):
        with monkeypatch.context() as patch:
            patch.setattr(machine, name, value)
            assert device({"bandwidth": 4.7e10}).bandwidth == 4.7e10
        assert device({}).bandwidth == 4e10
    machine._measured.cache_clear()


def test_page_has_the_table_of_devices() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/pytorch/costs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", page.partition("## Devices")[2], re.MULTILINE)
    shown = {name: [float(cell) if cell != "–" else None for cell in cells.split(" | ")] for name, cells in rows}
    kinds = ("fp64", "fp32", "tf32", "fp16", "bf16")
    assert shown == {
        device.name: [
            *(round(device.products[kind] / 1e12, 3) if kind in device.products else None for kind in kinds),
            device.vector / 1e12,
            device.bandwidth / 1e9,
        ]
        for device in DEVICES.values()
    }


def test_cost_models_by_name() -> None:
    assert cost_model("FLOPS").name == "flops"
    assert cost_model("roofline").name == "roofline:this-machine"
    assert cost_model("roofline:rtx 4090").name == "roofline:RTX4090"
    assert cost_model("roofline:a100-40gb:tf32").name == "roofline:A100-40GB:tf32"
    own = Flops()
    assert cost_model(own) is own
    assert isinstance(cost_model(Flops), CostModel)
    for kind, name in (
        ("measurement.unknown-cost-model", "flop"),
        ("measurement.device", "roofline:A10O"),
        ("measurement.unknown-cost-model", "flops:A100"),
    ):
        with refused(kind, culprit=name.removeprefix("roofline:")):
            cost_model(name)
    with refused("measurement.no-cost-model"):
        cost_model(3)
    with refused("measurement.rates"):
        Device("wrong", {"int7": 1.0}, 1.0, 1.0)


def test_costs_of_own_models_are_checked() -> None:
    class Own(CostModel):
        name = "own"
        unit = "flop"

        def __init__(self, found: list) -> None:
            self.found = found

        def costs(self, nodes) -> list:
            return self.found

    nodes = traced(lambda x: x.exp().log(), (3,))
    assert Own([torch.ones(2, dtype=torch.int64).sum(), True]).checked(nodes) == [2, 1]
    for found in ([1], [1, 2.5], [-1, 2]):
        with refused("measurement.own-costs", culprit="own"):
            Own(found).checked(nodes)


def test_unknown_values_are_refused() -> None:
    (node,) = traced(torch.relu, (3,))
    with refused("measurement.no-cost"):
        Flops().costs([node.args[0]])
    del node.args[0].meta["val"]
    with refused("measurement.value", culprit="arg0_1"):
        Flops().costs([node])
    symbolic = make_fx(torch.relu, tracing_mode="symbolic")(torch.ones(3)).graph
    with refused("measurement.symbolic-size"):
        Flops().costs([node for node in symbolic.nodes if node.op == "call_function"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes", "billions"),
    [
        ("resnet", {}, 777.6),
        ("unet", {"classes": 21}, 1157.1),
        ("gpt", {}, 1633.9),
        # PyTorch's counter for CPUs ignores fused attention (1518.0): 2 + 5 products of 24
        ("gpt", {"dropout": 0.0}, 1653.3),
        ("bert", {}, 2895.4),
    ],
)
def test_known_totals_of_real_sizes(name: str, sizes: dict, billions: float) -> None:
    nodes = step_nodes(name, **{**FULL[name], **sizes})
    calls = [call for call in map(call_of, nodes) if not call.free]
    assert math.isclose(sum(product_flops(call) or 0 for call in calls) / 1e9, billions, rel_tol=3e-4)
    assert 1 < sum(Flops().costs(nodes)) / 1e9 / billions < 1.02, "all other ops are a small share"
