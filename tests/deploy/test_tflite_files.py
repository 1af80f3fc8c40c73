"""TensorFlow Lite files with another order, recomputation and addresses."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

pytest.importorskip("tflite")
pytest.importorskip("flatbuffers")

from deploy_models import (
    FLOAT,
    INT32,
    chain,
    concat,
    idle_input,
    irregular,
    mean,
    random_model,
    random_schedule,
    relu,
    sum_of_three,
    tensors,
    to_scalar,
    two_pools,
    with_branches,
    with_loop,
    with_resource,
    with_view,
)  # fmt: skip
from tflite_models import OPS, G, O, T, model, tflite

from remat.deploy import Search, deploy, deployed, read_model_file, rewritten, write_model
from remat.deploy.arena import check_plan, in_place_pairs, lifetimes, runtime_head
from remat.deploy.dataflow import check_same, numbers, sequence
from remat.deploy.flat import FlatBuffer, in_front, links, table
from remat.deploy.libstdcxx import set_order, sorted_order
from remat.deploy.litert import LitertPlanner
from remat.deploy.scratch import kernel_scratch, reference_scratch
from remat.deploy.tflite_file import TfliteFile
from remat.graphs.formats.tflite.assembly import RESOURCES
from remat.runtime import interruption
from remat.schedule import Schedule, validate

#: Models, scratch by operator, and heads as measured with tflite_micro 0.dev20261023, in bytes.
HEADS = {
    "chain of 5 floats": (chain(5), {}, 64),
    "chain of 16 floats": (chain(16), {}, 128),
    "relus, pools": (two_pools(), {}, 6144),
    "relu, pool, relu, pool": (two_pools("r p r p c"), {}, 4224),
    "an output on the way": (chain(64, 3, (1, 3)), {}, 768),
    "an input that no op reads": (idle_input(), {}, 2816),
    "a view": (with_view(), {}, 512),
    "add_n": (sum_of_three(), {2: 32}, 1056),
    "mean": (mean(), {0: 32}, 1072),
    "if": (with_branches(), {}, 1040),
    "while": (with_loop(), {}, 1072),
    "call once": (with_resource(), {}, 768),
    "a constant of no bytes": (to_scalar(), {}, 32),
}


#: Arenas of the same models in LiteRT without delegates (ai_edge_litert 2.3.0), without temporary tensors, in bytes.
LITERT = dict(zip(HEADS, (148, 192, 6272, 4352, 1024, 3072, 768, 1024, 1040, 576, 580, 1024), strict=False))
#: Heads with outputs in place of inputs, where that needs less.
IN_PLACE = {"chain of 5 floats": 32, "chain of 16 floats": 64, "relus, pools": 4224, "an output on the way": 512,
            "a view": 256}  # fmt: skip


#: Fields of the main table: a number, and references.
MODEL = {0: 4} | dict.fromkeys(range(1, 10), 0)


def schedule_of(schedule: str) -> Schedule:
    return Schedule.from_steps([("compute", name) for name in schedule.split()])


@pytest.mark.parametrize(("data", "scratch", "head"), HEADS.values(), ids=HEADS)
def test_predicted_heads_equal_measured_heads(data: bytes, scratch: dict[int, int], head: int) -> None:
    assert runtime_head(TfliteFile(data), scratch) == head


def test_predicted_arenas_of_litert_equal_measured_ones() -> None:
    assert {name: LitertPlanner(TfliteFile(HEADS[name][0])).arena() for name in LITERT} == LITERT
    with_temporary = LitertPlanner(TfliteFile(sum_of_three()), {2: [256]})
    assert with_temporary.arena() == 1280


def test_litert_places_equal_tensors_as_sort_leaves_them() -> None:
    """Results and temporary tensors of four sums have 4 bytes each; measured with ai_edge_litert 2.3.0."""
    temporaries = {position: [8, 4, 4, 0] for position in range(7, 11)}
    assert LitertPlanner(TfliteFile(with_resource(4)), temporaries).arena() == 1732


def test_orders_of_the_cpp_library() -> None:
    """Orders by g++ 12: a hash set that grows once, and 18 rows of three values."""
    numbers = [4, 17, 30, 5, 18, 43, 56, 69, 82, 95, 108, 121, 134, 147, 160, 0]
    assert set_order(numbers) == [0, 160, 147, 4, 17, 30, 43, 56, 69, 82, 95, 108, 121, 5, 134, 18]
    rows = sorted_order([(k % 3, k) for k in range(18)], key=lambda row: row[0])
    assert [k for _, k in rows] == [0, 3, 15, 6, 12, 9, 1, 16, 13, 10, 7, 4, 8, 11, 5, 14, 2, 17]


@pytest.mark.parametrize("name", HEADS)
def test_outputs_in_place_of_inputs(name: str) -> None:
    """No head grows; the plan puts outputs of reference kernels on inputs that die, views included."""
    data, _, head = HEADS[name]
    found = deploy(TfliteFile(data), search=Search(time_limit=20, measure=False))
    assert (found.before, found.after, found.proved) == (head, IN_PLACE.get(name, min(head, found.after)), True)
    assert isinstance(found.file, TfliteFile)
    if found.after < head:
        check_plan(found.file, found.after, kernel_scratch(found.file, measure=False)[0])


def test_inputs_that_stay_are_not_overwritten() -> None:
    """The input of the second relu is read again, and the kernel of SIN has not been tested."""
    add = O(OPS.ADD, (1, 2), (3,), options=("AddOptions", {}))
    file = TfliteFile(model(G(tensors(*[(1, 16)] * 4), [relu(0, 1), relu(1, 2), add], (0,), (3,))))
    assert in_place_pairs(file) == [(1, 0), (3, 1)]
    check_plan(file.with_plan([0, 0, 64, 0]), 128)
    with refused("format.plan"):
        check_plan(file.with_plan([0, 0, 0, 64]), 128)
    sine = O(OPS.SIN, (0,), (1,))
    with refused("format.plan"):
        check_plan(TfliteFile(model(G(tensors((1, 16), (1, 16)), [sine], (0,), (1,)))).with_plan([0, 0]), 64)


def test_scratch_moves_with_its_operator() -> None:
    """Three branches of a relu and a sum: the sums, which ask for scratch, come earlier in the new model."""
    axes = T("axes", (2,), INT32, struct.pack("<2i", 1, 2))
    shapes = [*[(1, 8, 8, 8)] * 4, *[(1, 8)] * 3, (1, 24)]
    ops = [O(OPS.SIN, (0,), (k,)) for k in (1, 2, 3)]
    ops += [O(OPS.SUM, (k, 8), (k + 3,), options=("ReducerOptions", {})) for k in (1, 2, 3)]
    file = TfliteFile(model(G([*tensors(*shapes), axes], [*ops, concat((4, 5, 6), 7, 1)], (0,), (7,))))
    found = deploy(file, search=Search(time_limit=20, measure=False))
    assert isinstance(found.file, TfliteFile)
    scratch = kernel_scratch(found.file, measure=False)[0]
    assert sorted(kernel_scratch(file, measure=False)[0].values()) == sorted(scratch.values()) == [32, 32, 32]
    assert scratch.keys() != {3, 4, 5}
    assert (found.before, found.after) == (runtime_head(file, {3: 32, 4: 32, 5: 32}), runtime_head(found.file, scratch))
    assert found.proved


def test_scratch_of_reference_kernels() -> None:
    """Sizes by the formulas of the public kernel sources; each request is rounded up to 16 bytes."""
    from flatbuffers import flexbuffers

    kinds = tflite.TensorType

    def scratch(op: O, *operands: T) -> int:
        file = TfliteFile(model(G(list(operands), [op], (0,), op.outputs)))
        return reference_scratch(file, 0)

    x8, y8 = (T(name, (1, 4, 4, 3), kinds.INT8) for name in "xy")
    axes = T("axes", (2,), INT32, struct.pack("<2i", 1, 2))
    pads = T("pads", (4, 2), INT32, bytes(32))
    assert scratch(O(OPS.MEAN, (0, 1), (2,)), x8, axes, T("y", (1, 3), kinds.INT8)) == 16 + 16 + 16
    assert scratch(O(OPS.REDUCE_MAX, (0, 1), (2,)), x8, axes, T("y", (1, 3), kinds.INT8)) == 16 + 16
    assert scratch(O(OPS.MIRROR_PAD, (0, 1), (2,)), x8, pads, y8) == 16 + 16
    weights = T("w", (5, 3, 3, 3), kinds.INT4, 68)
    assert scratch(O(OPS.CONV_2D, (0, 1), (2,)), x8, weights, T("y", (1, 4, 4, 5), kinds.INT8)) == 144  # 135 elements
    shape, bias = T("shape", (4,), INT32, bytes(16)), T("b", (2,), kinds.INT16, 4)
    filters, wide = T("w", (2, 3, 3, 3), data=54), T("y", (1, 8, 8, 2), kinds.INT8)
    transposed = O(OPS.TRANSPOSE_CONV, (1, 2, 0), (3,))
    assert scratch(transposed, x8, shape, filters, wide) == 128 * 4
    x16, y16 = T("x", (1, 4, 4, 3), kinds.INT16), T("y", (1, 8, 8, 2), kinds.INT16)
    with_bias = O(OPS.TRANSPOSE_CONV, (1, 2, 0, 3), (4,))
    assert scratch(with_bias, x16, shape, filters, bias, y16) == 128 * 8 + 16
    row, state = T("x", (1, 8), kinds.INT8), T("s", (1, 36), kinds.INT16, variable=True)
    features, times = T("f", (12, 8), kinds.INT8, 96), T("t", (12, 3), kinds.INT8, 36)
    svdf = O(OPS.SVDF, (0, 1, 2, -1, 3), (4,))
    assert scratch(svdf, row, features, times, state, T("y", (1, 6), kinds.INT8)) == 48 + 32
    cells = T("c", (1, 20), kinds.INT16, variable=True)
    lstm = O(OPS.UNIDIRECTIONAL_SEQUENCE_LSTM, (0, *[-1] * 18, 1), (2,))
    assert scratch(lstm, T("x", (1, 5, 8), kinds.INT8), cells, T("y", (1, 5, 20), kinds.INT8)) == 4 * 48
    options = bytes(flexbuffers.Dumps({"max_detections": 10, "num_classes": 3, "y_scale": 10.0}))
    boxes, classes = T("b", (1, 64, 4), FLOAT), T("c", (1, 64, 4), FLOAT)
    detect = O(OPS.CUSTOM, (0, 1), (2,), custom="TFLite_Detection_PostProcess", custom_options=options)
    words = 4 * 64 + 4 * 64 + 3 * 64 + 3 * 640 + 640 + 640
    assert scratch(detect, boxes, classes, T("y", (1, 10, 4), FLOAT)) == 64 + 4 * words


def test_deployed_file_ends_with_the_original(tmp_path: Path) -> None:
    """Deploying again changes nothing."""
    (tmp_path / "old.tflite").write_bytes(two_pools())
    file = read_model_file(tmp_path / "old.tflite")
    found = deploy(file, search=Search(time_limit=20, measure=False, in_place=False))
    assert (found.before, found.after, found.bound, found.proved) == (6144, 4224, 4224, True)
    assert found.file.data.endswith(file.data)
    write_model(found.file, tmp_path / "new.tflite", tmp_path / "old.tflite")
    new = read_model_file(tmp_path / "new.tflite")
    assert isinstance(new, TfliteFile)
    assert new.graph.reference_peak == 4224
    assert runtime_head(new) == 4224
    again = deploy(new, search=Search(time_limit=20, measure=False))
    assert (again.before, again.after) == (4224, 4224)
    assert again.file.data == new.data
    assert deploy(file, "litert", Search(time_limit=20)).after == 4352  # inputs stay


def test_offsets_of_views_and_idle_tensors() -> None:
    def offsets(data: bytes) -> list[int]:
        made = deployed(TfliteFile(data), Schedule.reference(TfliteFile(data).graph))
        assert isinstance(made, TfliteFile)
        return list(made.plan() or ())

    x, a, view, _ = offsets(with_view())
    assert view == a != x
    constant = T("w", (64,), data=64)
    graph = G([*tensors((1, 64), (1, 64), (1, 100)), constant, T("s", (4,), variable=True)],
              [O(OPS.RELU, (0,), (1,))], (0,), (1,))  # fmt: skip
    assert offsets(model(graph))[2:] == [0, -1, -1]
    assert len(offsets(with_branches())) == 9  # of all subgraphs


def test_recomputed_op_appears_twice() -> None:
    add = O(OPS.ADD, (2, 1), (3,), options=("AddOptions", {}))
    file = TfliteFile(model(G(tensors(*[(1, 8)] * 4), [relu(0, 1), relu(1, 2), add], (0,), (3,))))
    schedule = schedule_of("inputs RELU_0 RELU_1 RELU_0 ADD_2 RELU_1")  # nothing reads the last
    made = file.scheduled(schedule)
    assert [(each.reads, each.writes) for each in made.operators] == [
        ((0,), (4,)), ((4,), (2,)), ((0,), (1,)), ((2, 1), (3,)),
    ]  # fmt: skip
    assert made.outputs == file.outputs
    assert [entry.name for entry in made.tables[0].tensors[4:]] == ["t1#1"]
    assert made.graph.reference_peak == validate(file.graph, schedule).peak


@pytest.mark.parametrize("seed", range(0, 24, 4))
def test_random_models_and_schedules(seed: int) -> None:
    """The peak is at most that of the schedule; the writer checks the dataflow before it returns."""
    for k in range(seed, seed + 4):
        file = TfliteFile(random_model(k))
        assert not file.remarks
        schedule = random_schedule(file.graph, k)
        made = deployed(file, schedule)
        assert isinstance(made, TfliteFile)
        assert made.graph.reference_peak <= validate(file.graph, schedule).peak
        assert made.data.endswith(file.data)
        held = lifetimes(made)
        rounded = -(-held.size // 16) * 16
        assert runtime_head(made) <= rounded[held.first >= 0].sum()


def test_invalid_files_are_not_written() -> None:
    """The runtimes check neither order nor overlap."""
    file = TfliteFile(two_pools())
    swapped = [file.operators[k] for k in (2, 0, 1, 3, 4)]
    with refused("format.not-topological", culprit="op 2"):
        numbers(swapped)
    with refused("format.other-operator"):
        check_same(file.operators, [*file.operators, replace(file.operators[0], content=b"another", writes=(9,))], [])
    with refused("format.other-output"):
        check_same(file.operators, file.operators, [(3, 4), (5, 3)])
    with refused("format.plan"):
        check_plan(file.with_plan([0, 2048, 2048, 4096, 0, 256]), 6144)
    right = TfliteFile(two_pools("r p r p c")).with_plan([0, 2048, 2048, 4096, 0, 256])
    check_plan(right, 4224)  # x lies at 0 until the second relu has read it
    with refused("format.plan"):
        check_plan(TfliteFile(with_view()).with_plan([0, 256, 512, 0]), 768)
    with refused("format.schedule"):
        deployed(file, schedule_of("inputs MAX_POOL_2D_2"))


def test_variables_keep_their_order() -> None:
    graph = G([*tensors((1, 8), (1, 8), (1, 8)), T("s", (1, 8), variable=True)],
              [O(OPS.ADD, (0, 3), (1,)), O(OPS.MUL, (0, 3), (2,))], (0,), (1, 2))  # fmt: skip
    file = TfliteFile(model(graph))
    with refused("format.other-output"):
        file.scheduled(schedule_of("inputs MUL_1 ADD_0"))
    with refused("format.variables"):
        rewritten(file, file.graph)
    assert deploy(file, search=Search(time_limit=10, measure=False)).file.operators[0].label == "op 0 (ADD)"


def test_ops_on_resources_keep_their_order() -> None:
    """The search moves branches around CALL_ONCE, VAR_HANDLE and READ_VARIABLE, which touch no common tensor."""
    file = TfliteFile(with_resource(pools=4))
    found = deploy(file, search=Search(time_limit=10, measure=False))
    assert isinstance(found.file, TfliteFile)
    assert found.after < found.before
    kinds = [entry.kind for entry in found.file.tables[0].operators]
    assert [kind for kind in kinds if kind in RESOURCES] == ["CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE"]
    assert not any(op.recomputable for op in file.graph.ops if op.type in RESOURCES)
    with refused("format.other-output"):
        file.in_sequence(sequence(file.operators, [1, 0, *range(2, len(file.operators))], file.outputs))


def test_unsupported_files_are_refused(tmp_path: Path) -> None:
    file, no_subgraph = TfliteFile(chain(4)), tmp_path / "none.tflite"
    no_subgraph.write_bytes(in_front(table({0: struct.pack("<I", 3)}), file.data))
    flat = file.flat
    newer = table({**flat.fields(flat.root, MODEL, "model"), 12: struct.pack("<I", 7)})
    with refused("format.newer-schema"):
        TfliteFile(in_front(newer, file.data)).with_plan([0, 16, 0])
    behind = table({1: struct.pack("<Q", 4096), 2: struct.pack("<Q", 16)})  # content of a buffer after the tables
    with refused("format.outside-buffers"):
        TfliteFile(
            in_front(table({**flat.fields(flat.root, MODEL, "model"), 4: links([behind])}), file.data)
        ).with_plan([0, 16, 0])
    with refused("format.flat-buffer"):
        FlatBuffer(file.data[:40]).tables(file.flat.root, 2)
    with refused("format.plan"):
        file.with_plan([0])
    with refused("format.plan"):
        file.with_plan([0, 2**31, 0])
    with refused("format.flat-buffer"):
        FlatBuffer(file.data).fields(flat.root, dict.fromkeys(MODEL, len(file.data)), "the model")
    with refused("format.tflite"):
        read_model_file(no_subgraph)


def test_irregular_networks_are_proved_least() -> None:
    found = deploy(TfliteFile(irregular(0)), search=Search(time_limit=20, measure=False))
    assert (found.before, found.after, found.proved) == (40_960, 20_480, True)
    assert isinstance(found.file, TfliteFile)
    assert np.array(found.file.plan()).max() < 20_480


def test_interrupted_search_still_writes_a_model() -> None:
    """After Ctrl-C the best order so far is written and read back."""

    def stop(progress: object) -> None:
        interruption.request()

    with interruption.interrupts():
        found = deploy(TfliteFile(two_pools()), search=Search(time_limit=20, measure=False, on_progress=stop))
        assert interruption.interrupted()
    assert found.after <= found.before
    assert isinstance(found.file, TfliteFile)
