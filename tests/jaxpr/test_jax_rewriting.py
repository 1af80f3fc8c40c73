"""Captured functions of JAX: numerics of described equations, rewrites."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from remat.graphs.rewriting import RewriteOptions, rewrite_graph  # noqa: E402
from remat.graphs.rewriting.check import check_numerics  # noqa: E402
from remat.graphs.rewriting.draft import Draft  # noqa: E402
from remat.graphs.rewriting.numerics import run  # noqa: E402
from remat.graphs.rewriting.pieces import pieces  # noqa: E402
from remat.jax import capture  # noqa: E402

random = np.random.default_rng(0)


def array(*shape):
    return random.standard_normal(shape).astype("float32")


WEIGHTS = {
    "stem": array(3, 3, 3, 4), "branches": [array(3, 3, 4, 4) for _ in range(3)], "depthwise": array(3, 2, 1, 24),
    "last": array(2, 2, 24, 5), "fc": array(5, 6),
}  # fmt: skip


def conv(x, w, layout=("NHWC", "HWIO", "NHWC"), **options):
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    return lax.conv_general_dilated(x, w, dimension_numbers=layout, **options)


def cell(weights, x):
    x = jnp.tanh(conv(x, weights["stem"]))
    y = jnp.concatenate([conv(x, w, rhs_dilation=(n, 1)) for n, w in enumerate(weights["branches"], start=1)], -1)
    y = conv(jnp.maximum(y, 0.1), weights["depthwise"], feature_group_count=12, window_strides=(2, 1), padding="VALID")
    y = conv(-y, weights["last"])
    return jax.nn.sigmoid(y @ weights["fc"])


def test_described_equations_and_parts_match_jax() -> None:
    x = array(2, 8, 9, 3)
    captured = capture(cell, WEIGHTS, x, mode="inference")
    graph = captured.graph
    done = rewrite_graph(graph, RewriteOptions(min_parts=2))
    assert [rewrite.rule for rewrite in done.rewrites] == ["parallel-parts"] * 3 + ["partial-sums"]
    check_numerics(graph, done.graph)
    leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves((WEIGHTS, x))]
    constants = {op.name: key[2] for op, key in zip(graph.ops, captured.keys, strict=True)}

    def weights(op, entry):
        value = constants[op][entry["input"]]
        return leaves[-value - 1] if isinstance(value, int) else np.asarray(value.value)

    first = graph.ops[0]
    given = {first.outputs[0]: np.asarray(conv(x, WEIGHTS["stem"]))}
    for each in (graph, done.graph):
        found = run(Draft(each), lambda shape: shape, 0, inputs=given, weights=weights)
        assert np.allclose(found[graph.outputs[0]], cell(WEIGHTS, x), rtol=1e-4, atol=1e-5)


def test_views_transposed_filters_and_groups_are_not_rewritten() -> None:
    def traps(w, x):
        a, b = jnp.tanh(x @ w), jnp.exp(x @ w)
        flat = jnp.concatenate([a.reshape(2, 8), b.reshape(2, 8)], 1) @ jnp.ones((16, 3))
        both = jnp.concatenate([a, b], 1)
        image = both.reshape(1, 2, 2, 8)
        grouped = conv(image, jnp.ones((1, 1, 4, 6)), feature_group_count=2)
        dilated = conv(
            jnp.concatenate([image, image], -1), jnp.ones((1, 1, 16, 6)), lhs_dilation=(2, 2), padding=((0, 0),) * 2
        )
        return flat, grouped, dilated, both @ jnp.tile(a, (2, 1))

    graph = capture(traps, array(4, 4), array(4, 4), mode="inference").graph
    done = rewrite_graph(graph, RewriteOptions(min_parts=2))
    assert {piece.role for piece in pieces(done.graph).values()} == {"whole"}
    check_numerics(graph, done.graph)


def test_gradients_are_rewritten() -> None:
    graph = capture(lambda w, x: jnp.sum(cell(w, x)), WEIGHTS, array(2, 8, 9, 3)).graph
    done = rewrite_graph(graph)
    assert len(graph.meta["shapes"]) == len(graph.tensors)
    assert check_numerics(graph, done.graph).difference < 1e-9
