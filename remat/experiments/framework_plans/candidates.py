"""Settings that each training framework can express, as regions with saved ops."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from remat.experiments.framework_plans.layers import ALTERNATING, ATTENTION, NORM, PRODUCT, Layers, ModulePattern
from remat.problem.regions import Region


class Candidate(NamedTuple):
    """Setting of a framework."""

    name: str
    regions: tuple[Region, ...]
    code: str
    saved: frozenset[str] = frozenset()


#: MaxText's policies by the names of values that they save on the device.
MAXTEXT_POLICIES: Mapping[str, tuple[str, ...]] = {
    "full": (),
    "save_qkv_proj": ("query_proj", "key_proj", "value_proj", "qkv_proj"),
    "save_out_proj": ("out_proj",),
    "save_dot_except_mlp": ("query_proj", "key_proj", "value_proj", "qkv_proj", "out_proj"),
    "save_dot_except_mlpwi": ("query_proj", "key_proj", "value_proj", "qkv_proj", "out_proj", "mlpwo"),
    "save_dot_with_context_except_mlp": ("query_proj", "key_proj", "value_proj", "qkv_proj", "context", "out_proj"),
    "minimal": ("query_proj", "key_proj", "value_proj", "qkv_proj", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo"),
    "minimal_with_context": (
        "query_proj", "key_proj", "value_proj", "qkv_proj", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo", "context",
    ),
}  # fmt: skip
#: Code that switches the checkpoints of a model on. Version 5.23 of transformers renamed the method.
HUGGING_FACE = (
    "# before transformers 5.23: gradient_checkpointing_enable({options})\n"
    "model.activation_checkpointing_enable({options})"
)
MLP = re.compile(r"mlp|feed_forward|ffn")
#: Modules of Megatron's selective recomputation. Paths with "attention" also lead to norms and projections.
MEGATRON_MODULES = {
    "core_attn": ModulePattern(ATTENTION), "mlp": ModulePattern(MLP, MLP), "layernorm": ModulePattern(NORM, NORM),
}  # fmt: skip


def _chosen(layers: Sequence[str]) -> list[list[str]]:
    return [[layer] for layer in layers]


def hugging_face(layers: Layers) -> Iterator[Candidate]:
    """Yield checkpoints of all layers, and of every n-th and the first n layers."""
    names = layers.names
    start = HUGGING_FACE.format(options='{"use_reentrant": False}')
    yield Candidate("all layers", layers.regions(_chosen(names)), start)
    for some, what in _subsets(names):
        without = [name for name in names if name not in some]
        code = f"{start}\nfor path in {without!r}:\n    model.get_submodule(path).gradient_checkpointing = False"
        yield Candidate(what, layers.regions(_chosen(some)), code)


def _subsets(names: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    for step in (2, 3, 4):
        if len(names) > step:
            yield list(names[::step]), f"every {step} layers"
    for count in range(1, len(names)):
        yield list(names[:count]), f"first {count} layers"


def megatron(layers: Layers) -> Iterator[Candidate]:
    """Yield full recomputation by block and uniform, and selective recomputation of modules.

    Its replays compute all ops of a region.
    """
    names, flags = layers.names, "--recompute-granularity full --recompute-method"
    for count in range(1, len(names) + 1):
        code = f"{flags} block --recompute-num-layers {count}"
        yield Candidate(f"full, block, {count}", layers.regions(_chosen(names[:count]), whole=True), code)
    for size in range(2, len(names) // 2 + 1):
        if len(names) % size == 0:
            groups = [names[k : k + size] for k in range(0, len(names), size)]
            code = f"{flags} uniform --recompute-num-layers {size}"
            yield Candidate(f"full, uniform, {size}", layers.regions(groups, whole=True), code)
    kinds = {word: layers.parts(pattern, whole=True) for word, pattern in MEGATRON_MODULES.items()}
    for some in (("core_attn",), ("layernorm",), ("mlp",), ("core_attn", "layernorm"), ("core_attn", "mlp")):
        if all(kinds[word] for word in some):
            regions = tuple(region for word in some for region in kinds[word])
            code = f"--recompute-granularity selective --recompute-modules {' '.join(some)}"
            yield Candidate(f"selective, {' '.join(some)}", regions, code)


def torchtitan(layers: Layers) -> Iterator[Candidate]:
    """Yield full checkpoints, the ops that torchtitan saves, and every n-th layer, which only version 0.2 has.

    Its checkpoints have ``early_stop=False``: a replay computes the whole layer.
    """
    names = layers.names
    every = layers.regions(_chosen(names), whole=True)
    yield Candidate("FullAC", every, "activation_checkpoint=FullAC.Config()")
    saved = {*layers.kinds(ATTENTION)}
    products, alternating = set(layers.kinds(PRODUCT)), set(layers.kinds(ALTERNATING))
    for ops in layers.forward.values():
        saved.update([op for op in ops if op in alternating][::2])
        saved.update(op for op in ops if op in products - alternating)
    yield Candidate("SelectiveAC", every, "activation_checkpoint=SelectiveAC.Config()", frozenset(saved))
    for step in range(2, min(len(names), 8) + 1):
        code = (
            "# torchtitan 0.2 only: 0.3 has no setting for every n-th layer\n"
            f'[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "{step}"'
        )
        yield Candidate(
            f"every {step} layers (0.2)", layers.regions(_chosen(names[step - 1 :: step]), whole=True), code
        )


def maxtext(layers: Layers) -> Iterator[Candidate]:
    """Yield MaxText's named policies, and custom ones that save one more value at a time."""
    regions, values = layers.regions(_chosen(layers.names)), layers.values
    for name, words in MAXTEXT_POLICIES.items():
        saved = frozenset(op for word in words for op in values.get(word, ()))
        yield Candidate(name, regions, f"remat_policy: {name}", saved)
    for some in _growing(layers, values):
        lines = [f"{word}: {'device' if word in some else 'remat'}" for word in values]
        saved = frozenset(op for word in some for op in values[word])
        yield Candidate(f"custom, {' '.join(some)}", regions, "\n".join(["remat_policy: custom", *lines]), saved)


def jax(layers: Layers) -> Iterator[Candidate]:
    """Yield policies that save more and more named values of each layer."""
    regions, values = layers.regions(_chosen(layers.names)), layers.suffixes
    yield Candidate("nothing saved", regions, "policy = jax.checkpoint_policies.nothing_saveable")
    for some in _growing(layers, values):
        saved = frozenset(op for word in some for op in values[word])
        words = ", ".join(f'"{word}"' for word in some)
        code = (
            "# in each layer, for each of these names: x = jax.ad_checkpoint.checkpoint_name(x, name)\n"
            f"policy = jax.checkpoint_policies.save_only_these_names({words})"
        )
        yield Candidate(f"saves {len(some)} names: {' '.join(some)}", regions, code, saved)


def _growing(layers: Layers, values: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield names by descending cost per byte: the first one, the first two, ..."""
    arrays, index = layers.problem.graph.arrays, layers.problem.graph.op_index

    def worth(word: str) -> float:
        ops = [index[op] for op in values[word]]
        size = sum(int(arrays.size[arrays.op_outputs[op]].sum()) for op in ops)
        return float(sum(int(arrays.cost[op]) for op in ops) / (size + 1))

    ranked = sorted(values, key=lambda word: -worth(word))
    for count in range(1, len(ranked) + 1):
        yield tuple(ranked[:count])


#: Version and file that define the options of each framework.
SOURCES: Mapping[str, str] = {
    "hf": "transformers, src/transformers/modeling_layers.py at commit 00029cfa",
    "megatron": "Megatron-LM, megatron/core/transformer/transformer_config.py at commit 002526d8",
    "torchtitan": "torchtitan 0.3.0 (0.2.2 where named), torchtitan/distributed/activation_checkpoint.py",
    "maxtext": "MaxText, src/MaxText/configs/base.yml at commit 09d2025b",
    "jax": "JAX 0.10.2, jax.checkpoint_policies",
}
#: Settings of each framework, by its name on the command line.
CANDIDATES: Mapping[str, Callable[[Layers], Iterator[Candidate]]] = {
    "hf": hugging_face, "megatron": megatron, "torchtitan": torchtitan, "maxtext": maxtext, "jax": jax,
}  # fmt: skip
