"""Capture of large models, and of models of Hugging Face: figures that are known, time, memory, identical layers."""

import time

import psutil
import pytest

torch = pytest.importorskip("torch")

from models import gpt  # noqa: E402

from remat import Problem, read_graph, solve  # noqa: E402
from remat.hierarchy.identical import identical_groups  # noqa: E402
from remat.hierarchy.partition.modules import Modules  # noqa: E402
from remat.torch.capture import capture, fake_tensors  # noqa: E402

LAYERS = 96


@pytest.mark.slow
@pytest.mark.alone
def test_a_gpt_of_96_layers() -> None:
    """In less than two minutes, without memory for its weights; its layers are the same, and it can be scheduled."""
    process = psutil.Process()
    before, begun = process.memory_info().rss, time.process_time()
    with fake_tensors():
        module, args = gpt(layers=LAYERS, width=1536, heads=12, vocabulary=50257, length=1024, batch=4, dropout=0.1)
    graph = capture(module, args, costs="flops").graph
    assert time.process_time() - begun < 120
    assert process.memory_info().rss - before < 2 * 2**30 < graph.constant_memory
    assert len(graph.ops) > 2900
    problem = Problem(graph, budget="50%")
    classes = {each.representative.name: each for each in identical_groups(Modules().partition(problem))}
    assert len(classes["layers.0"]) == LAYERS
    forward = sum(op.phase == "forward" for op in graph.ops)
    assert LAYERS * len(classes["layers.0"].representative.forward) > 0.9 * forward
    result = solve(problem, method="hierarchical", stop=60)
    assert result.certificate is not None
    assert result.certificate.accepted
    assert result.overhead is not None
    assert result.overhead < 10


@pytest.mark.slow
@pytest.mark.parametrize("route", ["joint", "make_fx"])
def test_gpt_2_of_hugging_face(route: str) -> None:
    """Ops, tensors and peak as in notes of captures by others (and ``begin_backward``, and a tangent)."""
    transformers = pytest.importorskip("transformers")
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


@pytest.mark.slow
@pytest.mark.shared
def test_bert_of_hugging_face_without_its_backward_pass(shared) -> None:
    transformers = pytest.importorskip("transformers")
    other = read_graph(shared / "data" / "graphs" / "bert_base_infer.json")
    with fake_tensors():
        module = transformers.BertModel(transformers.BertConfig())
        ids = torch.zeros(8, 512, dtype=torch.long)
    graph = capture(module, (ids, torch.ones_like(ids)), mode="inference", costs="flops").graph
    assert len(graph.ops) == len(other.ops)
    assert sorted(tensor.size for tensor in graph.tensors) == sorted(tensor.size for tensor in other.tensors)
    assert graph.reference_peak == other.reference_peak
    assert graph.constant_memory == other.constant_memory


@pytest.mark.slow
@pytest.mark.parametrize("name", ["T5", "Bart"])
def test_encoders_and_decoders_of_hugging_face(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "T5": {"num_layers": 2, "d_kv": 16, "num_heads": 4, "d_ff": 128, "decoder_start_token_id": 0},
        "Bart": {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")},
    }[name]
    config = getattr(transformers, f"{name}Config")(d_model=64, vocab_size=100, use_cache=False, **sizes)
    with fake_tensors():
        module = getattr(transformers, f"{name}ForConditionalGeneration")(config).train()
        ids = torch.zeros(2, 16, dtype=torch.long)
    captured = capture(module, (), {"input_ids": ids, "labels": ids}, loss="loss", costs="flops")
    wanted = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert wanted == {each.name for each in captured.results_of("gradient") if each.node is not None}
    assert captured.random_ops
    assert type(captured.outputs_spec.unflatten([0] * captured.outputs_spec.num_leaves)).__name__ == "Seq2SeqLMOutput"
