"""Train GPT-2 from random weights by transformers' Trainer within a memory budget; a callback is all that is added.

Run: python examples/trainer_gpt2.py [--layers 2] [--width 64] [--heads 4] [--length 64] [--batch 8] [--vocabulary 256]
     [--budget 60%] [--steps 3] [--time-limit 20]

GPT-2 itself: --layers 12 --width 768 --heads 12 --length 512 --batch 4 --vocabulary 50257.
"""

from __future__ import annotations

import argparse
from tempfile import TemporaryDirectory

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from remat.torch.trainers.hugging_face import RematCallback


def train(options: argparse.Namespace) -> list[float]:
    """Return the losses of a few steps."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=options.vocabulary, n_positions=options.length, n_embd=options.width, n_layer=options.layers,
        n_head=options.heads, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    rows = torch.randint(options.vocabulary, (options.steps * options.batch, options.length))
    saving = RematCallback(options.budget, time_limit=options.time_limit)
    with TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=options.batch, max_steps=options.steps, logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in rows]
        trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=data, callbacks=[saving])
        trainer.train()
    print(saving.reports[0])
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 2, "width": 64, "heads": 4, "length": 64, "batch": 8, "vocabulary": 256, "steps": 3}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--time-limit", type=float, default=20)
    return parser.parse_args(words)


if __name__ == "__main__":
    print("losses:", " ".join(f"{value:.4f}" for value in train(parse())))
