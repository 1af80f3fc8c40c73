"""Memory that XLA assigns to rematerialized training steps of JAX, against the prediction and jax.checkpoint.

Six networks with random weights; each step is compiled for the CPU with both of XLA's schedulers, of which the table
has both figures, in MB. Gradients are compared with those of ``jax.value_and_grad``.

    python benchmarks/bench_jax_train.py --budget 40% --time-limit 60 [--networks mlp,rnn] [--compiled]

With ``--compiled`` further schedules are solved until XLA's memory, with its default scheduler, keeps the budget; their
budgets and XLA's memory follow the row.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax_steps import Get, Network, norm, resnet, transformer, unet

from remat.jax import compiled_memory, rematerialize
from remat.jax.step import Arguments
from remat.jax.verify import verify

LESS_MEMORY = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def mlp(layers: int, width: int = 256) -> Network:
    def network(get: Get, x: Any) -> Any:
        x = x.reshape(-1, width)
        for _ in range(layers):
            x = x + jax.nn.gelu(norm(get, x, (-1,)) @ get(width, 4 * width)) @ get(4 * width, width)
        return x

    return network


def rnn(width: int = 128) -> Network:
    def network(get: Get, x: Any) -> Any:
        rows = x.reshape(x.shape[0], x.shape[1], -1).swapaxes(0, 1)
        for _ in range(3):
            inner, again, gate = get(rows.shape[-1], width), get(width, width), get(rows.shape[-1], width)

            def cell(h: Any, row: Any, inner: Any = inner, again: Any = again, gate: Any = gate) -> tuple[Any, Any]:
                keep = jax.nn.sigmoid(row @ gate)
                h = keep * h + (1 - keep) * jnp.tanh(row @ inner + h @ again)
                return h, h

            rows = lax.scan(cell, jnp.zeros((x.shape[0], width)), rows)[1]
        return rows.mean(0) @ get(width, 100)

    return network


def mixture(layers: int, experts: int = 8, width: int = 128) -> Network:
    """Tokens choose two of some experts; all experts run on all tokens, as in dense formulations of MoE."""

    def network(get: Get, x: Any) -> Any:
        x = x.reshape(-1, width)
        for _ in range(layers):
            y = norm(get, x, (-1,))
            scores = jax.nn.softmax(y @ get(width, experts))
            best, index = lax.top_k(scores, 2)
            weights = jnp.sum(jax.nn.one_hot(index, experts) * best[..., None], 1)
            hidden = jax.nn.silu(jnp.einsum("tw,ewh->teh", y, get(experts, width, 2 * width)))
            x = x + jnp.einsum("teh,ehw,te->tw", hidden, get(experts, 2 * width, width), weights)
        return x

    return network


NETWORKS: dict[str, Network] = {
    "mlp": mlp(8), "transformer": transformer(6), "unet": unet(3), "resnet": resnet((2, 2, 2, 2)), "rnn": rnn(),
    "moe": mixture(4),
}  # fmt: skip


def training_loss(network: Network, x: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Return the loss of a network, and random weights."""
    shapes: list[tuple[int, ...]] = []

    def record(*shape: int) -> Any:
        shapes.append(shape)
        return jnp.zeros(shape)

    jax.eval_shape(lambda given: network(record, given), x)

    def loss(weights: list[Any], given: Any) -> Any:
        rest = iter(weights)
        return jnp.mean(network(lambda *_: next(rest), given) ** 2)

    keys = jax.random.split(jax.random.key(0), len(shapes))
    weights = [
        jax.random.normal(key, shape) * (shape[-2] ** -0.5 if len(shape) > 1 else 1)
        for key, shape in zip(keys, shapes, strict=True)
    ]
    return loss, weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--budget", default="40%")
    parser.add_argument("--time-limit", type=float, default=60)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--compiled", action="store_true")
    given = parser.parse_args()
    print("| network | ops | again | extra | without | predicted | XLA | plain | all checkpointed | difference |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in given.networks.split(","):
        x = jax.random.normal(jax.random.key(1), (given.batch, given.pixels, given.pixels, 3))
        loss, weights = training_loss(NETWORKS[name], x)
        budget = given.budget
        within = rematerialize(
            loss, (weights, x), budget, time_limit=given.time_limit, name=name, unroll=name == "rnn",
            compiled=given.compiled,
        )  # fmt: skip
        report = within.report
        steps = [jax.value_and_grad(f) for f in (within, loss, jax.checkpoint(loss))]
        measured = [
            " / ".join(
                f"{compiled_memory(step, weights, x, compiler_options=how).step / 1e6:.1f}" for how in ({}, LESS_MEMORY)
            )
            for step in steps
        ]
        found = verify(loss, within, Arguments((weights, x), {}), (0,), has_aux=False)
        print(
            f"| {name} | {report.ops} | {report.recomputations} | {report.overhead:.1f} % "
            f"| {report.reference_peak / 1e6:.1f} | {report.compiled_peak / 1e6:.1f} | {' | '.join(measured)} "
            f"| {found.difference:.1g} |",
            flush=True,
        )
        if given.compiled:
            print(f"    budget {report.budget:,}; {report.xla_peak:,} assigned; tried {report.attempts}", flush=True)


if __name__ == "__main__":
    main()
