"""Models of the PyTorch benchmarks, at two sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from pytorch.eager import Record, different, greatest_difference, record
from pytorch.models import FULL, bert, encoder_decoder, gpt, resnet, unet

__all__ = ["MODELS", "OWN", "SIZES", "Record", "build", "different", "greatest_difference", "record"]

Sample = tuple[nn.Module, tuple[torch.Tensor, ...]]
Sizes = dict[str, Any]


class LossOnly(nn.Module):
    """Model of transformers that returns only its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.model(input_ids=ids, labels=labels).loss


def from_transformers(kind: str) -> Callable[..., Sample]:
    """Return a maker of ``GPT2LMHeadModel`` or ``BertForMaskedLM`` with random weights."""

    def make(*, layers: int, width: int, heads: int, vocabulary: int, length: int, batch: int) -> Sample:
        import transformers

        common = {
            "vocab_size": vocabulary, "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
            "max_position_embeddings": length,
        }  # fmt: skip
        if kind == "gpt2":
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**common, use_cache=False))
        else:
            model = transformers.BertForMaskedLM(transformers.BertConfig(**common, intermediate_size=4 * width))
        ids, labels = (torch.randint(vocabulary, (batch, length)) for _ in range(2))
        return LossOnly(model).train(), (ids, labels)

    return make


SMALL: Sizes = {"layers": 4, "width": 64, "heads": 4, "vocabulary": 512, "length": 64, "batch": 4}
SIZES = ("small", "full")
#: Maker, small and full size of each model.
MODELS: dict[str, tuple[Callable[..., Sample], Sizes, Sizes]] = {
    "gpt2": (gpt, SMALL, FULL["gpt"]),
    "bert": (bert, SMALL, FULL["bert"]),
    "encoder-decoder": (encoder_decoder, SMALL, FULL["encoder_decoder"]),
    "resnet50": (
        resnet, {"blocks": (2, 2, 2), "width": 16, "image": 64, "classes": 10, "batch": 8}, FULL["resnet"],
    ),
    "unet": (unet, {"levels": 4, "width": 16, "image": 64, "batch": 4}, FULL["unet"]),
    "hf-gpt2": (from_transformers("gpt2"), SMALL, FULL["gpt"]),
    "hf-bert": (from_transformers("bert"), SMALL, FULL["bert"]),
}  # fmt: skip
#: Models that do not need transformers.
OWN = [name for name in MODELS if not name.startswith("hf-")]


def build(name: str, size: str, **changed: int | None) -> Sample:
    """Return a model with random weights (seed 0) and its sample arguments; sizes that are 0 or unknown are ignored."""
    make, *sizes = MODELS[name]
    chosen = sizes[SIZES.index(size)]
    changes = {key: value for key, value in changed.items() if value and key in chosen}
    torch.manual_seed(0)
    return make(**{**chosen, **changes})
