"""Models of many blocks: time to record, capture, divide and wrap, in processor time.

    python benchmarks/bench_torch_blocks.py [--layers 48] [--width 256] [--batch 4] [--length 256] [--budget 60%]
        [--model gpt|hf-llama|hf-gpt2] [--time-limit 60] [--step]

Prints the report, and the processor time and wall time of ``rematerialize_blocks``, without imports. ``--step`` also
runs one step and prints the measured peak in bytes of storages. Names that begin with ``hf-`` need transformers.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn
from torch_models import build

from remat.torch import rematerialize_blocks, track_storages


def made(options: argparse.Namespace) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a model with random weights, and its arguments."""
    ids = torch.randint(512, (options.batch, options.length))
    if options.model == "gpt":
        sizes = {"layers": options.layers, "width": options.width, "length": options.length, "batch": options.batch}
        model, args = build("gpt2", "small", **sizes)
        return model, args, {}
    import transformers

    sizes = {
        "vocab_size": 512, "num_hidden_layers": options.layers, "hidden_size": options.width, "num_attention_heads": 4,
        "max_position_embeddings": options.length, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if options.model == "hf-llama":
        config = transformers.LlamaConfig(**sizes, intermediate_size=3 * options.width, num_key_value_heads=2)
        return transformers.LlamaForCausalLM(config), (), {"input_ids": ids, "labels": ids}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), (), {"input_ids": ids, "labels": ids}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("layers", 48), ("width", 256), ("batch", 4), ("length", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--model", choices=("gpt", "hf-llama", "hf-gpt2"), default="gpt")
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--step", action="store_true")
    options = parser.parse_args()
    model, args, kwargs = made(options)
    model.train()
    wall, processor = time.perf_counter(), time.process_time()
    found = rematerialize_blocks(
        model, options.budget, args, sample_kwargs=kwargs or None, time_limit=options.time_limit
    )
    processor, wall = time.process_time() - processor, time.perf_counter() - wall
    print(found.report)
    print(f"{len(found.report.blocks)} blocks in {processor:.1f} s of processor time, {wall:.1f} s of wall time")
    if options.step:
        tracker = track_storages(constants=(model, args, kwargs))
        with tracker:
            out = model(*args, **kwargs)
            (out if isinstance(out, torch.Tensor) else out["loss"]).backward()
        print(f"measured {tracker.peak:,} bytes at {tracker.peak_op}")


if __name__ == "__main__":
    main()
