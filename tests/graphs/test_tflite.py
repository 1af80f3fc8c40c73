"""Reader of TensorFlow Lite models: bytes, multiply-accumulates, order, and invalid or hostile files."""

import random
import struct
from pathlib import Path

import pytest

tflite = pytest.importorskip("tflite")

from helpers import at_most, costs, sizes  # noqa: E402
from refusals import refused  # noqa: E402
from tflite_models import OPS, G, O, T, keyword_spotting, model  # noqa: E402

from remat import read_graph  # noqa: E402
from remat.errors import RematError  # noqa: E402
from remat.graphs import ComputeGraph  # noqa: E402
from remat.graphs.formats.tflite import graph_from_tflite  # noqa: E402
from remat.io.limits import read_limits  # noqa: E402

TYPES = tflite.TensorType


@pytest.mark.parametrize("new_field_only", [False, True])
def test_bytes_costs_and_order(new_field_only: bool) -> None:
    graph = graph_from_tflite(model(keyword_spotting(), new_field_only=new_field_only))
    assert costs(graph) == {
        "inputs": 0,
        "DEPTHWISE_CONV_2D_0": 256 * 9,
        "CONV_2D_1": 1024 * 4,
        "AVERAGE_POOL_2D_2": 16 * 64,
        "FULLY_CONNECTED_4": 160,
    }
    assert sizes(graph) == {
        "serving/x": 256, "net/block/depthwise;net/block/bias": 256, "net/block/pointwise": 1024, "net/pool": 16,
        "y": 10,
    }  # fmt: skip
    assert graph.ops[-1].inputs == ("net/pool",)
    assert (graph.cost_unit, graph.constant_memory, graph.outputs) == ("mac", 260, ("y",))
    assert graph.meta["macs"] == 256 * 9 + 4096 + 160
    assert graph.meta["modules"]["DEPTHWISE_CONV_2D_0"] == "net.block"
    assert graph.reference_peak == 256 + 1024  # the input is dead by then
    assert not graph.ops[0].recomputable
    kept = graph_from_tflite(model(keyword_spotting()), views="keep")
    assert (sizes(kept)["flat"], costs(kept)["RESHAPE_3"]) == (16, 0)


def small(ops: list[O], tensors: list[T], **options: bool) -> bytes:
    """Return a model from `x` (4 elements, tensor 0) to `y` (tensor 1)."""
    return model(G([T("x", (1, 4)), T("y", (1, 4)), *tensors], ops, (0,), (1,)), **options)


def test_costs_of_other_products() -> None:
    f = TYPES.FLOAT32
    tensors = [
        T("x", (2, 3, 3, 4), f), T("up", (2, 6, 6, 5), f), T("w", (5, 2, 2, 4), f, data=320), T("s", (4,), f, data=16),
        T("a", (2, 6, 7), f), T("b", (2, 7, 8), f), T("ab", (2, 6, 8), f), T("m", (2, 5), f),
        T("n", (2, 5), TYPES.INT4), T("axes", (2,), TYPES.INT32, data=8),
    ]  # fmt: skip
    ops = [
        O(OPS.TRANSPOSE_CONV, (3, 2, 0), (1,)), O(OPS.BATCH_MATMUL, (4, 5), (6,)), O(OPS.MEAN, (1, 9), (7,)),
        O(OPS.QUANTIZE, (7,), (8,)),
    ]  # fmt: skip
    graph = graph_from_tflite(model(G(tensors, ops, (0, 4, 5), (6, 8))))
    assert costs(graph) == {
        "inputs": 0, "TRANSPOSE_CONV_0": 72 * 5 * 4, "BATCH_MATMUL_1": 96 * 7, "MEAN_2": 360 + 2, "QUANTIZE_3": 10,
    }  # fmt: skip
    assert sizes(graph)["n"] == 5
    assert sizes(graph)["up"] == 4 * 360


def test_computed_constants_are_no_ops() -> None:
    """Half-precision weights and shapes."""
    tensors = [T("half", (1, 4), TYPES.FLOAT16, data=8), T("w", (1, 4), TYPES.FLOAT32), T("shape", (2,), TYPES.INT32)]
    ops = [O(OPS.DEQUANTIZE, (2,), (3,)), O(OPS.SHAPE, (0,), (4,)), O(OPS.BROADCAST_TO, (3, 4), (1,))]
    data = model(
        G([T("x", (1, 4)), T("y", (1, 4)), *tensors, T("z", (1, 4))], [*ops, O(OPS.ADD, (0, 3), (5,))], (0,), (5,))
    )
    graph = graph_from_tflite(data)
    assert costs(graph) == {"inputs": 0, "ADD_3": 4}
    assert graph.constant_memory == 16


def test_variables_are_constant_memory_and_their_writers_run_once() -> None:
    weights = [T("u", (8, 4), data=32), T("v", (8, 2), data=16), T("state", (1, 16), variable=True)]
    graph = graph_from_tflite(small([O(OPS.SVDF, (0, 2, 3, -1, 4), (1,))], weights))
    assert costs(graph)["SVDF_0"] == 32 + 16
    assert graph.constant_memory == 48 + 16
    assert not graph.ops[1].recomputable
    assert sizes(graph) == {"x": 4, "y": 4}


def test_new_ops_custom_ops_and_open_dimensions() -> None:
    remarks: list[str] = []
    ops = [O(OPS.GELU, (0,), (2,)), O(OPS.CUSTOM, (2,), (1,), custom="Mine")]
    graph = graph_from_tflite(small(ops, [T("g", (1, 4), signature=(-1, 4))]), remarks=remarks)
    assert [op.type for op in graph.ops] == ["inputs", "GELU", "custom.Mine"]
    assert remarks == [
        "open dimensions are taken as in the file's shapes (mostly 1): tensor 2 ('g')",
        "ops without a formula cost one for each element written: custom.Mine",
    ]


@pytest.mark.parametrize(
    ("kind", "options", "names", "cost"),
    [
        (OPS.IF, "IfOptions", ("ThenSubgraphIndex", "ElseSubgraphIndex"), 8 + 12),
        (OPS.WHILE, "WhileOptions", ("CondSubgraphIndex", "BodySubgraphIndex"), 8 + 8 + 12),
    ],
)
def test_memory_and_cost_of_subgraphs(kind: int, options: str, names: tuple[str, str], cost: int) -> None:
    """An IF costs its dearer branch, a WHILE one run of both; the workspace is the larger peak."""

    def chain(length: int) -> G:
        tensors = [T(f"a{k}", (1, 4 * k)) for k in range(1, length + 1)]
        return G(tensors, [O(OPS.TANH, (k,), (k + 1,)) for k in range(length - 1)], (0,), (length - 1,), f"s{length}")

    def calling(first: int) -> bytes:
        op = O(kind, (1, 0), (2,), options=(options, {names[0]: first, names[1]: 2}))
        main = G([T("x", (1, 4)), T("c", (1,), TYPES.BOOL), T("y", (1, 4))], [op], (0, 1), (2,))
        return model(main, chain(2), chain(3))

    remarks: list[str] = []
    graph = graph_from_tflite(calling(1), remarks=remarks)
    assert (graph.ops[1].workspace, graph.ops[1].cost) == (8 + 12, cost)
    assert graph.reference_peak == 4 + 1 + 4 + 20
    assert len(remarks) == 1
    with refused("format.subgraph", culprit="op 0"):
        graph_from_tflite(calling(7))


def test_subgraphs_that_run_each_other() -> None:
    def calling(subgraph: int) -> G:
        op = O(OPS.CALL, (0,), (1,), options=("CallOptions", {"Subgraph": subgraph}))
        return G([T("a", (1, 4)), T("b", (1, 4))], [op], (0,), (1,))

    last = G([T("a", (1, 4)), T("b", (1, 4))], [O(OPS.RELU, (0,), (1,))], (0,), (1,))
    assert graph_from_tflite(model(*map(calling, range(1, 16)), last)).reference_peak == 16 * 8
    with refused("format.subgraph"):
        graph_from_tflite(model(*map(calling, range(1, 19)), last))
    with refused("format.subgraph"):
        graph_from_tflite(model(calling(1), calling(1)))


def test_constants_of_no_bytes() -> None:
    """The shape of a scalar is a constant; an empty tensor that an op must write first is not."""
    empty = T("e", (0,), TYPES.INT32)
    graph = graph_from_tflite(small([O(OPS.RESHAPE, (0, 2), (1,))], [T("shape", (0,), TYPES.INT32, b"")]))
    assert (graph.outputs, graph.constant_memory) == (("x",), 0)
    with refused("graph-file.tflite"):
        graph_from_tflite(small([O(OPS.TANH, (2,), (1,)), O(OPS.TANH, (0,), (2,))], [empty]))


def test_subgraphs_and_control_flow() -> None:
    main = G([T("x", (1, 4)), T("c", (1,), TYPES.BOOL), T("y", (1, 4))], [O(OPS.IF, (1, 0), (2,))], (0, 1), (2,))
    inner = G([T("a", (1, 4)), T("b", (1, 4))], [O(OPS.RELU, (0,), (1,))], (0,), (1,), "then")
    data = model(main, inner)
    with refused("format.control-flow"):
        graph_from_tflite(data, control_flow="refuse")
    remarks: list[str] = []
    assert graph_from_tflite(data, remarks=remarks).ops[1].inputs == ("c", "x")
    assert remarks == ["what subgraphs cost and hold is not counted: IF", "1 more subgraphs are not read"]
    assert graph_from_tflite(data, subgraph="then").digest == graph_from_tflite(data, subgraph=1).digest
    with refused("format.subgraph", culprit="else"):
        graph_from_tflite(data, subgraph="else")


BROKEN = {
    "nothing writes it": small([O(OPS.ADD, (0, 2), (1,))], [T("z", (1, 4))]),
    "written twice": small([O(OPS.RELU, (0,), (1,)), O(OPS.RELU, (0,), (1,))], []),
    "no output": small([O(OPS.RELU, (0,), (2,))], [T("z", (1, 4))]),
    "text": small([O(OPS.RELU, (0,), (2,)), O(OPS.RELU, (2,), (1,))], [T("z", (1,), TYPES.STRING)]),
    "no shape": small([O(OPS.RELU, (0,), (2,)), O(OPS.RELU, (2,), (1,))], [T("z", (1, -1))]),
    "no such tensor": small([O(OPS.RELU, (7,), (1,))], []),
    "too few inputs": small([O(OPS.CONV_2D, (0,), (1,))], []),
    "nothing": b"\x10\0\0\0TFL3",
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_invalid_models_are_refused(fault: str) -> None:
    with refused("graph-file.tflite"):
        graph_from_tflite(BROKEN[fault])


def test_wild_offsets_are_refused() -> None:
    """Each 32-bit word in turn is replaced by a wild number; the file is read or refused."""
    data = model(keyword_spotting())
    rng = random.Random(1)
    faults = []
    for place in range(8, len(data) - 4, 4):
        wild = rng.choice([0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0, len(data), rng.randrange(len(data))])
        try:
            graph_from_tflite(data[:place] + struct.pack("<I", wild) + data[place + 4 :])
        except RematError as error:
            faults.append(str(error))
    assert len(faults) > 50 and "\n" not in "".join(faults)


def test_shared_names_count_for_each_tensor() -> None:
    def graph(length: int) -> ComputeGraph:
        same = [T("n" * length, (1, 4)) for _ in range(2000)]
        return graph_from_tflite(small([O(OPS.ADD, (0, 0), (1,))], same))

    with at_most(5), read_limits(memory="24MiB"):
        with refused("format.read-memory"):
            graph(4096)
        assert graph(10).ops


def test_files_are_recognised_by_their_identifier(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(model(keyword_spotting()))
    assert read_graph(path, views="keep").reference_peak == 1280
    with refused("graph-file.option", culprit="dims"):
        read_graph(path, dims={"batch": 2})
    path.write_bytes(model(keyword_spotting())[:300])
    with refused("graph-file.tflite", culprit="model.bin"):
        read_graph(path)


def test_reference_kernels_write_in_place_on_request() -> None:
    def relus(kind: int) -> bytes:
        shapes = {"x": (1, 8), "a": (1, 8), "b": (1, 8), "y": (1, 8), "one": (1, 1), "z": (1, 8)}
        tensors = [T(name, shape, kind) for name, shape in shapes.items()]
        ops = [
            O(OPS.RELU, (0,), (1,)), O(OPS.RESHAPE, (1,), (2,)), O(OPS.ADD, (2, 0), (3,)), O(OPS.MUL, (4, 3), (5,))
        ]  # fmt: skip
        return model(G(tensors, ops, (0, 4), (5,)))

    assert not graph_from_tflite(relus(TYPES.FLOAT32)).in_place
    graph = graph_from_tflite(relus(TYPES.FLOAT32), in_place=True)
    assert [op.in_place for op in graph.ops[1:]] == [(("a", "x"),), (("y", "a"), ("y", "x")), (("z", "y"),)]
    assert not graph_from_tflite(relus(TYPES.INT8), in_place=True).in_place
    with refused("format.option"):
        graph_from_tflite(relus(TYPES.INT8), in_place="yes")
