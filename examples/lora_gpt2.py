"""Train LoRA adapters of PEFT on GPT-2 with random weights within a memory budget; one line differs.

Run: python examples/lora_gpt2.py [--layers 2] [--width 64] [--heads 4] [--length 64] [--batch 8] [--vocabulary 256]
     [--rank 4] [--budget 60%] [--steps 3] [--time-limit 20]

GPT-2 itself: --layers 12 --width 768 --heads 12 --length 512 --batch 4 --vocabulary 50257.
"""

from __future__ import annotations

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from remat.torch import rematerialize


def train(options: argparse.Namespace) -> list[float]:
    """Return the losses of a few steps."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=options.vocabulary, n_positions=options.length, n_embd=options.width, n_layer=options.layers,
        n_head=options.heads, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    adapters = LoraConfig(
        r=options.rank, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    model = get_peft_model(GPT2LMHeadModel(config), adapters)
    ids = torch.randint(options.vocabulary, (options.batch, options.length))
    batch = {"input_ids": ids, "labels": ids}

    model = rematerialize(model, None, options.budget, sample_kwargs=batch, time_limit=options.time_limit)  # the line
    print(model.report)

    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    losses = []
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 2, "width": 64, "heads": 4, "length": 64, "batch": 8, "vocabulary": 256, "rank": 4, "steps": 3}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--time-limit", type=float, default=20)
    return parser.parse_args(words)


if __name__ == "__main__":
    print("losses:", " ".join(f"{value:.4f}" for value in train(parse())))
