"""TensorFlow Lite models with another batch."""

from pathlib import Path

import pytest
from refusals import refused
from shell import shell

pytest.importorskip("tflite")
pytest.importorskip("flatbuffers")

from deploy_models import FLOAT, concat, pool, relu, with_branches
from tflite_models import G, O, T, model

from remat.deploy import Runtime, Search, check_models, deploy, read_deployable, write_model
from remat.deploy.litert import LitertPlanner
from remat.deploy.runtimes import RULES
from remat.deploy.tflite_file import TfliteFile

SHAPES = [(1, 8, 8, 8)] * 3 + [(1, 2, 2, 8)] * 2 + [(1, 2, 2, 16)]


def two_pools(fixed: tuple[int, ...] = ()) -> bytes:
    """Return two relus, each pooled, whose tensors have an open batch, except those that are `fixed`."""
    named = [
        T(f"t{k}", shape, FLOAT, signature=() if k in fixed else (-1, *shape[1:])) for k, shape in enumerate(SHAPES)
    ]
    ops: list[O] = [relu(0, 1), relu(0, 2), pool(1, 3, 4), pool(2, 4, 4), concat((3, 4), 5, 3)]
    return model(G(named, ops, (0,), (5,)))


def test_order_and_arena_for_a_batch(tmp_path: Path) -> None:
    """All tensors are multiples of 64 bytes, so eight images need eight times as much; the signature stays open."""
    (tmp_path / "old.tflite").write_bytes(two_pools())
    one = deploy(TfliteFile(two_pools()), "litert", Search(time_limit=10, measure=False))
    file = read_deployable(tmp_path / "old.tflite", {"batch": 8})
    found = deploy(file, "litert", Search(time_limit=10, measure=False))
    assert (found.before, found.after, found.proved) == (8 * 6144 + 1024, 8 * one.after, one.proved)
    assert isinstance(found.file, TfliteFile)
    entries = found.file.tables[0].tensors
    assert [entry.shape[0] for entry in entries] == [8] * 6
    assert all(entry.is_open for entry in entries)


def test_refused_batches(tmp_path: Path) -> None:
    path = tmp_path / "old.tflite"
    for data, dims, culprit in (
        (two_pools(), {"rows": 8}, "rows"),
        (two_pools(), {"batch": 0}, "batch"),
        (two_pools(tuple(range(6))), {"batch": 8}, "batch"),
        (two_pools((3,)), {"batch": 8}, "t3"),
    ):
        path.write_bytes(data)
        with refused("format.dim", culprit=culprit):
            read_deployable(path, dims)
    path.write_bytes(with_branches())
    with refused("format.subgraph"):
        read_deployable(path, {"batch": 8})
    path.write_bytes(two_pools())
    with refused("format.dim", culprit="batch"):
        deploy(read_deployable(path, {"batch": 8}), "tflm")
    with refused("format.dim", culprit="batch"):
        deploy(read_deployable(path, {"batch": 8}), "litert", Search(rewrite=True))
    ran = shell("deploy", path, "-o", tmp_path / "new.tflite", "--dim", "batch=8", "-q")
    assert ran.code == 2
    assert "--runtime litert" in ran.err


@pytest.mark.slow
def test_batch_in_litert(tmp_path: Path) -> None:
    """Both models run with eight images: equal outputs, and the predicted arenas."""
    pytest.importorskip(RULES[Runtime.LITERT].module)
    old, new = tmp_path / "old.tflite", tmp_path / "new.tflite"
    old.write_bytes(two_pools())
    file = read_deployable(old, {"batch": 8})
    assert isinstance(file, TfliteFile)
    found = deploy(file, "litert", Search(time_limit=20))
    write_model(found.file, new, old)
    check = check_models(old, new, Runtime.LITERT, {"batch": 8})
    assert (check.before, check.after) == (found.before, found.after)
    assert found.before == LitertPlanner(file).arena()
