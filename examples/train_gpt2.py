"""Train a GPT on random tokens within a memory budget; one line differs from a plain training script.

Run: python examples/train_gpt2.py [--layers 2] [--width 64] [--heads 4] [--length 64] [--batch 8] [--vocabulary 256]
     [--budget 60%] [--steps 3] [--time-limit 20] [--device cpu]

GPT-2 itself: --layers 12 --width 768 --heads 12 --length 512 --batch 4 --vocabulary 50257.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from remat.torch import rematerialize


class Gpt(nn.Module):
    """Embedding, layers, and a head that shares the embedding's weights; returns the loss."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of the next token."""
        x = self.tokens(ids) + self.positions.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        logits = self.norm(x) @ self.tokens.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(options: argparse.Namespace) -> list[float]:
    """The losses of a few steps."""
    torch.manual_seed(0)
    sizes = (options.layers, options.width, options.heads, options.length, options.vocabulary)
    model: nn.Module = Gpt(*sizes).to(options.device)
    ids = torch.randint(options.vocabulary, (options.batch, options.length + 1), device=options.device)
    batch = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    model = rematerialize(model, batch, options.budget, time_limit=options.time_limit)  # the one line
    print(model.report)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("layers", 2), ("width", 64), ("heads", 4), ("length", 64), ("batch", 8), ("vocabulary", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args(words)


if __name__ == "__main__":
    print("losses", " ".join(f"{loss:.4f}" for loss in train(parsed())))
