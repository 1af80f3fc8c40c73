"""Extra time at the peak of a model's own checkpointing: its own, and that of a schedule, on 20 models.

Transformers' models checkpoint themselves by ``activation_checkpointing_enable``; the others have
``torch.utils.checkpoint`` around each block. Peak and extra time of these checkpoints come from a trace that records
their recomputations, as a schedule of the step without them. Our budget is that peak, so both use one graph, one cost
model and one validator. Weights and arguments are fake, so a size needs no memory.

    python benchmarks/bench_torch_checkpointing.py [--models gpt2,bert] [--seconds 30] [--costs roofline:A100]
        [--layers 4] [--width 512] [--length 512] [--batch 8] [--prove 120] [--gap 0] [--events 8] [--output rows.json]

``--measure`` runs one step of each model with its checkpoints, with real weights, and compares the peak of storages
with the prediction. "at least" is a lower bound of the ratio. The verdict is "optimal" if no schedule of the reference
order costs less. "optimal to 1e-4" and "least to 0.005" say that none costs less by that share, or has a ratio lower by
that. It is "yes" if the ratio is at most 0.6, and "not possible" if the bound alone excludes 0.6. A search ends after
``--seconds`` of wall time. With ``--prove``, programmes of the stage bound follow where a gap above ``--gap`` remains.
On a busy machine, the processor time in this process (last column) says how much of it was work.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import build

from remat import Problem, Schedule, solve
from remat.bounds.stage_programmes import StageProgrammes
from remat.errors import CaptureError
from remat.heuristics.drops import Drops
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Certificate, OrderRule, validate
from remat.torch import capture, track_storages
from remat.torch.blocks.finding import find_blocks
from remat.torch.peers import schedule_of_trace

#: Largest ratio of extra times that counts as won, and distance to the bound that counts as none.
AIM, CLOSE = 0.6, 0.005
#: Relative gap of costs of the verdict "optimal to 1e-4".
GAP = 1e-4
#: Part of the budget for tensors that proofs leave out.
NEGLIGIBLE = 1 / 500


class Sizes(NamedTuple):
    """Sizes of a model."""

    layers: int
    width: int
    length: int
    batch: int


Case = tuple[nn.Module, dict[str, Any]]


def text_model(kind: str, config: str, **changes: Any) -> Callable[[Sizes], Case]:
    """Return a maker of a model of transformers on texts."""

    def make(sizes: Sizes) -> Case:
        import transformers

        heads = sizes.width // 64
        common = {
            "vocab_size": 8192, "hidden_size": sizes.width, "num_hidden_layers": sizes.layers, "use_cache": False,
            "num_attention_heads": heads, "intermediate_size": 4 * sizes.width,
            "max_position_embeddings": sizes.length + 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
        given = {name: value(sizes) if callable(value) else value for name, value in {**common, **changes}.items()}
        settings = getattr(transformers, config)(**{name: each for name, each in given.items() if each is not None})
        ids = torch.randint(3, 8192, (sizes.batch, sizes.length))
        return getattr(transformers, kind)(settings), {"input_ids": ids, "labels": ids}

    return make


def image_model(kind: str, config: str, **changes: Any) -> Callable[[Sizes], Case]:
    """Return a maker of a model of transformers on images."""

    def make(sizes: Sizes) -> Case:
        import transformers

        given = {name: value(sizes) if callable(value) else value for name, value in changes.items()}
        images, labels = torch.randn(sizes.batch, 3, 224, 224), torch.zeros(sizes.batch, dtype=torch.long)
        model = getattr(transformers, kind)(getattr(transformers, config)(**given))
        return model, {"pixel_values": images, "labels": labels}

    return make


def own_model(name: str) -> Callable[[Sizes], Case]:
    """Return a maker of one of the networks of ``torch_models``."""

    def make(sizes: Sizes) -> Case:
        texts = {**sizes._asdict(), "heads": sizes.width // 64, "vocabulary": 8192}
        changed = {} if name in {"unet", "resnet50"} else texts
        model, args = build(name, "full" if changed else "small", **changed)
        return model, {"args": args}

    return make


def _width(sizes: Sizes) -> int:
    return sizes.width


def _layers(sizes: Sizes) -> int:
    return sizes.layers


def _heads(sizes: Sizes) -> int:
    return sizes.width // 64


VISION = {
    "hidden_size": _width, "num_hidden_layers": _layers, "num_attention_heads": _heads,
    "intermediate_size": lambda sizes: 4 * sizes.width,
}  # fmt: skip
SEQUENCES = {
    "d_model": _width, "encoder_layers": _layers, "decoder_layers": _layers, "encoder_attention_heads": _heads,
    "decoder_attention_heads": _heads, "encoder_ffn_dim": lambda sizes: 4 * sizes.width,
    "decoder_ffn_dim": lambda sizes: 4 * sizes.width, "hidden_size": None, "num_hidden_layers": None,
    "intermediate_size": None, "num_attention_heads": None, "decoder_start_token_id": 1,
}  # fmt: skip
MODELS: dict[str, Callable[[Sizes], Case]] = {
    "gpt2": text_model("GPT2LMHeadModel", "GPT2Config", intermediate_size=None),
    "gpt-neox": text_model("GPTNeoXForCausalLM", "GPTNeoXConfig"),
    "opt": text_model(
        "OPTForCausalLM", "OPTConfig", ffn_dim=lambda s: 4 * s.width, word_embed_proj_dim=_width, intermediate_size=None
    ),
    "llama": text_model("LlamaForCausalLM", "LlamaConfig"),
    "mistral": text_model("MistralForCausalLM", "MistralConfig", num_key_value_heads=2),
    "qwen2": text_model("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2),
    "gemma": text_model("GemmaForCausalLM", "GemmaConfig", num_key_value_heads=2, head_dim=64),
    "phi": text_model("PhiForCausalLM", "PhiConfig"),
    "bert": text_model("BertForMaskedLM", "BertConfig"),
    "roberta": text_model("RobertaForMaskedLM", "RobertaConfig"),
    "electra": text_model("ElectraForMaskedLM", "ElectraConfig", embedding_size=_width),
    "t5": text_model(
        "T5ForConditionalGeneration", "T5Config", d_model=_width, d_kv=64, d_ff=lambda s: 4 * s.width,
        num_layers=_layers, num_heads=_heads, hidden_size=None, num_hidden_layers=None, num_attention_heads=None,
        intermediate_size=None, decoder_start_token_id=1,
    ),
    "bart": text_model("BartForConditionalGeneration", "BartConfig", **SEQUENCES),
    "vit": image_model("ViTForImageClassification", "ViTConfig", **VISION),
    "deit": image_model("DeiTForImageClassification", "DeiTConfig", **VISION),
    "dinov2": image_model("Dinov2ForImageClassification", "Dinov2Config", **VISION),
    "swin": image_model("SwinForImageClassification", "SwinConfig", depths=[2, 2, 2, 2]),
    "convnext": image_model("ConvNextForImageClassification", "ConvNextConfig", depths=[2, 2, 4, 2]),
    "gpt (per block)": own_model("gpt2"),
    "encoder-decoder (per block)": own_model("encoder-decoder"),
    "resnet50 (per block)": own_model("resnet50"),
    "unet (per block)": own_model("unet"),
}  # fmt: skip


def checkpointed(model: nn.Module) -> nn.Module:
    """Return a copy that checkpoints itself: by its own method, or around each of its blocks."""
    model = copy.deepcopy(model)
    if getattr(model, "supports_gradient_checkpointing", False):
        model.activation_checkpointing_enable({"use_reentrant": False})
        return model
    for block in _blocks(model):
        block.forward = _checkpointed(block.forward)
    return model


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks; without repetition, the parts with parts of their own, containers resolved."""
    try:
        return list(find_blocks(model).values())
    except CaptureError:
        parts = [each for part in model.children() for each in (part if isinstance(part, nn.ModuleList) else [part])]
        return [part for part in parts if any(True for _ in part.children())]


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


def row(name: str, sizes: Sizes, options: argparse.Namespace) -> dict[str, Any]:
    """Capture, solve and compare one model."""
    torch.manual_seed(0)
    model, kwargs = MODELS[name](sizes)
    args = kwargs.pop("args", ())
    model.train()
    own = checkpointed(model)
    loss = (lambda out: out.loss) if "labels" in kwargs else None
    how: dict[str, Any] = {"route": "make_fx", "costs": options.costs, "loss": loss}
    base, traced = (capture(each, args, kwargs, **how) for each in (model, own))
    theirs = schedule_of_trace(base, traced, source="its own checkpoints")
    graph = base.graph
    peer = validate(graph, theirs)
    assert peer.accepted and peer.peak is not None
    problem = Problem(graph, peer.peak, OrderRule.FIXED)
    begun = time.process_time()
    found = solve(problem, "auto", stop=options.seconds)
    assert found.schedule is not None
    best, bound = found.schedule, found.bound
    if options.prove and not _near(problem.validate(best), bound, options.gap):
        best, bound = proved(problem, best, bound, options)
    seconds = time.process_time() - begun
    mine = problem.validate(best)
    measured = _measured(own, args, kwargs) if options.measure else None
    return compared(name, peer, mine, bound, graph.base_cost) | {
        "ops": len(graph.ops), "reference": graph.reference_peak, "measured": measured, "method": str(found.method),
        "processor seconds": seconds,
    }  # fmt: skip


def proved(
    problem: Problem, schedule: Schedule, bound: int | None, options: argparse.Namespace
) -> tuple[Schedule, int]:
    """Return the best schedule found and a bound, by programmes of the stage bound with ``--events`` more each time.

    Each is solved for a cost below the known one by the gap: easier to refute than any lower cost.
    """
    programmes, drops, deadline = StageProgrammes(problem, NEGLIGIBLE), Drops(), Deadline.after(options.prove)
    drops.prepared(deadline)
    best, known = schedule, problem.validate(schedule)
    while not deadline.expired and not _near(known, programmes.value, options.gap):
        call, aim = SolveOptions(deadline, 1), math.ceil((known.cost or 0) * (1 - options.gap))
        relaxed = programmes.relax(programmes.build(deadline, aim), call)
        values, _ = programmes.solve(relaxed, call)
        if values is None:
            break
        schedules, before = programmes.schedules(values), known
        dropped = (drops.improved(problem, each, deadline) for each in schedules)
        for each in (*schedules, *(each for each in dropped if each is not None)):
            certificate = problem.validate(each)
            if certificate.accepted and (certificate.cost or 0) < (known.cost or 0):
                best, known = each, certificate
        if not programmes.widen(schedules[0], options.events) and known is before:
            break
    return best, max(bound or 0, programmes.value)


def _near(certificate: Certificate, bound: int | None, gap: float) -> bool:
    """Return True if a bound leaves at most a relative gap."""
    return bound is not None and certificate.cost is not None and certificate.cost - bound <= gap * certificate.cost


def compared(name: str, peer: Certificate, mine: Certificate, bound: int | None, base: int) -> dict[str, Any]:
    """Return extra times in %, their ratio, a lower bound on it, and the verdict."""
    assert peer.cost is not None and mine.cost is not None
    extra = peer.cost - base
    ratio = None if not extra else (mine.cost - base) / extra
    least = None if not extra or bound is None else (bound - base) / extra
    least_found = ratio is not None and least is not None and ratio - least < CLOSE
    if bound == mine.cost:
        verdict = "optimal"
    elif _near(mine, bound, GAP):
        verdict = "optimal to 1e-4"
    elif least_found:
        verdict = "least to 0.005"
    elif ratio is not None and ratio <= AIM:
        verdict = "yes"
    else:
        verdict = "missed" if least is None or least <= AIM else "not possible"
    return {
        "model": name, "peak": peer.peak, "theirs": peer.overhead, "ours": mine.overhead, "ratio": ratio,
        "at least": least, "verdict": verdict,
    }  # fmt: skip


def _measured(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return the peak of storages over one step."""
    tracker = track_storages(constants=(model, args, kwargs))
    with tracker:
        out = model(*args, **kwargs)
        (out if isinstance(out, torch.Tensor) else out["loss"]).backward()
    return tracker.peak


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--prove", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--events", type=int, default=1, help="events that each programme of --prove adds")
    parser.add_argument("--gap", type=float, default=GAP, help="relative gap at which a proof ends")
    parser.add_argument("--costs", default="roofline:A100")
    for word, value in (("layers", 4), ("width", 512), ("length", 512), ("batch", 8)):
        parser.add_argument(f"--{word}", type=int, default=value)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sizes = Sizes(options.layers, options.width, options.length, options.batch)
    print("| model | ops | peak of its checkpoints | its extra time | ours | ratio | at least | | solve |")
    print("|---" * 9 + "|")
    rows = []
    for name in options.models.split(","):
        try:
            each = row(name, sizes, options)
        except Exception as error:  # one model that fails does not end a long run
            print(f"| {name} | {type(error).__name__}: {str(error)[:150]} |", flush=True)
            continue
        rows.append(each)
        share = 100 * each["peak"] / each["reference"]
        numbers = ["-" if each[word] is None else f"{each[word]:.2f}" for word in ("ratio", "at least")]
        print(
            f"| {name} | {each['ops']:,} | {each['peak'] / 1e6:,.0f} MB ({share:.0f} %) | {each['theirs']:.2f} % "
            f"| {each['ours']:.2f} % | {' | '.join(numbers)} | {each['verdict']} | {each['processor seconds']:.0f} s |"
            + (f" measured {each['measured']:,}, predicted {each['peak']:,}" if each["measured"] else ""),
            flush=True,
        )
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
