"""Train a small U-Net by Lightning within a memory budget; a callback is all that is added.

Run: python examples/lightning_unet.py [--channels 8] [--depth 2] [--size 32] [--batch 4] [--budget 70%] [--steps 3]
     [--time-limit 20]
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from remat.torch.trainers.lightning import RematCallback


class UNet(nn.Module):
    """Convolutions at one scale around a U-Net of half the scale, joined by a concatenation."""

    def __init__(self, inputs: int, channels: int, depth: int) -> None:
        super().__init__()
        self.down, self.depth = self._convolutions(inputs, channels), depth
        if depth:
            self.inner = UNet(channels, 2 * channels, depth - 1)
            self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
            self.join = self._convolutions(2 * channels, channels)

    @staticmethod
    def _convolutions(inputs: int, outputs: int) -> nn.Sequential:
        pairs = ((nn.Conv2d(n, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU()) for n in (inputs, outputs))
        return nn.Sequential(*(layer for pair in pairs for layer in pair))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features of the size of the image."""
        x = self.down(x)
        if not self.depth:
            return x
        return self.join(torch.cat([x, self.up(self.inner(nn.functional.max_pool2d(x, 2)))], 1))


class Denoiser(lightning.LightningModule):
    """Predicts noise that was added to images."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.net = nn.Sequential(UNet(3, channels, depth), nn.Conv2d(channels, 3, 1))
        self.losses: list[float] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """Return the mean squared error."""
        images, noise = batch
        loss = nn.functional.mse_loss(self.net(images + noise), noise)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(options: argparse.Namespace) -> list[float]:
    """Return the losses of a few steps."""
    torch.manual_seed(0)
    images, noise = torch.randn(2, options.steps * options.batch, 3, options.size, options.size)
    task = Denoiser(options.channels, options.depth)
    saving = RematCallback(options.budget, "net", time_limit=options.time_limit)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[saving],
    )  # fmt: skip
    trainer.fit(task, DataLoader(TensorDataset(images, noise), batch_size=options.batch))
    print(saving.reports[0])
    return task.losses


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"channels": 8, "depth": 2, "size": 32, "batch": 4, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--budget", default="70%")
    parser.add_argument("--time-limit", type=float, default=20)
    return parser.parse_args(words)


if __name__ == "__main__":
    print("losses:", " ".join(f"{value:.4f}" for value in train(parse())))
