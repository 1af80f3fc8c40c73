"""Quantised models: sizes of packed elements in graphs and arenas; scales and packed weights stay in the file."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refused

pytest.importorskip("tflite")
pytest.importorskip("flatbuffers")

from deploy_models import quantised_branches, quantised_chain
from tflite_models import tflite

from remat.deploy import Runtime, Search, check_models, deploy, write_model
from remat.deploy.arena import check_plan, runtime_head
from remat.deploy.runs import run_models
from remat.deploy.runtimes import RULES
from remat.deploy.scratch import kernel_scratch
from remat.deploy.tflite_file import TfliteFile
from remat.graphs.formats.tflite import graph_from_tflite
from remat.schedule import Addresses, Schedule, schedule_buffers
from remat.schedule.address_files import TfliteTensors, tflite_offsets

INT4, INT8, INT16 = tflite.TensorType.INT4, tflite.TensorType.INT8, tflite.TensorType.INT16
#: Type and number of elements; bytes of a tensor; head as measured with tflite_micro 0.dev20261023 (None: no kernel).
ELEMENTS = {
    "int4, even": (INT4, 100, 50, 224), "int4, odd": (INT4, 163, 82, 352), "int8": (INT8, 33, 33, 96),
    "int16": (INT16, 33, 66, 160), "bfloat16": (tflite.TensorType.BFLOAT16, 33, 66, 160),
    "int2": (19, 163, 41, None), "uint4": (20, 163, 82, None), "float8": (21, 163, 163, 352),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "elements", "size", "head"), ELEMENTS.values(), ids=ELEMENTS)
def test_packed_elements(kind: int, elements: int, size: int, head: int | None) -> None:
    """Packed in the graph, which is that of LiteRT; a byte each in the arena of TFLM."""
    data = quantised_chain(elements, kind)
    assert [tensor.size for tensor in graph_from_tflite(data, views="keep").tensors] == [size] * 3
    assert head is None or runtime_head(TfliteFile(data)) == head


def test_plan_of_packed_elements_is_refused() -> None:
    graph = graph_from_tflite(quantised_chain(7, INT4))
    buffers = schedule_buffers(graph, Schedule.reference(graph))
    tensors = TfliteTensors.of(graph)
    assert tensors is not None
    with refused("format.packed", culprit="t0"):
        tflite_offsets(Addresses.in_one_memory(buffers, np.zeros(len(buffers), dtype=np.int64)), tensors)


@pytest.mark.parametrize(
    ("weights", "activations", "before", "after"),
    [(INT8, INT8, 1536, 1056), (INT4, INT8, 1600, 1120), (INT8, INT16, 3072, 2112)],
)
def test_quantised_file_stays_at_the_end(weights: int, activations: int, before: int, after: int) -> None:
    file = TfliteFile(quantised_branches(weights, activations))
    assert file.graph.constant_memory == 2 * (32 if weights == INT4 else 64) + 2 * (64 if activations == INT16 else 32)
    found = deploy(file, search=Search(time_limit=10, measure=False))
    assert (found.before, found.after, found.proved) == (before, after, True)
    assert found.file.data.endswith(file.data)
    assert isinstance(found.file, TfliteFile)
    check_plan(found.file, after)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [Runtime.TFLM, Runtime.LITERT])
def test_quantised_models_in_runtimes(runtime: Runtime, tmp_path: Path) -> None:
    """Equal outputs and predicted bytes; TFLM unpacks 4-bit weights into scratch, a byte for each."""
    pytest.importorskip(RULES[runtime].module)
    if runtime is Runtime.TFLM:
        assert kernel_scratch(TfliteFile(quantised_branches(INT4)))[0] == {0: 64, 1: 64}
        known = [(kind, elements, head) for kind, elements, _, head in ELEMENTS.values() if head]
        paths = [tmp_path / f"{k}.tflite" for k, _ in enumerate(known)]
        for path, (kind, elements, _) in zip(paths, known, strict=True):
            path.write_bytes(quantised_chain(elements, kind))
        reports = run_models(runtime, paths, tmp_path, invoke=False)
        assert [each.get("bytes") for each in reports] == [head for *_, head in known]
    for weights, activations in ((INT8, INT8), (INT4, INT8), (INT8, INT16)):
        old, new = tmp_path / "old.tflite", tmp_path / "new.tflite"
        old.write_bytes(quantised_branches(weights, activations))
        found = deploy(TfliteFile(old.read_bytes()), runtime, Search(time_limit=10))
        write_model(found.file, new, old)
        check = check_models(old, new, runtime)
        assert found.after < found.before
        if runtime is Runtime.TFLM:
            assert (check.before, check.after) == (found.before, found.after)
