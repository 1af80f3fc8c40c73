"""ONNX models of PyTorch's exporter: counts, bytes and FLOPs against formulas and published totals."""

import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from models import FULL, resnet  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402

from remat import read_graph  # noqa: E402
from remat.graphs.formats.onnx import graph_from_onnx  # noqa: E402

pytestmark = pytest.mark.slow


def exported(module: nn.Module, *inputs: torch.Tensor, optimize: bool = True, **options: object) -> bytes:
    pytest.importorskip("onnxscript")  # importing takes a second
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module.eval(), inputs, dynamo=True, optimize=optimize, verbose=False, **options)
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def test_products_of_an_attention_layer_with_open_dimensions() -> None:
    """For each of 3·7 tokens 2·(4·16² + 2·16·32) FLOPs in matrix products, and 4·7·16 in attention."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    shapes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")},)
    for optimize in (True, False):
        data = exported(layer, torch.randn(2, 5, 16), optimize=optimize, dynamic_shapes=shapes)
        with refused("format.open-dims"):
            graph_from_onnx(data)
        graph = graph_from_onnx(data, dims={"batch": 3, "seq": 7})
        products = sum(op.cost for op in graph.ops if op.type == "MatMul")
        products += sum(op.cost // 33 * 32 if op.cost % 33 == 0 else op.cost for op in graph.ops if op.type == "Gemm")
        assert products == 21 * (2 * (4 * 256 + 2 * 512) + 4 * 7 * 16)
        assert set(graph.meta["modules"].values()) >= {"self_attn", "linear1", "linear2", "norm1", "norm2"}


def test_flops_of_resnet50() -> None:
    """4.09 G multiply-accumulates per image in convolutions and the last layer."""
    module, args = resnet(**{**FULL["resnet"], "batch": 8}, loss=False)
    graph = graph_from_onnx(exported(module, *args))
    products = sum(op.cost for op in graph.ops if op.type in ("Conv", "Gemm"))
    assert 65.42e9 < products < 65.6e9
    assert sum(op.type == "Conv" for op in graph.ops) == 53
    assert products < graph.base_cost < 1.01 * products
    assert 25.5e6 * 4 < graph.constant_memory < 25.7e6 * 4


def test_flops_and_constants_of_bert(tmp_path: Path) -> None:
    """12·(24·768² + 4·512·768) FLOPs for each of 8·512 tokens, plus element-wise ops; 436 MB of weights."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(attn_implementation="eager")
    model = transformers.BertModel(config, add_pooling_layer=False)
    path = tmp_path / "bert.onnx"
    path.write_bytes(exported(model, torch.zeros(8, 512, dtype=torch.long)))
    assert path.stat().st_size > 400_000_000
    graph = read_graph(path)
    path.unlink()
    # weights, and embeddings of positions and token types, which do not depend on the tokens
    assert 435e6 < graph.constant_memory < 460e6
    products = sum(op.cost for op in graph.ops if op.type in ("MatMul", "Gemm"))
    expected = 8 * 512 * 12 * (24 * 768**2 + 4 * 512 * 768)
    assert expected <= products < 1.001 * expected
    assert products < graph.base_cost < 1.01 * products
