"""Training steps of networks in JAX, as programs that XLA scheduled for CPUs; nothing is allocated or run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import networkx as nx
from jax import lax
from jax import numpy as jnp

from remat import ComputeGraph
from remat.graphs.formats.hlo import program_from_text

#: Returns a parameter of a shape.
Get = Callable[..., Any]
Network = Callable[[Get, Any], Any]


def conv(get: Get, x: Any, channels: int, size: int = 3, stride: int = 1, *, groups: int = 1) -> Any:
    kernel = get(size, size, x.shape[-1] // groups, channels)
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def norm(get: Get, x: Any, axes: tuple[int, ...] = (0, 1, 2)) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    scale = lax.rsqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
    return centred * scale * get(x.shape[-1]) + get(x.shape[-1])


def layer(get: Get, x: Any, channels: int, **how: int) -> Any:
    return jax.nn.relu(norm(get, conv(get, x, channels, **how)))


def resnet(blocks: tuple[int, ...]) -> Network:
    def network(get: Get, x: Any) -> Any:
        x = layer(get, x, 32, size=7, stride=2)
        for stage, count in enumerate(blocks):
            for k in range(count):
                channels, stride = 32 << stage, 2 if stage and not k else 1
                inner = norm(get, conv(get, layer(get, x, channels, stride=stride), channels))
                x = jax.nn.relu(inner + (x if x.shape == inner.shape else conv(get, x, channels, 1, stride)))
        return x.mean((1, 2)) @ get(x.shape[-1], 100)

    return network


def randwire(seed: int, nodes: int = 12, stages: int = 3) -> Network:
    def network(get: Get, x: Any) -> Any:
        x = layer(get, x, 16, stride=2)
        for stage in range(stages):
            wires = nx.connected_watts_strogatz_graph(nodes, 4, 0.75, seed=100 * seed + stage)
            values: list[Any] = []
            for node in range(nodes):
                above = [values[k] for k in sorted(wires[node]) if k < node]
                total = sum(above[1:], above[0]) if above else layer(get, x, 32 << stage, stride=2)
                depthwise = conv(get, jax.nn.relu(total), total.shape[-1], groups=total.shape[-1])
                values.append(norm(get, conv(get, depthwise, total.shape[-1], 1)))
            ends = [values[k] for k in range(nodes) if max(wires[k]) < k]
            x = sum(ends[1:], ends[0]) / len(ends)
        return x.mean((1, 2)) @ get(x.shape[-1], 100)

    return network


def unet(depth: int) -> Network:
    def network(get: Get, x: Any) -> Any:
        kept = []
        for k in range(depth):
            x = layer(get, layer(get, x, 16 << k), 16 << k)
            kept.append(x)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        for k in reversed(range(depth)):
            x = jnp.repeat(jnp.repeat(layer(get, x, 16 << k), 2, 1), 2, 2)
            x = layer(get, layer(get, jnp.concatenate([x, kept[k]], -1), 16 << k), 16 << k)
        return conv(get, x, 4, 1)

    return network


def dense(layers: int) -> Network:
    def network(get: Get, x: Any) -> Any:
        x = conv(get, x, 24, 7, 2)
        for block in range(3):
            for _ in range(layers):
                new = layer(get, jax.nn.relu(norm(get, x)), 48, size=1)
                x = jnp.concatenate([x, conv(get, new, 12)], -1)
            x = conv(get, x, x.shape[-1] // 2, 1, 2 if block < 2 else 1)
        return x.mean((1, 2)) @ get(x.shape[-1], 100)

    return network


def inception(cells: int) -> Network:
    def network(get: Get, x: Any) -> Any:
        x = layer(get, x, 32, stride=2)
        for _ in range(cells):
            one, three = layer(get, x, 16, size=1), layer(get, layer(get, x, 24, size=1), 32)
            five = layer(get, layer(get, layer(get, x, 8, size=1), 16), 16)
            x = jnp.concatenate([one, three, five, layer(get, x, 16, size=1)], -1)
        return x.mean((1, 2)) @ get(x.shape[-1], 100)

    return network


def mixer(layers: int) -> Network:
    def mlp(get: Get, x: Any, hidden: int) -> Any:
        return jax.nn.gelu(x @ get(x.shape[-1], hidden)) @ get(hidden, x.shape[-1])

    def network(get: Get, x: Any) -> Any:
        x = conv(get, x, 128, 8, 8)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        for _ in range(layers):
            x = x + mlp(get, norm(get, x, (-1,)).swapaxes(1, 2), 64).swapaxes(1, 2)
            x = x + mlp(get, norm(get, x, (-1,)), 512)
        return x.mean(1) @ get(x.shape[-1], 100)

    return network


def transformer(layers: int, width: int = 128, heads: int = 4) -> Network:
    def network(get: Get, x: Any) -> Any:
        x = conv(get, x, width, 8, 8)
        x = x.reshape(x.shape[0], -1, width)
        for _ in range(layers):
            y = norm(get, x, (-1,))
            q, k, v = (
                (y @ get(width, width)).reshape(*y.shape[:2], heads, width // heads).swapaxes(1, 2) for _ in range(3)
            )
            weights = jax.nn.softmax(q @ k.swapaxes(2, 3) / (width // heads) ** 0.5)
            x = x + (weights @ v).swapaxes(1, 2).reshape(y.shape) @ get(width, width)
            x = x + jax.nn.gelu(norm(get, x, (-1,)) @ get(width, 4 * width)) @ get(4 * width, width)
        return x.mean(1) @ get(width, 100)

    return network


NETWORKS: dict[str, Network] = {
    "resnet18": resnet((2, 2, 2, 2)), "resnet34": resnet((3, 4, 6, 3)), "unet3": unet(3), "unet4": unet(4),
    "dense4": dense(4), "dense8": dense(8), "inception4": inception(4), "inception8": inception(8), "mixer8": mixer(8),
    "vit4": transformer(4), "vit8": transformer(8), **{f"randwire{seed}": randwire(seed) for seed in range(6)},
}  # fmt: skip
#: Programs that ``bench_orders.py --permutations`` reads: a network and an optimiser.
STEPS = tuple(
    f"{name}-{optimiser}" for name in NETWORKS for optimiser in ("sgd", "adam")
    if optimiser == "sgd" or name in ("resnet18", "unet3", "mixer8", "randwire3")
)  # fmt: skip


def training_step(name: str, batch: int = 8, pixels: int = 64) -> ComputeGraph:
    """Return the graph of a scheduled step, for example ``resnet18-sgd``."""
    network, _, optimiser = name.partition("-")
    x = jax.ShapeDtypeStruct((batch, pixels, pixels, 3), "float32")
    shapes: list[tuple[int, ...]] = []

    def record(*shape: int) -> Any:
        shapes.append(shape)
        return jnp.zeros(shape)

    jax.eval_shape(lambda given: NETWORKS[network](record, given), x)

    def loss(parameters: list[Any], given: Any) -> Any:
        rest = iter(parameters)
        return jnp.mean(NETWORKS[network](lambda *_: next(rest), given) ** 2)

    def sgd(parameters: list[Any], given: Any) -> Any:
        return [p - 0.1 * g for p, g in zip(parameters, jax.grad(loss)(parameters, given), strict=True)]

    def adam(parameters: list[Any], first: list[Any], second: list[Any], given: Any) -> Any:
        slopes = jax.grad(loss)(parameters, given)
        first = [0.9 * m + 0.1 * g for m, g in zip(first, slopes, strict=True)]
        second = [0.99 * v + 0.01 * g * g for v, g in zip(second, slopes, strict=True)]
        moved = [p - 0.1 * m / (jnp.sqrt(v) + 1e-8) for p, m, v in zip(parameters, first, second, strict=True)]
        return moved, first, second

    weights = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    given = (weights, x) if optimiser == "sgd" else (weights, weights, weights, x)
    program = jax.jit(sgd if optimiser == "sgd" else adam).lower(*given).compile().as_text()
    return program_from_text(program).graph
