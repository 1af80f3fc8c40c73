"""The executor on a graph made by hand: items, views, recomputation of one item, random numbers, refusals."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from execution_checks import Held  # noqa: E402
from refusals import refused  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from remat.graphs import ComputeGraph, Op, Tensor  # noqa: E402
from remat.schedule import Rules, Schedule  # noqa: E402
from remat.torch import Captured, Executor, Input, ResultValue, track_storages  # noqa: E402
from remat.torch.execute.step import give_buffers, give_gradients  # noqa: E402

aten = torch.ops.aten


def forward(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    kept, mask = aten.native_dropout(aten.mm(x, aten.t(weight)), 0.5, True)
    return aten.mul(aten.view(kept, [-1]), aten.view(mask, [-1]))


@pytest.fixture(scope="module")
def captured() -> Captured:
    """``mm`` writes 128 bytes, ``native_dropout`` 128 and a mask of 32, ``mul`` 128: all of 32 elements."""
    module = make_fx(forward, tracing_mode="fake")(torch.ones(8, 2), torch.ones(4, 2))
    module.graph.eliminate_dead_code()
    by_target = {str(node.target): node for node in module.graph.nodes if node.op == "call_function"}
    mm, dropout, mul = (by_target[f"aten.{name}"] for name in ("mm.default", "native_dropout.default", "mul.Tensor"))
    items = (f"{dropout.name}.0", f"{dropout.name}.1")
    sizes = {mm.name: 128, items[0]: 128, items[1]: 32, mul.name: 128}
    graph = ComputeGraph(
        "by hand",
        [Tensor(name, size) for name, size in sizes.items()],
        [
            Op(mm.name, (), (mm.name,), cost=1),
            Op(dropout.name, (mm.name,), items, cost=1),
            Op(mul.name, items, (mul.name,), cost=1),
        ],
        outputs=[mul.name],
        meta={"random_ops": [dropout.name]},
    )
    homes: dict[torch.fx.Node, tuple[str | None, ...]] = {mm: (mm.name,), dropout: items, mul: (mul.name,)}
    for node in module.graph.nodes:
        if node.op == "call_function" and node not in homes:
            source = node.args[0]
            item = node.args[1] if len(homes.get(source, ())) > 1 else 0
            homes[node] = (homes[source][item] if source in homes else None,)
    weight, x = module.graph.find_nodes(op="placeholder")
    inputs = (Input(weight, "parameter", "weight", 64), Input(x, "input", "0", 32))
    return Captured(
        graph=graph,
        module=module,
        nodes=(mm, dropout, mul),
        homes=homes,
        inputs=inputs,
        results=(ResultValue(mul, "output", "0"),),
        route="make_fx",
        mode="inference",
    )


def steps_of(captured: Captured, text: str) -> Schedule:
    """``m d u`` compute, ``-m -d0 -d1 -u`` free."""
    mm, dropout, mul = captured.graph.op_names
    ops = {"m": mm, "d": dropout, "u": mul}
    tensors = {"m": mm, "d0": f"{dropout}.0", "d1": f"{dropout}.1", "u": mul}
    return Schedule.from_steps(
        ("free", tensors[word[1:]]) if word[0] == "-" else ("compute", ops[word]) for word in text.split()
    )


@pytest.mark.parametrize(
    "text",
    [
        "m d u",
        "m d -m -d0 m d u -u m d u",
        "m d -d0 -m m d -m u -d1 -u m d u",  # the mask is live while its op runs again: it is not held twice
        "m m d d u u",  # what is live already is not made again
    ],
)
def test_any_schedule_gives_the_same_values_and_holds_what_it_says(captured: Captured, text: str) -> None:
    weight, x = torch.randn(8, 2), torch.randn(4, 2)
    torch.manual_seed(3)
    expected, state = forward(weight, x), torch.get_rng_state()
    executor = Executor(captured, steps_of(captured, text))
    torch.manual_seed(3)
    with track_storages(constants=(weight, x), timeline=True) as tracker:
        held = Held(executor, tracker)
        step = executor({"weight": weight}, {}, (x,), on_op=held)
    assert torch.equal(step.outputs, expected)
    assert step.loss is None
    assert torch.equal(torch.get_rng_state(), state)
    assert held.runs >= 3 and not held.wrong
    assert tracker.peak == executor.predicted_peak == executor.certificate.peak


def test_what_the_validator_refuses_is_not_executed(captured: Captured) -> None:
    with refused("schedule.not-executed"):
        Executor(captured, steps_of(captured, "d m u"))
    with refused("schedule.not-executed"):
        Executor(captured, steps_of(captured, "m d u"), Rules(budget=200))


@pytest.mark.parametrize(
    ("kind", "culprit", "parameters", "args"),
    [
        ("execution.missing", "weight", {}, (torch.ones(4, 2),)),
        ("execution.missing", "0", {"weight": torch.ones(8, 2)}, ()),
        ("execution.unlike-capture", "0", {"weight": torch.ones(8, 2)}, (torch.ones(5, 2),)),
        ("execution.unlike-capture", "0", {"weight": torch.ones(8, 2)}, (torch.ones(4, 2).double(),)),
        ("execution.unlike-capture", "weight", {"weight": torch.ones(2, 8).t()}, (torch.ones(4, 2),)),
        ("execution.unlike-capture", "0", {"weight": torch.ones(8, 2)}, (3,)),
    ],
)
def test_what_is_given_must_be_like_what_was_captured(
    captured: Captured, kind: str, culprit: str, parameters: dict[str, torch.Tensor], args: tuple[object, ...]
) -> None:
    with refused(kind, culprit=f"{culprit!r}"):
        Executor(captured, Schedule.reference(captured.graph))(parameters, {}, args)


def test_an_op_that_changes_its_input_is_refused(captured: Captured) -> None:
    module = make_fx(lambda x: aten.relu_(aten.exp(x)))(torch.ones(2))
    node = next(node for node in module.graph.nodes if node.target is aten.relu_.default)
    exp = next(node for node in module.graph.nodes if node.target is aten.exp.default)
    x = next(iter(module.graph.nodes))
    graph = ComputeGraph(
        "g", [Tensor("a", 8), Tensor("b", 8)], [Op(exp.name, (), ("a",)), Op(node.name, ("a",), ("b",))]
    )
    wrong = dataclasses.replace(
        captured, graph=graph, module=module, nodes=(exp, node), homes={exp: ("a",), node: ("b",)},
        inputs=(Input(x, "input", "0", 8),), results=(),
    )  # fmt: skip
    with refused("execution.in-place"):
        Executor(wrong, Schedule.reference(graph))


def test_gradients_are_given_as_autograd_gives_them() -> None:
    """Added where there is one; never two with one memory; in the strides of the parameter."""
    first, second, third = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(3))
    shared, turned = torch.ones(2, 3), torch.arange(6.0).view(3, 2).t()
    targets = {"first": first, "second": second, "third": third}
    give_gradients(targets, {"first": shared, "second": shared, "third": turned})
    assert first.grad is shared  # not copied where it need not be
    assert third.grad is not None and third.grad.stride() == (3, 1) and torch.equal(third.grad, turned)
    give_gradients(targets, {"first": torch.ones(2, 3)})
    assert torch.equal(first.grad, torch.full((2, 3), 2.0))
    assert second.grad is not None and torch.equal(second.grad, torch.ones(2, 3))
    with refused("execution.gradient", culprit="fourth"):
        give_gradients(targets, {"fourth": shared})
    with refused("execution.buffer", culprit="mean"):
        give_buffers({}, {"mean": shared})
