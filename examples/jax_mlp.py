"""Train an MLP in JAX within a memory budget; one line differs from a plain training script.

Run: python examples/jax_mlp.py [--layers 8] [--width 128] [--batch 512] [--budget 40%] [--steps 3] [--time-limit 20]
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
from jax import numpy as jnp

from remat.jax import compiled_memory, rematerialize


def loss(layers: list[dict[str, Any]], x: Any, targets: Any) -> Any:
    """Return the mean squared error of a residual MLP."""
    for w in layers:
        x = x + jax.nn.gelu(x @ w["up"]) @ w["down"]
    return jnp.mean((x - targets) ** 2)


def train(options: argparse.Namespace) -> list[float]:
    """Return the losses of a few steps."""
    keys = iter(jax.random.split(jax.random.key(0), 2 * options.layers + 2))
    sizes = {"up": (options.width, 4 * options.width), "down": (4 * options.width, options.width)}
    layers = [
        {name: 0.05 * jax.random.normal(next(keys), shape) for name, shape in sizes.items()}
        for _ in range(options.layers)
    ]
    x, targets = (jax.random.normal(next(keys), (options.batch, options.width)) for _ in range(2))

    within = rematerialize(loss, (layers, x, targets), options.budget, time_limit=options.time_limit)  # the one line
    print(within.report)
    before, after = (compiled_memory(jax.value_and_grad(each), layers, x, targets).step for each in (loss, within))
    print(f"XLA assigns {after:,} bytes, {before:,} before")

    def update(layers: Any, x: Any, targets: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(within)(layers, x, targets)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, layers, gradients)

    step, losses = jax.jit(update), []
    for _ in range(options.steps):
        value, layers = step(layers, x, targets)
        losses.append(float(value))
    return losses


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"layers": 8, "width": 128, "batch": 512, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--budget", default="40%")
    parser.add_argument("--time-limit", type=float, default=20)
    return parser.parse_args(words)


if __name__ == "__main__":
    print("losses:", " ".join(f"{value:.4f}" for value in train(parse())))
