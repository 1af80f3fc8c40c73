"""Capture of training steps: ops, tensors, storages, phases, arguments and outputs of all kinds."""

import operator
import time

import psutil
import pytest
from helpers import few

torch = pytest.importorskip("torch")

from models import FULL, MODELS, SMALLEST, captured, gpt, resnet  # noqa: E402
from torch import nn  # noqa: E402

from remat import Problem, read_graph, solve  # noqa: E402
from remat.hierarchy.identical import identical_groups  # noqa: E402
from remat.hierarchy.partition.modules import Modules  # noqa: E402
from remat.torch.capture import capture, fake_tensors  # noqa: E402
from remat.torch.captured import BEGIN_BACKWARD, Captured  # noqa: E402

KINDS = [pytest.param(name, marks=[] if name == "gpt" else pytest.mark.slow) for name in MODELS]


@pytest.fixture(scope="module", params=KINDS)
def step(request: pytest.FixtureRequest) -> tuple[nn.Module, Captured]:
    return captured(request.param)


def test_every_node_is_an_op_or_a_view_of_an_output(step: tuple[nn.Module, Captured]) -> None:
    """Compared by storage: each is counted exactly once."""
    captured = step[1]
    storage_of: dict[str, set[int]] = {}
    constants = set()
    for node in captured.module.graph.nodes:
        if node.op == "output":
            continue
        values = node.meta["val"] if isinstance(node.meta["val"], tuple | list) else (node.meta["val"],)
        assert len(captured.homes[node]) == len(values)
        for value, home in zip(values, captured.homes[node], strict=True):
            if isinstance(value, torch.Tensor):
                key = value.untyped_storage()._cdata
                (storage_of.setdefault(home, set()) if home else constants).add(key)
                if home:
                    assert captured.graph.tensors[captured.graph.tensor_index[home]].size == (
                        value.untyped_storage().nbytes()
                    )
    assert set(storage_of) == set(captured.graph.tensor_names)
    assert all(len(keys) == 1 for keys in storage_of.values())
    assert len(set().union(*storage_of.values())) == len(storage_of)
    assert not constants & set().union(*storage_of.values())
    views = [node for node in captured.module.graph.nodes if node.target is operator.getitem]
    assert views
    assert all(captured.op_of(node) is None for node in views)


def test_inputs_of_ops_match_their_nodes(step: tuple[nn.Module, Captured]) -> None:
    """Also the list of random ops."""
    module, captured = step
    for op, node in zip(captured.graph.ops, captured.nodes, strict=True):
        if node is not None:
            read = {home for each in node.all_input_nodes for home in captured.homes[each]} - {None}
            assert set(op.inputs) == read
            assert op.type == str(node.target)
            assert captured.node_of(op.name) is node
    types = {op.name: op.type for op in captured.graph.ops}
    drops = any(isinstance(part, nn.Dropout) for part in module.modules())
    assert {types[name] for name in captured.random_ops} == ({"aten.native_dropout.default"} if drops else set())


def test_backward_pass_begins_after_the_forward_pass(step: tuple[nn.Module, Captured]) -> None:
    captured = step[1]
    graph = captured.graph
    phases = [op.phase for op in graph.ops]
    place = phases.index("loss")
    begin = graph.ops[place]
    assert (begin.name, begin.cost, begin.workspace, begin.recomputable) == (BEGIN_BACKWARD, 0, 0, False)
    assert set(phases[:place]) == {"forward"}
    assert set(phases[place + 1 :]) == {"backward"}
    assert [op.name for op in graph.ops if not op.recomputable] == [BEGIN_BACKWARD]
    (loss,) = captured.results_of("output")
    assert set(captured.homes[loss.node]) <= set(begin.inputs)
    assert begin.outputs == tuple(each.node.name for each in captured.inputs_of("tangent"))
    forward = {tensor for op in graph.ops[:place] for tensor in op.outputs}
    assert any(forward.intersection(op.inputs) for op in graph.ops[place + 1 :])


def test_every_used_parameter_has_a_gradient(step: tuple[nn.Module, Captured]) -> None:
    module, captured = step
    named = dict(module.named_parameters())
    gradients = {each.name: each.node for each in captured.results_of("gradient") if each.name in named}
    used = {name for name in named if "pooler" not in name}
    assert used <= set(gradients) <= set(named)
    assert all(gradients.get(name) is None for name in set(named) - used)
    for name in used:
        assert gradients[name].meta["val"].shape == named[name].shape
        assert set(captured.homes[gradients[name]]) <= set(captured.graph.outputs)
    assert {each.name for each in captured.inputs_of("parameter")} >= used
    mutated = {each.name for each in captured.results_of("mutation")}
    assert mutated == {name for name, _ in module.named_buffers() if name.split(".")[-1] != "places"}
    assert bool(captured.graph.meta["effects"]) == bool(mutated)
    memory = captured.graph.meta["constant_bytes"]
    assert memory["param"] == sum(4 * p.numel() for p in named.values())
    assert captured.graph.constant_memory == sum(memory.values())


def test_modules_and_source_lines_in_both_passes(step: tuple[nn.Module, Captured]) -> None:
    module, captured = step
    modules, lines = captured.graph.meta["modules"], captured.graph.meta["source_lines"]
    parts = {name for name, part in module.named_modules() if isinstance(part, nn.Linear | nn.Conv2d | nn.LayerNorm)}
    for phase in ("forward", "backward"):
        ops = [op.name for op in captured.graph.ops if op.phase == phase]
        assert parts - {"pooler"} <= {modules.get(op) for op in ops}
        assert sum(op in modules for op in ops) > 0.85 * len(ops)
        assert sum(op in lines for op in ops) > 0.85 * len(ops)
    for file, line, function in lines.values():
        assert file.endswith("models.py")
        assert function
        assert isinstance(line, int)


@pytest.mark.slow
def test_real_and_fake_modules_give_equal_graphs_and_are_unchanged() -> None:
    module, args = resnet(blocks=(1,))
    before = {name: (tensor, tensor.clone()) for name, tensor in module.state_dict(keep_vars=True).items()}
    real = capture(module, args)
    for name, tensor in module.state_dict(keep_vars=True).items():
        assert tensor is before[name][0]
        assert torch.equal(tensor, before[name][1])
        assert tensor.grad is None
    with fake_tensors():
        fake = capture(*resnet(blocks=(1,)))
    assert real.graph == fake.graph


class Everything(nn.Module):
    """Arguments and outputs of all kinds; counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, factor, y, flag=None, *, z):
        self.calls.add_(1)
        y = self.linear(x) * factor + y + z["deep"]
        return {"loss": y.sum(), "y": y, "x": x, "nothing": None, "flag": flag, "view": y.view(-1)}


def everything() -> tuple[nn.Module, tuple, dict]:
    return Everything(), (torch.randn(2, 4), 3, torch.ones(4)), {"z": {"deep": torch.ones(4)}, "flag": 7}


def test_trees_of_arguments_and_outputs() -> None:
    module, args, kwargs = everything()
    captured = capture(module, args, kwargs)
    outputs = captured.results_of("output")
    made = torch.utils._pytree.tree_unflatten([each.node or each.value for each in outputs], captured.outputs_spec)
    assert list(made) == ["loss", "y", "x", "nothing", "flag", "view"]
    assert (made["nothing"], made["flag"]) == (None, 7)
    assert captured.homes[made["x"]] == (None,)
    assert captured.homes[made["view"]] == captured.homes[made["y"]]
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    for each in captured.inputs_of("input"):
        value = leaves[int(each.name)]
        assert each.size == (value.untyped_storage().nbytes() if isinstance(value, torch.Tensor) else 0)
        if isinstance(value, torch.Tensor):
            assert each.node.meta["val"].shape == value.shape
    assert [each.name for each in captured.results_of("mutation")] == ["calls"]
    assert [each.output for each in captured.inputs_of("tangent")] == [0, 1]


@pytest.mark.parametrize("loss", few(["loss", 0, lambda out: out["y"].sum()], 1))
def test_only_the_loss_has_a_tangent(loss: object) -> None:
    module, args, kwargs = everything()
    captured = capture(module, args, kwargs, loss=loss)
    (tangent,) = captured.inputs_of("tangent")
    assert (tangent.size, tangent.output) == (4, 0)
    assert len(captured.results_of("output")) == (1 if callable(loss) else 6)
    assert {each.name for each in captured.results_of("gradient")} >= {"linear.weight", "linear.bias"}
    assert {each.name for each in captured.inputs_of("parameter")} == {"linear.weight", "linear.bias"}
    assert "linear" in captured.graph.meta["modules"].values()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_routes_give_equal_graphs(name: str) -> None:
    with fake_tensors():
        module, args = MODELS[name](**SMALLEST[name])
    joint, recorded = captured(name)[1], capture(module, args, route="make_fx", costs="flops")
    assert (joint.route, recorded.route) == ("joint", "make_fx")
    a, b = joint.graph, recorded.graph
    for one, other in zip(a.ops, b.ops, strict=True):
        assert (one.type, one.phase, one.cost) == (other.type, other.phase, other.cost)
        assert [a.tensors[a.tensor_index[t]].size for t in one.outputs] == (
            [b.tensors[b.tensor_index[t]].size for t in other.outputs]
        )
        assert a.meta["modules"].get(one.name) == b.meta["modules"].get(other.name)
    assert a.reference_peak == b.reference_peak
    assert a.num_edges == b.num_edges
    assert a.constant_memory == b.constant_memory
    for fact in ("random_ops", "effects"):
        assert len(a.meta[fact]) == len(b.meta[fact])
    for kind in ("output", "gradient", "mutation"):
        found = [{each.name for each in step.results_of(kind) if each.node is not None} for step in (joint, recorded)]
        assert found[0] == found[1]


class Experts(nn.Module):
    """Four experts, each for some of the rows."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8, 16, dtype=dtype))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(x, self.weight, offs=ends).tanh()


@pytest.mark.skipif(not hasattr(nn.functional, "grouped_mm"), reason="needs grouped products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_grouped_products_of_all_types(dtype: torch.dtype) -> None:
    """PyTorch's fake kernel accepts only BF16, unlike its CPU kernel; the backward pass has two products."""
    x, ends = torch.randn(12, 8, dtype=dtype, requires_grad=True), torch.tensor([2, 6, 6, 12], dtype=torch.int32)
    step = capture(Experts(dtype), (x, ends), route="make_fx", costs="flops")
    costs = [op.cost for op in step.graph.ops if "grouped" in op.type]
    assert costs == [2 * 12 * 8 * 16] * 3


def test_inference_captures_the_forward_pass_in_evaluation_mode() -> None:
    module, args = MODELS["bert"](layers=1, loss=False)
    module.layers[0].eval()
    captured = capture(module, args, mode="inference")
    assert [part.training for part in (module, module.layers[0], module.head)] == [True, False, True]
    assert {op.phase for op in captured.graph.ops} == {"forward"}
    assert not captured.inputs_of("tangent")
    assert captured.random_ops == ()
    assert captured.mode == "inference"
    made = [each.node for each in captured.results_of("output")]
    assert list(torch.utils._pytree.tree_unflatten(made, captured.outputs_spec)) == ["logits", "pooled"]
    assert captured.graph.reference_peak > 0


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(("file", "name", "classes"), [("resnet50_train", "resnet", 1000), ("unet_train", "unet", 21)])
def test_captures_equal_published_ones(file: str, name: str, classes: int, shared) -> None:
    """Sizes, reference peaks and constants of captures in the data folder."""
    other = read_graph(shared / "data" / "graphs" / f"{file}.json")
    graph = captured(name, **{**FULL[name], "classes": classes})[1].graph
    tangents = {"tangents_1": 4}
    assert len(graph.ops) == len(other.ops) + 1
    assert sorted(t.size for t in graph.tensors) == sorted([*(t.size for t in other.tensors), *tangents.values()])
    assert graph.reference_peak == other.reference_peak
    assert graph.constant_memory == other.constant_memory - sum(tangents.values())


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_gpt_of_96_layers() -> None:
    """Under two minutes of processor time, without memory for weights; `hierarchical` schedules identical layers."""
    layers, process = 96, psutil.Process()
    before, begun = process.memory_info().rss, time.process_time()
    with fake_tensors():
        module, args = gpt(layers=layers, width=1536, heads=12, vocabulary=50257, length=1024, batch=4, dropout=0.1)
    graph = capture(module, args, costs="flops").graph
    assert time.process_time() - begun < 120
    assert process.memory_info().rss - before < 2 * 2**30 < graph.constant_memory
    assert len(graph.ops) > 2900
    problem = Problem(graph, budget="50%")
    classes = {each.representative.name: each for each in identical_groups(Modules().partition(problem))}
    assert len(classes["layers.0"]) == layers
    forward = sum(op.phase == "forward" for op in graph.ops)
    assert layers * len(classes["layers.0"].representative.forward) > 0.9 * forward
    result = solve(problem, method="hierarchical", stop=60)
    assert result.certificate is not None
    assert result.certificate.accepted
    assert result.overhead is not None
    assert result.overhead < 10
