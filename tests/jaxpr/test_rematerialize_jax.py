"""Losses of JAX that run by a schedule: values, gradients and XLA's memory."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from refusals import refused  # noqa: E402

from remat.errors import CaptureRemark, ProblemError, VerificationError  # noqa: E402
from remat.jax import compiled_memory, rematerialize  # noqa: E402
from remat.jax.step import Arguments  # noqa: E402
from remat.jax.verify import verify  # noqa: E402
from remat.schedule import Schedule  # noqa: E402

GREEDY = {"method": "greedy", "time_limit": 20}
LESS_MEMORY = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def normal(*shape, seed=0):
    """Return normal numbers; those of jax.random would be compiled for each shape when tests are collected."""
    return jnp.asarray(np.random.default_rng(seed).normal(scale=0.3, size=shape), dtype=np.float32)


@jax.custom_vjp
def doubled(x):
    return 2 * jnp.sin(x)


doubled.defvjp(lambda x: (2 * jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))


@jax.jit
def mixed(w, x, key):
    """A block with a nested jit, branches, a loop, random numbers, checkpoints and a derivative of its own."""
    x = x + jax.nn.gelu(x @ w)
    x = lax.cond(x[0, 0] > 0, jnp.sin, lambda v: jnp.tanh(v) * 2, x)
    x, sums = lax.scan(lambda c, row: (c * 0.9 + row * jnp.cos(c), c.sum()), x, jnp.stack([x, x * x, x]))
    x = jax.checkpoint(lambda v: doubled(v) * jnp.exp(-v * v))(x) + sums.mean()
    return x * jax.random.bernoulli(key, 0.8, x.shape)


def everything(parameters, batch, *, keys):
    x = parameters["embedding"][batch["tokens"]] * batch["scale"]
    for w, key in zip(parameters["layers"], keys, strict=True):
        x = mixed(w, x, key)
    return (x**2).mean(), {"last": x, "step": parameters["step"] + 1, "none": None}


def sample():
    parameters = {"embedding": normal(11, 8), "layers": [normal(8, 8, seed=k) for k in range(3)], "step": 3}
    return (parameters, {"tokens": jnp.arange(40) % 11, "scale": 0.5}), {"keys": jax.random.split(jax.random.key(0), 3)}


def mlp(layers, x):
    for w in layers:
        x = x + jax.nn.gelu(x @ w["up"]) @ w["down"]
    return jnp.mean(x**2)


LAYERS = [{"up": normal(32, 128, seed=k), "down": normal(128, 32, seed=9 - k)} for k in range(5)]
BATCH = normal(256, 32)


def assert_close(found, expected):
    """Compare trees; differences are relative to the largest entry of each array."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype != jax.dtypes.float0:
            assert abs(a - b).max() <= 1e-6 * abs(b).max()


@pytest.fixture(scope="module")
def within():
    with pytest.warns(CaptureRemark, match="above the budget of .*; compiled=True looks for a schedule"):
        return rematerialize(mlp, (LAYERS, BATCH), "25%", verify=True, **GREEDY)


@pytest.mark.parametrize("options", [{}, pytest.param(LESS_MEMORY, marks=pytest.mark.slow)], ids=["", "less memory"])
def test_xla_assigns_what_the_schedule_predicts(within, options):
    """Also with the scheduler that keeps programs short of memory."""
    own, plain, checkpointed = (
        compiled_memory(jax.value_and_grad(f), LAYERS, BATCH, compiler_options=options).step
        for f in (within, mlp, jax.checkpoint(mlp))
    )
    assert own <= 1.05 * within.report.compiled_peak
    assert own < 0.6 * min(plain, checkpointed)


def test_gradients_within_a_budget(within):
    report, found = within.report, within.report.verification
    assert report.predicted_peak <= report.budget < 0.26 * report.reference_peak
    assert report.recomputations > 20
    assert found.difference < 3e-6
    assert "XLA assigns" in str(report)
    assert within(LAYERS, BATCH) == mlp(LAYERS, BATCH)
    assert within.__name__ == "mlp"
    assert repr(within).startswith("Rematerialized('mlp', ")
    assert "49 of them recomputations" in within.plot().axes[0].get_title()


def test_recomputations_are_not_merged(within):
    """XLA for CPUs runs the products of all computes; it merges those of ``jax.checkpoint``."""
    schedule, graph = within.schedule, within.step.captured.graph
    runs = [graph.ops[graph.op_index[name]] for name in schedule.computes()]
    products = [op for op in runs if op.type == "dot_general"]
    again = sum(op.cost for op in products) - sum(op.cost for op in graph.ops if op.type == "dot_general")
    assert again > 0.1 * graph.base_cost
    steps = [jax.jit(jax.grad(f)).trace(LAYERS, BATCH) for f in (mlp, jax.checkpoint(mlp), within)]
    plain, checkpointed, own = (step.lower().compile().cost_analysis()["flops"] for step in steps)
    assert own >= plain + again
    assert checkpointed < plain + again / 2
    on_tpu = steps[2].lower(lowering_platforms=("tpu",)).as_text()
    assert on_tpu.count("stablehlo.dot_general") == len(products)
    assert on_tpu.count("optimization_barrier") > 3


@pytest.mark.slow
def test_compiled_steps_keep_the_budget(tmp_path):
    """XLA needs 4 % more than the first schedule may, since results have their memory from the start."""
    options = {"compiled": True, "other_shapes": "capture", **GREEDY}
    within = rematerialize(mlp, (LAYERS, BATCH), "29%", **options)
    report = within.report
    assert report.attempts[0][1] > report.budget >= report.xla_peak == report.attempts[1][1]
    assert report.xla_peak == compiled_memory(jax.value_and_grad(within), LAYERS, BATCH).step
    jax.jit(jax.grad(within))(LAYERS, BATCH[:128])
    assert within.reports[1].xla_peak <= report.budget
    within.save_schedule(tmp_path / "schedule.json")
    again = rematerialize(mlp, (LAYERS, BATCH), schedule=tmp_path / "schedule.json", **options).report
    assert (again.xla_peak, again.attempts) == (report.xla_peak, ())


@pytest.mark.slow
def test_poolings_find_their_maxima_in_the_backward_pass():
    """XLA for CPUs would otherwise write coordinates of all elements first, and hold them until the backward pass."""

    def loss(w, x):
        y = lax.reduce_window(jnp.tanh(x * w), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.mean(jnp.sin(y * w) ** 2)

    w, x = normal(8), normal(4, 16, 16, 8, seed=1)
    within = rematerialize(loss, (w, x), "100%", **GREEDY)
    plain, ours = (jax.jit(jax.value_and_grad(each)).lower(w, x).compile() for each in (loss, within))
    main = [each.as_text().partition("\nENTRY")[2] for each in (plain, ours)]
    assert ["iota" in text for text in main] == [True, False]
    assert_close(ours(w, x), plain(w, x))


@pytest.mark.slow
def test_every_kind_of_equation_and_argument():
    (args, kwargs) = sample()
    within = rematerialize(everything, args, "60%", kwargs=kwargs, has_aux=True, **GREEDY)
    assert within.report.recomputations > 5
    plain, own = (jax.value_and_grad(f, has_aux=True, allow_int=True) for f in (everything, within))
    expected = jax.jit(plain)(*args, **kwargs)
    for step in (own, jax.jit(own)):
        assert_close(step(*args, **kwargs), expected)
    scaled = jax.grad(lambda p: 1024 * within(p, *args[1:], **kwargs)[0], allow_int=True)(args[0])
    assert_close(scaled["layers"], [1024 * each for each in expected[1]["layers"]])


@pytest.mark.slow
def test_vmap_of_gradients():
    (args, kwargs) = sample()
    within = rematerialize(everything, args, "60%", kwargs=kwargs, has_aux=True, **GREEDY)
    keys = jax.random.split(jax.random.key(7), (2, 3))

    def gradients(function):
        return jax.vmap(lambda each: jax.grad(function, has_aux=True, allow_int=True)(*args, keys=each)[0]["layers"])

    assert_close(gradients(within)(keys), gradients(everything)(keys))


@pytest.mark.slow
@pytest.mark.parametrize(("unroll", "budget"), [(False, "95%"), (True, "60%")])
def test_recurrent_network(unroll, budget):
    def loss(w, x):
        def cell(h, row):
            h = jnp.tanh(row @ w["in"] + h @ w["again"])
            return h, jnp.sin(h) * h

        return lax.scan(cell, jnp.zeros((16, 8)), x)[1].var()

    args = {"in": normal(4, 8), "again": normal(8, 8)}, normal(12, 16, 4)
    within = rematerialize(loss, args, budget, unroll=unroll, verify=True, **GREEDY)
    assert within.report.recomputations > 0
    assert within.report.verification.difference < 3e-6


def test_saved_schedules_run_again(within, tmp_path):
    within.save_schedule(tmp_path / "schedule.json")
    again = rematerialize(mlp, (LAYERS, BATCH), schedule=tmp_path / "schedule.json")
    assert again.schedule == within.schedule
    assert again.report.result is None
    with refused("schedule.step-over-budget"):
        rematerialize(mlp, (LAYERS, BATCH), 900_000, schedule=within.schedule)
    kept = rematerialize(mlp, (LAYERS, BATCH), schedule=Schedule.reference(within.step.captured.graph))
    assert kept.report.recomputations == 0


@pytest.mark.slow
def test_other_shapes_are_captured_within_the_same_bytes():
    shape = jax.ShapeDtypeStruct
    args = jax.tree.map(lambda x: shape(x.shape, x.dtype), (LAYERS[:2], BATCH))
    within = rematerialize(mlp, args, "60%", other_shapes="capture", **GREEDY)
    for count in (256, 128, 256):
        assert_close(jax.grad(within)(LAYERS[:2], BATCH[:count]), jax.grad(mlp)(LAYERS[:2], BATCH[:count]))
    first, second = within.reports
    assert first.budget == second.budget
    assert second.recomputations == 0


def test_wrong_calls_are_refused(within):
    struct = jax.ShapeDtypeStruct((3,), "float32")
    with refused("execution.jax-other-call", culprit="args[1]"):
        within(LAYERS, BATCH[:3])
    with refused("execution.jax-other-call", culprit="args[0][4]['down']"):
        within(LAYERS[:4], BATCH)
    with refused("execution.jax-not-trained", culprit="args[1]"):
        jax.grad(within, argnums=1)(LAYERS, BATCH)
    with refused("execution.jax-function", culprit="original"):
        rematerialize(within, (LAYERS, BATCH), "60%")
    with refused("execution.jax-function", culprit="int"):
        rematerialize(3, (struct,), "60%")
    with refused("execution.jax-sample", culprit="list"):
        rematerialize(mlp, [LAYERS, BATCH], "60%")
    with refused("execution.jax-sample", culprit="ShapeDtypeStruct"):
        rematerialize(lambda x: jnp.sin(x).sum(), (struct,), "100%", verify=True, **GREEDY)
    with refused("execution.jax-no-array", culprit="args[1]"):
        rematerialize(lambda x, how: x.sum(), (struct, "mean"), "60%")
    with refused("execution.jax-wrt", culprit="argument 0"):
        rematerialize(lambda n, x: x.sum(), (3, struct), "60%")
    with refused("execution.jax-wrt", culprit="argument 2"):
        rematerialize(lambda x: x.sum(), (struct,), "60%", wrt=2)
    with refused("execution.jax-no-scalar", culprit="(3,)"):
        rematerialize(jnp.sin, (struct,), "60%", name="sin")
    with refused("execution.jax-no-scalar", culprit="has_aux"):
        rematerialize(lambda x: (x.sum(), x), (struct,), "60%", name="pair")
    with refused("execution.jax-no-scalar", culprit="has_aux"):
        rematerialize(lambda x: x.sum(), (struct,), "60%", has_aux=True, name="single")
    with refused("problem.step-budget"):
        rematerialize(mlp, (LAYERS, BATCH))
    with refused("problem.step-setting", culprit="sometimes"):
        rematerialize(mlp, (LAYERS, BATCH), "60%", other_shapes="sometimes")
    with refused("problem.step-setting", culprit="time_limit"):
        rematerialize(mlp, (LAYERS, BATCH), "60%", time_limits=3)
    with refused("problem.step-setting", culprit="less those of the optimizer's state"):
        rematerialize(mlp, (LAYERS, BATCH), "60%", optimizer="adam")


def test_losses_that_cannot_run_by_a_schedule_are_refused():
    def printing(x):
        jax.debug.print("{}", x[0])
        return jnp.sin(x).sum()

    def leaking(x):
        return jnp.sin(x).sum(), jnp.cos(x)

    x = normal(8)
    place = f"{__file__}:{printing.__code__.co_firstlineno + 1}"
    with refused("execution.jax-effect", culprit="debug_", hide={place: "<place>"}):
        rematerialize(printing, (x,), "60%")
    with refused("capture.untraceable", culprit="while"):
        rematerialize(lambda x: lax.while_loop(lambda s: s.sum() < 9, jnp.sin, x).sum(), (x,), "60%", name="turning")
    within = rematerialize(leaking, (x,), "100%", has_aux=True, **GREEDY)
    with refused("execution.jax-auxiliary"):
        jax.grad(lambda x: within(x)[0] + within(x)[1].sum())(x)
    with pytest.raises(
        ProblemError, match=r"budget 84,869 bytes is below the 393,216 bytes that op 'add\.1' needs; \S+"
    ):
        rematerialize(mlp, (LAYERS, BATCH), "2%", **GREEDY)


def test_verification_finds_wrong_gradients():
    def wrong(layers, x):
        return mlp(layers, x) - 0.5 * jnp.mean(layers[1]["up"]) + lax.stop_gradient(0.5 * jnp.mean(layers[1]["up"]))

    with pytest.raises(
        VerificationError, match=r"the gradient\[0\]\[1\]\['up'\] differs by 0\.\d+ of its largest entry"
    ):
        verify(mlp, wrong, Arguments((LAYERS[:2], BATCH), {}), (0,), False)


@pytest.mark.slow
def test_example_trains_as_without_a_budget(monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    example = import_module("jax_mlp")
    sizes = ["--layers", "3", "--width", "16", "--batch", "64", "--time-limit", "20", "--budget"]
    within = example.train(example.parse([*sizes, "40%"]))
    assert within == pytest.approx(example.train(example.parse([*sizes, "100%"])), rel=1e-5)
    assert within == sorted(within, reverse=True)
    assert "XLA assigns" in capsys.readouterr().out
