"""Peak of the allocator over one compiled training step, with Inductor's own order and with `inductor_order`.

Ten networks of torchvision and transformers with random weights, on the CPU. Each runs in a process of its own. Loss
and gradients with both orders must be equal bit by bit, and no peak may rise.

    python benchmarks/bench_torch_inductor.py
    python benchmarks/bench_torch_inductor.py resnet18 gpt2
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch._inductor import config
from torch._inductor.utils import fresh_cache

from remat.torch import inductor_order, profiled_memory

#: Most seconds of the search for each graph.
SECONDS = 1.0
VISION = ("resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5", "googlenet", "mnasnet0_5")
LANGUAGE = ("bert", "gpt2", "t5", "vit")


class Loss(nn.Module):
    """Model that returns one number."""

    def __init__(self, model: nn.Module, value: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.value = model, value

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.value(self.model(**inputs)).float().square().mean()


def built(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a network without random calls, and inputs."""
    torch.manual_seed(0)
    if name in VISION:
        import torchvision

        special = {"googlenet": {"aux_logits": False, "init_weights": False}}
        model = getattr(torchvision.models, name)(num_classes=100, **special.get(name, {}))
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return Loss(model, lambda found: found), {"x": torch.randn(4, 3, 128, 128)}
    import transformers

    tokens = torch.randint(1000, (4, 64))
    size = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if name == "bert":
        model = transformers.BertModel(transformers.BertConfig(**size, **off, intermediate_size=512))
    elif name == "gpt2":
        off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model = transformers.GPT2Model(transformers.GPT2Config(**size, **off, n_positions=64, use_cache=False))
    elif name == "t5":
        size = {"vocab_size": 1000, "d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4}
        model = transformers.T5Model(transformers.T5Config(**size, dropout_rate=0.0, use_cache=False))
        return Loss(model, lambda found: found.last_hidden_state), {"input_ids": tokens, "decoder_input_ids": tokens}
    else:
        del size["vocab_size"]
        model = transformers.ViTModel(
            transformers.ViTConfig(**size, **off, intermediate_size=512, image_size=64, patch_size=8)
        )
        return Loss(model, lambda found: found.last_hidden_state), {"pixel_values": torch.randn(4, 3, 64, 64)}
    return Loss(model, lambda found: found.last_hidden_state), {"input_ids": tokens}


def measured(name: str, seconds: float | None) -> tuple[int, list[torch.Tensor], list[Any]]:
    """Return the peak of a step, loss and gradients, and what the pass found; without `seconds` there is no pass."""
    model, inputs = built(name)
    model.train()
    order = None if seconds is None else inductor_order(seconds)
    torch._dynamo.reset()
    with config.patch(_post_fusion_custom_pass=order):
        run = torch.compile(model)
        for _ in range(2):
            model.zero_grad()
            with profiled_memory() as memory:
                loss = run(**inputs)
                loss.backward()
    assert memory.peak is not None
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return memory.peak, [loss.detach(), *gradients], [] if order is None else order.graphs


def row(name: str) -> bool:
    """Print one row of the table; return whether the peak rose."""
    with fresh_cache():
        before, given, _ = measured(name, None)
        after, found, graphs = measured(name, SECONDS)
    if not all(torch.equal(a, b) for a, b in zip(given, found, strict=True)):
        raise SystemExit(f"{name}: results differ")
    ops, moved = sum(each.ops for each in graphs), sum(each.chosen < each.allocated for each in graphs)
    least = sum(each.already_least for each in graphs)
    change = "kept" if not moved else f"{100 * (after / before - 1):+.1f} %"
    print(f"| {name} | {ops} | {least} of {len(graphs)} | {before:,} | {after:,} | {change} |", flush=True)
    for each in graphs:
        print(f"    {each}", file=sys.stderr, flush=True)
    return after > before


def main(names: list[str]) -> int:
    if not (find_spec("torchvision") and find_spec("transformers")):
        print("torchvision and transformers are not installed")
        return 0
    print("| training step | ops | already least | Inductor | with the pass | |\n|---|---|---|---|---|---|", flush=True)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return sum(pool.imap(row, names or [*VISION, *LANGUAGE], chunksize=1))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
