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
    chain,
    idle_input,
    irregular,
    mean,
    random_model,
    random_schedule,
    relu,
    sum_of_three,
    tensors,
    two_pools,
    with_branches,
    with_view,
)  # fmt: skip
from tflite_models import OPS, G, O, T, model

from remat.deploy import Search, deploy, deployed, read_model_file, rewritten, write_model
from remat.deploy.arena import check_plan, lifetimes, runtime_head
from remat.deploy.dataflow import check_same, numbers
from remat.deploy.flat import FlatBuffer, in_front, links, table
from remat.deploy.tflite_file import TfliteFile
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
}


#: Fields of the main table: a number, and references.
MODEL = {0: 4} | dict.fromkeys(range(1, 10), 0)


def schedule_of(schedule: str) -> Schedule:
    return Schedule.from_steps([("compute", name) for name in schedule.split()])


@pytest.mark.parametrize(("data", "scratch", "head"), HEADS.values(), ids=HEADS)
def test_predicted_heads_equal_measured_heads(data: bytes, scratch: dict[int, int], head: int) -> None:
    assert runtime_head(TfliteFile(data), scratch) == head


def test_deployed_file_ends_with_the_original(tmp_path: Path) -> None:
    """Deploying again changes nothing."""
    (tmp_path / "old.tflite").write_bytes(two_pools())
    file = read_model_file(tmp_path / "old.tflite")
    found = deploy(file, search=Search(time_limit=20), measure=False)
    assert (found.before, found.after, found.bound, found.proved) == (6144, 4224, 4224, True)
    assert found.file.data.endswith(file.data)
    write_model(found.file, tmp_path / "new.tflite", tmp_path / "old.tflite")
    new = read_model_file(tmp_path / "new.tflite")
    assert isinstance(new, TfliteFile)
    assert new.graph.reference_peak == 4224
    assert runtime_head(new) == 4224
    again = deploy(new, search=Search(time_limit=20), measure=False)
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
    assert deploy(file, search=Search(time_limit=10), measure=False).file.operators[0].label == "op 0 (ADD)"


def test_unsupported_files_are_refused() -> None:
    file = TfliteFile(chain(4))
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


def test_irregular_networks_are_proved_least() -> None:
    found = deploy(TfliteFile(irregular(0)), search=Search(time_limit=20), measure=False)
    assert (found.before, found.after, found.proved) == (40_960, 20_480, True)
    assert isinstance(found.file, TfliteFile)
    assert np.array(found.file.plan()).max() < 20_480
