"""Peak of the allocator over one compiled training step, with Inductor's own order and with `inductor_order`.

Ten small networks of transformers with random weights, on the CPU, four images or sentences. Each runs in a process of
its own. Loss and gradients with both orders must be equal bit by bit, and no peak may rise. Ops, Inductor's estimate,
the least one found and its bound are those of the graph of largest estimate, mostly the backward pass. Two peaks of the
allocator follow, over the whole step, workspaces included.

    python benchmarks/bench_torch_inductor.py
    python benchmarks/bench_torch_inductor.py ResNet GPT2
"""

from __future__ import annotations

import multiprocessing
import sys
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch._inductor import config as inductor
from torch._inductor.utils import fresh_cache

from remat.torch import inductor_order, profiled_memory

#: Most seconds of the search for each graph.
SECONDS = 1.0


class Loss(nn.Module):
    """Model that returns one number."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs).last_hidden_state.square().mean()


#: Configuration of each network, without dropout: one or two layers, so that compilers need little time.
NETWORKS: dict[str, dict[str, Any]] = {
    "Bert": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512},
    "GPT2": {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "Llama": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 384},
    "T5": {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 1, "num_heads": 4},
    "ViT": {
        "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512,
        "image_size": 64, "patch_size": 8,
    },
    "Swin": {
        "embed_dim": 32, "depths": [2], "num_heads": [2], "image_size": 64, "window_size": 4, "drop_path_rate": 0.0,
    },
    "ConvNext": {"hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2},
    "ResNet": {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [1, 1]},
    "RegNet": {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [1, 1], "groups_width": 16},
    "MobileNetV1": {"depth_multiplier": 0.25, "image_size": 64},
}  # fmt: skip
#: Keys that turn dropout off, in each family's words.
DROPOUT = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout_rate",
    "classifier_dropout_prob",
)  # fmt: skip
SENTENCES = {"Bert", "GPT2", "Llama", "T5"}


def built(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a network without random calls, and inputs."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**NETWORKS[name])
    for key in DROPOUT:
        if hasattr(config, key):
            setattr(config, key, 0.0)
    inputs = {"pixel_values": torch.randn(4, 3, 64, 64)}
    if name in SENTENCES:
        config.vocab_size, config.use_cache = 1000, False
        inputs = {"input_ids": torch.randint(1000, (4, 64))}
    if name == "T5":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    model = getattr(transformers, f"{name}Model")(config)
    return Loss(model), inputs


def second_step(run: Any, model: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[int, torch.Tensor]:
    """Run two steps of a compiled model; return the peak of the allocator over the second one, and its loss."""
    run(**inputs).backward()  # compiles
    model.zero_grad()
    with profiled_memory() as memory:
        loss = run(**inputs)
        loss.backward()
    assert memory.peak is not None
    return memory.peak, loss.detach()


def measured(name: str, seconds: float | None) -> tuple[int, list[torch.Tensor], list[Any]]:
    """Return the peak of a step, loss and gradients, and what the pass found; without `seconds` there is no pass."""
    model, inputs = built(name)
    model.train()
    order = None if seconds is None else inductor_order(seconds)
    torch._dynamo.reset()
    # Without optimisation the C++ compiler needs less time; sizes of buffers do not depend on it.
    with inductor.patch({"_post_fusion_custom_pass": order, "aot_inductor.debug_compile": True}):
        peak, loss = second_step(torch.compile(model), model, inputs)
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return peak, [loss, *gradients], [] if order is None else order.graphs


def row(name: str) -> bool:
    """Print one row of the table; return True if the peak rose."""
    torch.set_num_threads(1)  # threads add gradients of an embedding in any order
    before, given, _ = measured(name, None)
    after, found, graphs = measured(name, SECONDS)
    if not all(torch.equal(a, b) for a, b in zip(given, found, strict=True)):
        raise RuntimeError(f"{name}: results differ")
    largest = max(graphs, key=lambda graph: graph.estimate)
    estimates = f"{largest.estimate:,} | {largest.least:,} | {largest.bound:,}"
    moved = any(each.chosen < each.allocated for each in graphs)
    change = f"{100 * (after / before - 1):+.1f} %" if moved else "kept"
    print(f"| {name} | {largest.ops} | {estimates} | {before:,} | {after:,} | {change} |", flush=True)
    for each in graphs:
        print(f"    {each}", file=sys.stderr, flush=True)
    return after > before


def main(names: list[str]) -> int:
    if not find_spec("transformers"):
        print("transformers is not installed")
        return 0
    columns = ("training step", "ops", "estimate", "least found", "bound", "allocator", "with the pass", "")
    print("|" + "|".join(f" {each} " for each in columns) + "|\n" + "|---" * len(columns) + "|", flush=True)
    # One cache for all: each folder of a cache needs a precompiled header of its own.
    with fresh_cache(), multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return sum(pool.imap(row, names or NETWORKS, chunksize=1))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
