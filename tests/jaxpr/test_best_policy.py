"""Choice of the names that ``jax.checkpoint`` saves."""

from itertools import combinations

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.ad_checkpoint import checkpoint_name  # noqa: E402
from refusals import refused  # noqa: E402

from remat.jax import best_policy, capture  # noqa: E402
from remat.jax.best_policy import jax_policy  # noqa: E402
from remat.jax.checkpoints import checkpointed  # noqa: E402
from remat.jax.moved_names import MovedNames  # noqa: E402
from remat.jax.saved_names import SavedNames  # noqa: E402
from remat.jax.step import Arguments, capture_step  # noqa: E402
from remat.problem import Problem  # noqa: E402
from remat.runtime.deadline import Deadline  # noqa: E402
from remat.schedule import validate  # noqa: E402


def attention(x, w):
    q, k, v = (x @ w[name] for name in "qkv")
    scores = checkpoint_name(jax.nn.softmax(q @ k.T), "scores")
    mixed = scores @ v
    return checkpoint_name(mixed @ w["o"], "attention")


def block(x, w):
    x = x + attention(x, w)
    hidden = checkpoint_name(x @ w["up"], "hidden")
    return x + jax.nn.gelu(hidden) @ w["down"] * hidden.mean()


def loss(layers, x, policy=None):
    for w in layers:
        x = jax.checkpoint(block, policy=policy)(x, w)
    return jnp.mean(x**2)


def scanned(layers, x):
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *layers)
    return lax.scan(lambda x, w: (jax.checkpoint(block)(x, w), None), x, stacked)[0].var()


def shape(*extents):
    return jax.ShapeDtypeStruct(extents, "float32")


LAYERS = [{**{name: shape(32, 32) for name in "qkvo"}, "up": shape(32, 128), "down": shape(128, 32)} for _ in range(3)]
ARGS = LAYERS, shape(64, 32)


def save(*names):
    return jax.checkpoint_policies.save_only_these_names(*names)


def test_policy_with_certificate_and_suggestions():
    """The certificate is that of JAX's trace with the policy."""
    found = best_policy(loss, ARGS, "65%", time_limit=1, method="greedy")
    report = found.report
    assert report.predicted_peak <= report.budget
    assert (report.regions, report.exact) == (3, True)
    assert {*report.saved, *report.recomputed} == {"scores", "attention", "hidden"}
    base = capture(lambda layers, x: loss(layers, x, None), *ARGS)
    traced = capture(lambda layers, x: loss(layers, x, found), *ARGS).schedule_on(base)
    certificate = validate(base.graph, traced)
    assert (certificate.peak, certificate.cost) == (report.predicted_peak, report.certificate.cost)
    assert repr(found) == f"save_only_these_names({', '.join(map(repr, report.saved))})"
    assert report.result.bound <= certificate.cost
    assert 0 < report.gap < 1
    first, second = report.suggestions[:2]
    product = 'checkpoint_name(jax.nn.gelu(hidden) @ w["down"], "block_value")'
    assert f"return x + {product} * hidden.mean()" in {first.code, second.code}
    assert first.file == __file__
    assert second.overhead < first.overhead < report.overhead
    assert first.peak <= second.peak <= report.budget
    assert "distance" in str(report)


def test_policy_that_moves_names_to_the_host():
    """JAX's trace with the policy has the computes and the moves of the schedule."""
    args = LAYERS[:2], ARGS[1]
    found = best_policy(loss, args, "75%", time_limit=1, method="greedy", machine="rate=unlimited,compute=1T")
    report = found.report
    assert report.certificate.accepted and report.predicted_peak <= report.budget
    assert report.exact and "all choices tried" in str(report)
    assert report.offloaded and not {*report.saved}.intersection(report.offloaded)
    trace = capture(lambda layers, x: loss(layers, x, found), *args)
    types = {op.name: op.type for op in trace.graph.ops}
    ran = [types[name] for name in trace.schedule.computes()]
    transfers = report.certificate.transfers
    assert ran.count("device_put") == transfers.offloads + transfers.fetches > 0
    ours = {op.name: op.type for op in capture(loss, *args).graph.ops}
    assert [each for each in ran if each != "device_put"] == [ours[name] for name in found.schedule.computes()]
    assert f"names_which_can_be_offloaded={[*report.offloaded]}" in repr(found)


@pytest.mark.slow
def test_moved_names_keep_gradients():
    """On a CPU, where XLA ignores memory kinds."""
    found = jax_policy(("scores",), ("hidden", "attention"))
    layers, x = jax.tree.map(lambda each: jax.random.normal(jax.random.key(1), each.shape) / 8, ARGS)
    plain, moved = (jax.jit(jax.grad(lambda w, x, p=p: loss(w, x, p)))(layers, x) for p in (None, found))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9), plain, moved)


@pytest.mark.slow
def test_least_time_of_all_choices():
    """A search reaches the least time of all choices within 10 %; without links that is the least cost of all sets."""
    program = checkpointed(loss, Arguments(ARGS, {}), label="loss")
    how = {"wrt": (0,), "has_aux": False, "unroll": False, "label": "loss"}
    plain, named = (
        capture_step(program.under(save()), Arguments(ARGS, {}), names=names, **how).captured for names in (False, True)
    )
    for machine in ("rate=20GB/s,compute=1T", "rate=20GB/s,compute=1T,host=8KiB", "rate=0GB/s,compute=1T"):
        whole = SavedNames(named, Problem(plain.graph, machine=machine))
        peaks = {MovedNames(whole).certificate(each).peak for each in MovedNames(whole)._choices()}
        assert len(peaks) > 2
        for budget in sorted(peaks):
            sets = SavedNames(named, Problem(plain.graph, budget, machine=machine))
            choices = MovedNames(sets)
            best, exact = choices.best(Deadline.after(None))
            found = choices._searched(Deadline.after(None))
            assert exact
            assert (best is None) == (found is None)
            if best is not None:
                assert choices.certificate(found).accepted
                assert choices.certificate(found).time <= 1.1 * choices.certificate(best).time
            if machine.startswith("rate=0"):
                chosen, _ = sets.best(Deadline.after(None))
                assert best is None or choices.certificate(best).time == sets.certificate(chosen).cost


@pytest.mark.slow
def test_least_cost_of_all_sets_by_traces():
    """The schedules of all eight sets are JAX's own, step by step, and the cheapest that fits is chosen."""
    program = checkpointed(loss, Arguments(ARGS, {}), label="loss")

    def traced(policy, *, names=False):
        how = {"wrt": (0,), "has_aux": False, "unroll": False, "label": "loss", "names": names}
        return capture_step(program.under(policy), Arguments(ARGS, {}), **how).captured

    plain, named = traced(save()), traced(save(), names=True)
    graph = plain.graph
    sets = SavedNames(named, Problem(graph))
    certificates = {}
    for chosen in (each for size in range(4) for each in combinations(sets.names, size)):
        schedule = traced(save(*chosen)).schedule_on(plain)
        assert sets.schedule(chosen).computes() == schedule.computes()
        certificates[frozenset(chosen)] = validate(graph, schedule)
    for budget in sorted({each.peak for each in certificates.values()}):
        least = min(each.cost for each in certificates.values() if each.peak <= budget)
        within = SavedNames(named, Problem(graph, budget))
        chosen, exact = within.best(Deadline.after(None))
        assert exact
        assert certificates[chosen].cost == least
        found = within._searched(Deadline.after(None))
        assert certificates[found].peak <= budget
        assert certificates[found].cost <= 1.1 * least


@pytest.mark.slow
def test_regions_within_scans():
    hidden = best_policy(scanned, ARGS, "90%", time_limit=1, method="greedy", unroll=True)
    assert hidden.report.regions == 1
    assert hidden.report.recomputations > 10


def test_budgets_that_no_names_keep():
    args = LAYERS[:1], ARGS[1]
    with refused("problem.step-setting", culprit="'metod'"):
        best_policy(loss, args, "90%", metod="greedy")
    with refused("problem.jax-names", culprit="'loss'"):
        best_policy(loss, args, "30%")
    with refused("problem.jax-names", culprit="and the host"):
        best_policy(loss, args, "30%", offload="1KiB", machine="pcie4,compute=1T")
    with refused("problem.no-times", culprit="'loss'"):
        best_policy(loss, args, "90%", offload="1GiB")
    with refused("problem.jax-names", culprit="checkpoint its blocks"):
        best_policy(
            lambda w, x: jnp.sin(checkpoint_name(jnp.sin(x @ w), "a")).sum(),
            (shape(4, 4), shape(4, 4)),
            "50%",
            name="bare",
        )
