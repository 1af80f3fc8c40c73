"""Train Llama from random weights on two processes: FSDP2 around blocks that keep a memory budget.

Run: python examples/fsdp2_llama.py [--layers 4] [--width 64] [--heads 4] [--length 64] [--batch 8] [--vocabulary 256]
     [--processes 2] [--budget 70%] [--steps 3] [--time-limit 60]

Processes communicate by gloo on the CPU, or by NCCL with a GPU for each. Budget and batch are those of one process.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from remat.torch import rematerialize_blocks


def train(options: argparse.Namespace) -> list[float]:
    """Start the processes; return the losses of a few steps, mean over processes."""
    with TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(process, (options, folder), nprocs=options.processes)
        losses: list[float] = json.loads(Path(folder, "losses").read_text())
    return losses


def process(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Train in one of the processes; the first one prints the report and writes the losses."""
    kind, backend = ("cuda", "nccl") if torch.cuda.device_count() >= options.processes else ("cpu", "gloo")
    if kind == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        backend, init_method=f"file://{folder}/store", rank=rank, world_size=options.processes
    )
    mesh = init_device_mesh(kind, (options.processes,))
    torch.manual_seed(0)  # the same weights everywhere
    config = LlamaConfig(
        vocab_size=options.vocabulary, hidden_size=options.width, intermediate_size=3 * options.width,
        num_hidden_layers=options.layers, num_attention_heads=options.heads, num_key_value_heads=options.heads // 2,
        max_position_embeddings=options.length, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(kind)
    torch.manual_seed(1 + rank)  # other data
    ids = torch.randint(options.vocabulary, (options.batch, options.length), device=kind)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    found = rematerialize_blocks(  # before sharding
        model, options.budget, sample_kwargs=batch, time_limit=options.time_limit
    )
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        mean = loss.detach() / options.processes
        distributed.all_reduce(mean)
        losses.append(mean.item())
    if rank == 0:
        print(found.report)
        Path(folder, "losses").write_text(json.dumps(losses))
    distributed.destroy_process_group()


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 4, "width": 64, "heads": 4, "length": 64, "batch": 8, "vocabulary": 256, "processes": 2}
    for name, default in {**sizes, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--budget", default="70%")
    parser.add_argument("--time-limit", type=float, default=60)
    return parser.parse_args(words)


if __name__ == "__main__":
    print("losses:", " ".join(f"{value:.4f}" for value in train(parse())))
