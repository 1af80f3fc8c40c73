"""Models of ONNX's backend tests: each is read or refused for a listed reason, and no size is wrong."""

import collections
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")

import numpy as np  # noqa: E402

from remat.errors import RematError  # noqa: E402
from remat.graphs.formats.onnx import read_model  # noqa: E402

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
#: Reasons to refuse a model, and the most models of version 1.23.2 that may have them.
REFUSED = {"format.no-size": 69}
#: Name, model, and the recorded inputs and outputs.
Case = tuple[str, Any, list[Any], list[Any]]


def recorded(path: Path, type_: Any) -> Any:
    """Return a recorded array; None if it is no tensor."""
    if type_.WhichOneof("value") != "tensor_type" or not path.exists():
        return None
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def stored_cases() -> Iterator[Case]:
    """Yield the tests whose models are files of the package."""
    for path in sorted(DATA.glob("*/*/model.onnx")):
        model = onnx.load(path, load_external_data=False)
        arrays = {
            kind: [recorded(path.parent / f"test_data_set_0/{kind}_{k}.pb", info.type) for k, info in enumerate(infos)]
            for kind, infos in (("input", model.graph.input), ("output", model.graph.output))
        }
        yield f"{path.parts[-3]}/{path.parts[-2]}", model, arrays["input"], arrays["output"]
    for path in sorted(DATA.glob("light/*.onnx")):
        model = onnx.load(path)
        output = recorded(path.with_name(f"{path.stem}_output_0.pb"), model.graph.output[0].type)
        yield f"light/{path.stem}", model, [], [output]


def generated_cases() -> Iterator[Case]:
    """Yield the tests of single ops, which the package generates."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        yield f"node/{case.name}", case.model, *case.data_sets[0]


def shapes(data: bytes, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    reading = read_model(
        data, dims=None, values=values, fold_views=True, control_flow="op", in_place=False, remarks=None
    )
    return {name: value.shape for name, value in reading.network.values.items()}


def shapes_with_values(case: Case) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model; inputs that may decide them are given if it needs them, and then all inputs."""
    _, model, inputs, _ = case
    data = model.SerializeToString()
    pairs = zip(model.graph.input, inputs, strict=False)
    known = {i.name: np.asarray(each) for i, each in pairs if isinstance(each, np.ndarray | np.generic)}
    numbers = {name: each for name, each in known.items() if each.ndim < 2 and each.dtype.kind in "iub"}
    for values in ({}, numbers):
        try:
            return shapes(data, values)
        except RematError:
            pass
    return shapes(data, known)


def read_all(cases: Iterator[Case]) -> tuple[int, collections.Counter[str], list[Any]]:
    """Return the number of models read, refusals by kind, and outputs whose shape is not the recorded one."""
    refusals: collections.Counter[str] = collections.Counter()
    wrong, count = [], 0
    for case in cases:
        name, model, _, outputs = case
        try:
            found = shapes_with_values(case)
        except RematError as error:
            refusals[error.kind] += 1
            continue
        count += 1
        for info, output in zip(model.graph.output, outputs, strict=False):
            shape = getattr(output, "dims", getattr(output, "shape", None))
            if shape is not None and found[info.name] != tuple(shape):
                wrong.append((name, info.name, found[info.name], shape))
    return count, refusals, wrong


def test_formerly_refused_models_of_the_package() -> None:
    """Masks of dropouts and views alone; the generated models are read by the slow test."""
    parts = ("light_squeezenet", "operator_view", "operator_flatten")
    count, refusals, wrong = read_all(case for case in stored_cases() if case[0].endswith(parts))
    assert (count, sum(refusals.values()), wrong) == (3, 0, [])


@pytest.mark.slow
def test_all_models_are_read_with_recorded_sizes_or_refused() -> None:
    count, refusals, wrong = read_all(case for cases in (stored_cases(), generated_cases()) for case in cases)
    assert not wrong
    assert refusals.keys() <= REFUSED.keys()
    if onnx.__version__ == "1.23.2":
        assert count + sum(refusals.values()) == 2033
        assert count >= 1964
        assert not refusals - collections.Counter(REFUSED)
