"""Models of Hugging Face with random weights: known figures, ``rematerialize``, checkpointing as a schedule."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from eager import assert_equal, different, greatest_difference, step, train  # noqa: E402
from refusals import refused  # noqa: E402
from test_rematerialize import wild_schedule  # noqa: E402

import remat  # noqa: E402
from remat import Problem, read_graph, validate  # noqa: E402
from remat.errors import CaptureError  # noqa: E402
from remat.experiments.framework_plans import framework_plan  # noqa: E402
from remat.torch import capture, fake_tensors, rematerialize, rematerialize_blocks, track_storages  # noqa: E402
from remat.torch.peers import schedule_of_trace  # noqa: E402

pytestmark = pytest.mark.slow
WORDS = 40
BERT = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip


def texts(seed: int = 1) -> dict[str, Any]:
    """Return ids, a mask with padding, and labels with ignored entries."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, WORDS, (2, 12), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def gpt2(**options: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2, **options
    )
    return transformers.GPT2LMHeadModel(config)


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        **BERT, num_key_value_heads=1, max_position_embeddings=32, attention_dropout=0.1, use_cache=False
    )
    return transformers.LlamaForCausalLM(config)


def vit() -> Any:
    options = {name: value for name, value in BERT.items() if name != "vocab_size"}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(**options, image_size=16, patch_size=8, num_labels=3, hidden_dropout_prob=0.1)
    )


def qwen2() -> Any:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**BERT, num_key_value_heads=1, use_cache=False))


def bart() -> Any:
    sizes = {f"{part}_{what}": 1 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(d_model=16, vocab_size=WORDS, **sizes))


MIXTURE = {
    **BERT,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "num_experts_per_tok": 2,
    "use_cache": False,
}


def mixtral() -> Any:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**MIXTURE, num_local_experts=4))


def qwen3_moe() -> Any:
    config = transformers.Qwen3MoeConfig(**MIXTURE, head_dim=8, moe_intermediate_size=16, num_experts=4)
    return transformers.Qwen3MoeForCausalLM(config)


def classes(**other: Any) -> dict[str, Any]:
    return {**other, "labels": torch.tensor([0, 2])}


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "gpt2": (lambda: gpt2(use_cache=False), texts),
    "gpt2, use_cache by name": (gpt2, lambda: {**texts(), "use_cache": False, "output_hidden_states": True}),
    "bert, masked": (lambda: transformers.BertForMaskedLM(transformers.BertConfig(**BERT)), texts),
    "bert, classes": (
        lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=3)),
        lambda: {**texts(), **classes()},
    ),
    "t5": (t5, lambda: {**texts(), "use_cache": False}),
    "bart": (bart, lambda: {**texts(), "use_cache": False}),
    "llama": (llama, texts),
    "vit": (vit, lambda: classes(pixel_values=torch.randn(2, 3, 16, 16))),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_bitwise_as_eager(name: str) -> None:
    """Arguments by name, ModelOutput, tied weights, masks, dropout; evaluation uses the original."""
    make, sample = MODELS[name]
    torch.manual_seed(0)
    kwargs = sample()
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        made.append(make().train())
    eager, other = made
    graph = capture(other, (), kwargs, costs="flops").graph
    schedule = wild_schedule(graph, 0.1, seed=3)
    model = rematerialize(other, (), schedule=schedule, sample_kwargs=kwargs, costs="flops", verify=True)
    assert model.report.verification.bitwise
    assert model.report.recomputations > 20
    how = {"loss": lambda out: out.loss, "optimizer": torch.optim.AdamW}
    assert_equal(*(train(each, each, (), kwargs, **how) for each in (model, eager)))
    out, like = model(**kwargs), eager(**kwargs)
    assert type(out) is type(like)
    assert out.keys() == like.keys()
    with torch.no_grad():
        assert torch.equal(model.eval()(**kwargs).logits, eager.eval()(**kwargs).logits)


@pytest.mark.parametrize(
    "make", [lambda: gpt2(use_cache=False), llama, qwen2, MODELS["bert, masked"][0], t5],
    ids=["gpt2", "llama", "qwen2", "bert", "t5"],
)  # fmt: skip
def test_blocks_train_as_eager_with_and_without_padding(make: Callable[[], Any]) -> None:
    """Default attention makes a mask for padding only: two kinds of calls, with gradients equal bit by bit.

    In T5 each block of the decoder adds to the gradient of the encoder's states; the order of these sums differs.
    """
    torch.manual_seed(1)
    eager = make().train()
    model = copy.deepcopy(eager)
    assert eager.config._attn_implementation == "sdpa"
    found = rematerialize_blocks(model, "85%", other_shapes="capture", method="eviction", costs="flops")
    full = texts() | {"attention_mask": torch.ones(2, 12, dtype=torch.long)}
    for batch in ({**each, "use_cache": False} for each in (full, texts(), full)):
        ours, theirs = (step(each, each, (), batch, loss=lambda out: out.loss) for each in (model, eager))
        if make is t5:
            assert not [name for name in different(ours, theirs) if "encoder" not in name and "shared" not in name]
            assert greatest_difference(ours, theirs) < 1e-6
        else:
            assert_equal(ours, theirs)
    assert [each.recomputations > 3 for each in found.reports] == [True, True]


def beit() -> Any:
    options = {name: value for name, value in BERT.items() if name != "vocab_size"}
    config = transformers.BeitConfig(**options, image_size=32, patch_size=8, num_labels=3)
    return transformers.BeitForImageClassification(config)


def regnet() -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "groups_width": 4}
    return transformers.RegNetForImageClassification(transformers.RegNetConfig(**sizes, num_labels=3))


def perceiver() -> Any:
    sizes = {"d_model": 16, "d_latents": 16, "num_latents": 8, "num_blocks": 1, "num_self_attends_per_block": 3}
    heads = dict.fromkeys(("num_self_attention_heads", "num_cross_attention_heads"), 2)
    return transformers.PerceiverForMaskedLM(
        transformers.PerceiverConfig(**sizes, **heads, vocab_size=WORDS, max_position_embeddings=12)
    )


def pegasus() -> Any:
    sizes = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = transformers.PegasusConfig(d_model=16, vocab_size=WORDS, max_position_embeddings=32, **sizes)
    return transformers.PegasusForConditionalGeneration(config)


UNUSUAL: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "beit, sizes as arguments": (beit, lambda: classes(pixel_values=torch.randn(2, 3, 32, 32))),
    "regnet, results changed in place": (
        regnet, lambda: classes(pixel_values=torch.randn(2, 3, 32, 32)),
    ),
    "perceiver, mask of floats": (
        perceiver, lambda: {"inputs": texts()["input_ids"], "attention_mask": torch.ones(2, 12), **labels()},
    ),
    "pegasus, mask made by the model": (pegasus, lambda: {**labels("input_ids", "labels"), "use_cache": False}),
}  # fmt: skip


def labels(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names or ("labels",), texts()["input_ids"])


@pytest.mark.parametrize("name", UNUSUAL)
def test_blocks_of_models_with_unusual_calls(name: str) -> None:
    torch.manual_seed(1)
    make, arguments = UNUSUAL[name]
    eager, kwargs = make().train(), arguments()
    model = copy.deepcopy(eager)
    found = rematerialize_blocks(model, "92%", sample_kwargs=kwargs, method="eviction", costs="flops")
    ours, theirs = (step(each, each, (), kwargs, loss=lambda out: out.loss) for each in (model, eager))
    sums = ("encoder", "shared") if make is pegasus else ()
    assert not [each for each in different(ours, theirs) if not any(word in each for word in sums)]
    assert greatest_difference(ours, theirs) < 1e-6 and found.report.recomputations
    model.zero_grad()
    tracker = track_storages(constants=(model, *kwargs.values()))
    with tracker:
        model(**kwargs).loss.backward()
    assert tracker.peak <= found.report.predicted_peak + 64


@pytest.mark.parametrize("make", [mixtral, qwen3_moe])
def test_both_routes_capture_mixtures_of_experts(make: Callable[[], Any]) -> None:
    """Also in 32 bits, where PyTorch's fake kernel of grouped products accepts only BF16."""
    module = make().train()
    targets = {}
    for route in ("make_fx", "joint"):
        captured = capture(module, (), texts(), route=route, costs="flops")
        targets[route] = {str(node.target) for node in captured.nodes if node is not None}
    assert any("grouped_mm" in each for each in targets["make_fx"])
    schedule = wild_schedule(captured.graph, 0.1, seed=3)
    model = rematerialize(module, (), schedule=schedule, sample_kwargs=texts(), costs="flops", verify=True)
    assert model.report.recomputations > 20


def test_cache_among_the_outputs_is_refused_with_advice() -> None:
    with pytest.raises(CaptureError, match=r"returns a DynamicCache \(output \d\), .*: pass use_cache=False"):
        rematerialize(gpt2(), (), "60%", sample_kwargs=texts())
    with refused("capture.cache", culprit="DynamicCache"):
        rematerialize_blocks(gpt2(), "90%", sample_kwargs=texts())


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_is_a_schedule(reentrant: bool) -> None:
    """Both kinds recompute layers with dropout, and need less memory."""
    base, module = gpt2(use_cache=False).train(), gpt2(use_cache=False).train()
    module.activation_checkpointing_enable({"use_reentrant": reentrant})
    step, traced = (capture(each, (), texts(), route="make_fx", loss="loss", costs="flops") for each in (base, module))
    schedule = schedule_of_trace(step, traced)
    certificate = validate(step.graph, schedule)
    assert certificate.accepted
    assert certificate.peak < step.graph.reference_peak
    again = {name for name in schedule.computes() if schedule.computes().count(name) > 1}
    assert len(again.intersection(step.random_ops)) >= 4
    assert schedule.meta["dropped"] == []


def test_code_of_plans_runs() -> None:
    """Every setting, and the policy by ops, checkpoints the layers that its name says, without a warning."""
    model = gpt2(use_cache=False).train()
    problem = Problem(capture(model, (), texts(), loss="loss", costs="flops").graph, "70%")
    plan = framework_plan(problem, "hf", time_limit=5)
    layers = {
        "no checkpoints": [False, False], "first 1 layers": [True, False], "all layers": [True, True],
        "policy by ops": [True, True],
    }  # fmt: skip
    assert {each.name for each in plan.settings} == set(layers)
    for each in plan.settings:
        module = gpt2(use_cache=False).train()
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            exec(each.code, {"remat": remat, "model": module, "batch": texts()})
        assert [block.gradient_checkpointing for block in module.transformer.h] == layers[each.name]
        module(**texts()).loss.backward()


@pytest.mark.parametrize("route", ["joint", "make_fx"])
def test_gpt2_of_hugging_face(route: str) -> None:
    """Ops, tensors and peak equal published captures, plus ``begin_backward`` and its tangent."""
    with fake_tensors():
        module = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)).train()
        ids, labels = (torch.zeros(4, 512, dtype=torch.long) for _ in range(2))
    captured = capture(
        module, (), {"input_ids": ids, "labels": labels}, loss=lambda out: out.loss, route=route, costs="flops"
    )
    graph = captured.graph
    assert (len(graph.ops), len(graph.tensors)) == (917 + 1, 1055 + 1)
    assert graph.reference_peak == 4_760_317_956
    assert graph.meta["constant_bytes"] == {"param": 497_759_232, "buffer": 0, "input": 2 * 4 * 512 * 8}
    assert len(captured.random_ops) == 3 * 12 + 1
    assert 1.6e12 < sum(op.cost for op in graph.ops) < 1.7e12


@pytest.mark.shared
def test_inference_of_bert_of_hugging_face(shared) -> None:
    other = read_graph(shared / "data" / "graphs" / "bert_base_infer.json")
    with fake_tensors():
        module = transformers.BertModel(transformers.BertConfig())
        ids = torch.zeros(8, 512, dtype=torch.long)
    graph = capture(module, (ids, torch.ones_like(ids)), mode="inference", costs="flops").graph
    assert len(graph.ops) == len(other.ops)
    assert sorted(tensor.size for tensor in graph.tensors) == sorted(tensor.size for tensor in other.tensors)
    assert graph.reference_peak == other.reference_peak
    assert graph.constant_memory == other.constant_memory
