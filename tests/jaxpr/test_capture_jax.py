"""Functions of JAX as graphs, and ``jax.checkpoint`` as schedules of them."""

from collections import Counter

import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.ad_checkpoint import checkpoint_name  # noqa: E402
from jaxpr_interpreter import run  # noqa: E402
from refusals import refused  # noqa: E402

from remat.errors import CaptureError  # noqa: E402
from remat.jax import capture, compiled_memory  # noqa: E402
from remat.jax.inlining import Part  # noqa: E402
from remat.schedule import Schedule, validate  # noqa: E402

POLICIES = jax.checkpoint_policies


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def attention(x, w):
    """Masked, so that every layer makes equal constants."""
    batch, length, width = x.shape
    heads = (x @ w["qkv"]).reshape(batch, length, 3, 2, width // 2).transpose(2, 0, 3, 1, 4)
    scores = heads[0] @ heads[1].swapaxes(2, 3)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jax.nn.softmax(scores) @ heads[2]
    return mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ w["out"]


def block(x, w):
    x = x + checkpoint_name(attention(x, w), "attention")
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def layer(d=8, *before):
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    return {name: f32(*before, *shape) for name, shape in shapes.items()}


PARAMETERS = {"embedding": f32(11, 8), "layers": [layer(), layer()]}
STACKED = {"embedding": f32(11, 8), "layers": layer(8, 2)}
TOKENS = jax.ShapeDtypeStruct((2, 4), "int32")


def gpt(p, tokens, wrap=lambda f: f):
    x = p["embedding"][tokens]
    for i, w in enumerate(p["layers"]):
        with jax.named_scope(f"layers_{i}"):
            x = wrap(block)(x, w)
    logits = jax.nn.log_softmax(x @ p["embedding"].T)
    return -jnp.take_along_axis(logits, tokens[..., None], -1).mean()


def scanned(p, tokens, wrap=lambda f: f):
    x, _ = lax.scan(lambda x, w: (wrap(block)(x, w), None), p["embedding"][tokens], p["layers"])
    return x.sum()


def checkpointed(function, policy=None):
    return lambda p, tokens: function(p, tokens, lambda f: jax.checkpoint(f, policy=policy))


@pytest.fixture(scope="module")
def base():
    return capture(gpt, PARAMETERS, TOKENS, name="gpt", views=False)


def test_small_function():
    def loss(w, x):
        _ = jnp.cos(x)  # unread
        return jnp.sum(jnp.sin(x @ w))

    captured = capture(loss, f32(4, 5), f32(3, 4))
    graph = captured.graph
    assert [(op.type, op.phase, op.cost, len(op.inputs)) for op in graph.ops] == [
        ("dot_general", "forward", 2 * 3 * 4 * 5, 0),
        ("sin", "forward", 15, 1),
        ("cos", "forward", 15, 1),
        ("reduce_sum", "loss", 15, 1),
        ("broadcast_in_dim", "backward", 15, 0),
        ("mul", "backward", 15, 2),
        ("dot_general", "backward", 2 * 5 * 3 * 4, 1),
        ("transpose", "backward", 20, 1),
    ]
    assert graph.outputs == ("reduce_sum.1", "transpose.1")
    assert graph.meta["constant_bytes"] == {"parameter": 80, "input": 48, "constant": 0}
    assert graph.constant_memory == 128
    assert graph.meta["cost_kinds"] == {"product": 240, "arithmetic": 60, "movement": 35}
    (saved,) = captured.saved
    assert (captured.keys[2][0], graph.ops[2].outputs, graph.tensors[2].size) == ("cos", (saved,), 60)
    assert "test_small_function.<locals>.loss" in graph.meta["source_lines"]["sin.1"]
    assert str(captured.equations[1].primitive) == "sin"
    assert captured.schedule == Schedule.reference(graph)
    forward = capture(loss, f32(4, 5), f32(3, 4), mode="inference")
    assert [op.type for op in forward.graph.ops] == ["dot_general", "sin", "reduce_sum"]
    assert {op.phase for op in forward.graph.ops} == {""}
    assert forward.saved == ()


@pytest.mark.parametrize(
    ("policy", "never"),
    [
        (None, ""),
        (POLICIES.dots_saveable, "dot_general"),
        (POLICIES.save_only_these_names("attention"), ""),
        (POLICIES.everything_saveable, "all"),
        pytest.param(POLICIES.nothing_saveable, "", marks=pytest.mark.slow),
        pytest.param(POLICIES.dots_with_no_batch_dims_saveable, "", marks=pytest.mark.slow),
        pytest.param(POLICIES.save_any_names_but_these("attention"), "", marks=pytest.mark.slow),
        pytest.param(POLICIES.save_anything_except_these_names("attention"), "all", marks=pytest.mark.slow),
    ],
    ids=lambda policy: getattr(policy, "__name__", str(policy)[:24]),
)
def test_policies_are_schedules_of_one_graph(base, policy, never):
    """The graph is the one without checkpoints, and saved values are those that JAX reports."""
    from jax._src.ad_checkpoint import saved_residuals

    loss = checkpointed(gpt, policy)
    captured = capture(loss, PARAMETERS, TOKENS, views=False)
    assert (len(captured.graph.ops), captured.graph.base_cost) == (len(base.graph.ops), base.graph.base_cost)
    own = validate(captured.graph, captured.schedule)
    there = validate(base.graph, captured.schedule_on(base))
    assert own.accepted
    assert there.accepted
    assert (own.peak, own.cost, own.recomputations) == (there.peak, there.cost, there.recomputations)
    again = Counter(captured.schedule.computes())
    types = {captured.graph.ops[captured.graph.op_index[name]].type for name, count in again.items() if count > 1}
    assert max(again.values()) <= (1 if policy is POLICIES.everything_saveable else 2)
    assert never not in types
    if never != "all":
        assert own.recomputations > 20
        assert own.peak < base.graph.reference_peak

    def listed(texts):  # scalars in JAX's list are numbers of the program
        return Counter(text for text in texts if "[]" not in text)

    expected = [aval.str_short() for aval, why in saved_residuals(loss, PARAMETERS, TOKENS) if "argument" not in why]
    own_saved = listed(captured.values[name].str_short() for name in captured.saved)
    # if all may be saved, JAX also lists the zeros of each jnp.where, which the backward pass does not read
    assert listed(expected) - own_saved == (Counter({"float32[2,2,4,4]": 2}) if never == "all" else Counter())
    assert not own_saved - listed(expected)


def test_offloaded_values_are_moved_and_remarked():
    policy = POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["attention"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    captured = capture(checkpointed(gpt, policy), PARAMETERS, TOKENS)
    graph = captured.graph
    assert validate(graph, captured.schedule).accepted
    moved = [op.outputs[0] for op in graph.ops if op.type == "device_put"]
    # two go to host memory and come back
    assert [graph.tensors[graph.tensor_index[name]].size for name in moved] == [0, 0, 256, 256]
    assert "moved between memories" in captured.remarks[0]


def test_schedules_of_other_functions_are_refused(base):
    other = capture(lambda p, t: gpt(p, t) * 2, PARAMETERS, TOKENS, name="twice", views=False)
    with refused("capture.other-function", culprit="twice", hide={"add_any.16": "add_any.18"}):  # JAX 0.12, 0.10
        other.schedule_on(base)


def test_layers_and_phases(base):
    graph = base.graph
    first, second = (
        sorted((op.type, op.cost, op.phase) for op in graph.ops if graph.meta["modules"].get(op.name) == f"layers.{i}")
        for i in (0, 1)
    )
    assert first == second
    assert len(first) > 60
    assert [op.phase for op in graph.ops].count("loss") == 1
    producer = {tensor: op for op in graph.ops for tensor in op.outputs}
    late = [op for op in graph.ops for tensor in op.inputs if producer[tensor].phase == "backward"]
    assert {op.phase for op in late} == {"backward"}


def test_costs_agree_with_xla(base):
    """Sum of all computation, against XLA's analysis of the unoptimised program."""
    total = jax.jit(jax.value_and_grad(gpt)).lower(PARAMETERS, TOKENS).cost_analysis()
    kinds = base.graph.meta["cost_kinds"]
    assert kinds["product"] + kinds["arithmetic"] == pytest.approx(total["flops"] + total["transcendentals"], rel=0.02)

    def loss(k, x):
        layout = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=layout)
        y = lax.conv_general_dilated(y, k, (1, 1), "VALID", rhs_dilation=(2, 1), dimension_numbers=layout)
        return jnp.sum(y * y)

    shapes = f32(3, 3, 4, 4), f32(2, 15, 15, 4)
    total = jax.jit(jax.value_and_grad(loss)).lower(*shapes).cost_analysis()
    kinds = capture(loss, *shapes).graph.meta["cost_kinds"]
    assert kinds["product"] + kinds["arithmetic"] == pytest.approx(total["flops"], rel=0.01)


# -- execution of the graph -----------------------------------------------------------------------------------------


def filled(shapes, key=0):
    """Return random arrays in place of shapes."""
    leaves, tree = jax.tree_util.tree_flatten(shapes)
    keys = jax.random.split(jax.random.key(key), len(leaves))
    made = [
        jax.random.normal(k, s.shape) * 0.3 if s.dtype == "float32" else jax.random.randint(k, s.shape, 0, 11)
        for k, s in zip(keys, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "shapes", "options"),
    [
        (gpt, PARAMETERS, {"views": False}),
        (checkpointed(gpt), PARAMETERS, {}),
        (checkpointed(scanned), STACKED, {"unroll": True}),
        (checkpointed(scanned), STACKED, {}),
    ],
)
def test_graph_computes_the_values_of_the_function(function, shapes, options):
    """Tensors are held only from compute to free, and recomputed by the schedule."""
    captured = capture(function, shapes, TOKENS, **options)
    schedules = [captured.schedule, Schedule.reference(captured.graph)]
    if function is gpt:  # the schedule of a policy runs on this graph
        schedules.append(capture(checkpointed(gpt), shapes, TOKENS, **options).schedule_on(captured))
    values = filled(shapes), filled(TOKENS)
    wanted = jax.tree_util.tree_leaves(jax.jit(jax.value_and_grad(function))(*values))
    for schedule in schedules:
        got = jax.jit(lambda *given, order=schedule: run(captured, order, *given))(*values)
        for found, expected in zip(got, wanted, strict=True):
            assert found.shape == expected.shape
            assert jnp.allclose(found, expected, rtol=1e-5, atol=1e-6)


# -- control flow --------------------------------------------------------------------------------------------------


def test_scan_as_one_op_and_unrolled():
    one = capture(scanned, STACKED, TOKENS)
    assert [op.type for op in one.graph.ops].count("scan") == 2
    assert all(op.workspace > 0 for op in one.graph.ops if op.type == "scan")
    many = capture(scanned, STACKED, TOKENS, unroll=True)
    assert "scan" not in {op.type for op in many.graph.ops}
    assert many.graph.base_cost == pytest.approx(one.graph.base_cost, rel=0.02)
    assert {"scan.0", "scan.1"} <= set(many.graph.meta["modules"].values())
    again = capture(checkpointed(scanned), STACKED, TOKENS, unroll=True)
    found = validate(many.graph, again.schedule_on(many))
    assert found.accepted
    assert found.recomputations > 60
    assert found.peak < many.graph.reference_peak
    hidden = capture(checkpointed(scanned), STACKED, TOKENS)
    assert "a scan recomputes inside of its op" in hidden.remarks[0]


def test_parts_of_one_array_differ():
    """Both iterations read different parts of one array."""

    def loss(w):
        def body(x, v):
            return jax.checkpoint(lambda x, v: jnp.sin(jnp.cos(v) * x))(x, v), None

        return lax.scan(body, jnp.ones(3), w)[0].sum()

    captured = capture(loss, f32(2, 3), unroll=True)
    assert validate(captured.graph, captured.schedule).accepted
    parts = [read for key in captured.keys for read in key[2] if isinstance(read, Part)]
    assert sorted({part.index for part in parts}) == [0, 1]
    values = jnp.arange(6.0).reshape(2, 3)
    assert all(map(jnp.allclose, run(captured, captured.schedule, values), jax.value_and_grad(loss)(values)))


def test_stacked_outputs_of_a_scan_are_joined_for_readers():
    def running(x):
        return lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(4), x, reverse=True)

    captured = capture(lambda x: jnp.sin(running(x)[1]), f32(3, 4), mode="inference", unroll=True)
    stack = captured.graph.ops[-2]
    assert (stack.type, len(stack.inputs), stack.cost) == ("stack", 3, 12)
    assert captured.graph.tensors[captured.graph.tensor_index["stack.1"]].size == 48
    kept = capture(running, f32(3, 4), mode="inference", unroll=True)
    assert "stack" not in {op.type for op in kept.graph.ops}
    assert len(kept.graph.outputs) == 4


def test_costs_of_transforms_and_sorts():
    captured = capture(lambda x: jnp.sort(jnp.abs(jnp.fft.fft(x))), f32(6, 8), mode="inference")
    costs = {op.type: op.cost for op in captured.graph.ops}
    assert (costs["fft"], costs["sort"]) == (5 * 48 * 3, 48 * 3)


def test_reshapes_are_views_by_default():
    def turned(x):
        return jnp.sin(x).reshape(2, 6)[None].squeeze() + 1

    folded = capture(turned, f32(3, 4), mode="inference")
    assert [op.type for op in folded.graph.ops if op.type != "broadcast_in_dim"] == ["sin", "add"]
    assert "reshape" in {op.type for op in capture(turned, f32(3, 4), mode="inference", views=False).graph.ops}


def test_branches_loops_and_custom_gradients():
    @jax.custom_vjp
    def own(x):
        return jnp.exp(x)

    own.defvjp(lambda x: (jnp.exp(x), x), lambda x, g: (g * x,))

    def loss(x):
        y = lax.cond(x[0] > 0, jnp.sin, lambda v: jnp.tanh(v) * 2, own(x))
        return jnp.sum(jax.nn.relu(y))

    captured = capture(loss, f32(8))
    branch = next(op for op in captured.graph.ops if op.type == "cond")
    assert branch.cost >= 16
    assert validate(captured.graph, captured.schedule).accepted
    turning = capture(lambda x: lax.while_loop(lambda s: s.sum() < 9, jnp.sin, x), f32(8), mode="inference")
    assert "a while loop is one op" in turning.remarks[0]


def test_nested_checkpoints():
    def outer(x, w):
        return jax.checkpoint(lambda y: jnp.sin(jnp.sin(y @ w)))(jnp.cos(x) @ w)

    captured = capture(lambda w, x: jnp.sum(jax.checkpoint(outer)(x, w)), f32(4, 4), f32(4, 4))
    assert validate(captured.graph, captured.schedule).accepted
    plain = capture(lambda w, x: jnp.sum(jnp.sin(jnp.sin(jnp.cos(x) @ w @ w))), f32(4, 4), f32(4, 4))
    assert captured.graph.base_cost == plain.graph.base_cost
    assert validate(plain.graph, captured.schedule_on(plain)).accepted
    assert Counter(captured.schedule.computes())["dot_general.2"] >= 2


def test_random_numbers_and_effects():
    def loss(w, key):
        jax.debug.print("{}", w[0])
        jax.debug.print("{}", w[1])
        return jnp.sum(w * jax.random.bernoulli(key, 0.5, w.shape))

    captured = capture(loss, f32(8), jax.random.key(0))
    graph = captured.graph
    assert [name.split(".")[0] for name in graph.meta["random_ops"]] == ["random_bits"]
    assert graph.ops[graph.op_index[graph.meta["random_ops"][0]]].recomputable
    first, second = graph.meta["effects"]
    prints = [op for op in graph.ops if not op.recomputable]
    assert [op.name for op in prints] == [first, second]
    assert f"{first}:done" in prints[1].inputs
    assert validate(graph, captured.schedule).accepted


def test_functions_that_cannot_be_captured():
    with refused("capture.untraceable"):
        capture(jnp.sin, f32(3), name="sin")
    with refused("capture.computes-nothing"):
        capture(lambda x: x, f32(3), mode="inference", name="same")
    with refused("capture.mode", culprit="train"):
        capture(jnp.sin, f32(3), mode="train")
    spec = jax.sharding.PartitionSpec()
    split = jax.shard_map(jnp.sin, mesh=jax.make_mesh((1,), ("i",)), in_specs=spec, out_specs=spec)
    with pytest.raises(CaptureError, match=r"shard_map cannot be captured: .* of one device \(.*test_"):
        capture(lambda x: split(x).sum(), f32(3))


def test_workspaces_of_convolutions_are_those_of_the_compiler():
    """XLA's convolutions for CPUs copy the images and cotangents from which they make the gradient of a kernel."""

    def loss(kernel, x):
        layout = ("NHWC", "HWIO", "NHWC")
        return jnp.sum(lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=layout) ** 2)

    shapes = f32(3, 3, 16, 32), f32(8, 16, 16, 16)
    graph = capture(loss, *shapes).graph
    (forward, *backward) = (op.workspace for op in graph.ops if op.type == "conv_general_dilated")
    image, kernel, cotangent = 8 * 16 * 16 * 16 * 4, 3 * 3 * 16 * 32 * 4, 8 * 8 * 8 * 32 * 4
    assert forward == 0 and backward == [image + kernel + cotangent]
    assert compiled_memory(jax.grad(loss), *shapes).temporary >= image + cotangent


def test_workspace_of_the_gradient_of_a_pooling_is_that_of_the_compiler():
    """XLA for CPUs finds the maxima again, with the coordinates of each element."""

    def pooled(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    shapes = f32(4, 16, 16, 8), f32(4, 8, 8, 8)
    graph = capture(lambda x: jnp.sum(jnp.sin(pooled(x))), shapes[0]).graph
    (workspace,) = (op.workspace for op in graph.ops if op.type == "select_and_scatter_add")
    compiled = compiled_memory(lambda x, gradient: jax.vjp(pooled, x)[1](gradient), *shapes).temporary
    assert 0 <= compiled - workspace < 100
