"""``.pt2`` files: read without unpickling or running anything, and deployed to ExecuTorch."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refused

torch = pytest.importorskip("torch")

from test_executorch import SAMPLE, Cells  # noqa: E402

from remat.deploy import Search, check_models, deploy, read_deployable, read_model_file, write_model  # noqa: E402
from remat.errors import FormatError  # noqa: E402
from remat.torch.executorch import program_graph, read_program  # noqa: E402
from remat.torch.executorch.archive import check_calls  # noqa: E402

MODEL, WEIGHTS = "a/models/model.json", "a/data/weights/model_weights_config.json"
Records = dict[str, bytes]


def saved(seed: int = 0) -> bytes:
    file = io.BytesIO()
    torch.export.save(torch.export.export(Cells(seed).eval(), SAMPLE), file)
    return file.getvalue()


def records(data: bytes) -> Records:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {f"a/{name.partition('/')[2]}": archive.read(name) for name in archive.namelist()}


def archive(content: Records, compression: int = zipfile.ZIP_STORED, again: str = "") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as written:
        for name, data in content.items():
            written.writestr(name, data)
        if again:
            written.writestr(again, b"")
    return file.getvalue()


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_programs_are_read_without_their_sample_inputs(tmp_path: Path) -> None:
    content = records(saved())
    content["a/data/sample_inputs/model.pt"] = pickle.dumps(Payload(tmp_path / "made"))
    program = read_program(archive(content))
    assert not (tmp_path / "made").exists()
    expected = torch.export.export(Cells(0).eval(), SAMPLE)
    assert program_graph(program).digest == program_graph(expected).digest
    assert torch.equal(program.module()(*SAMPLE), expected.module()(*SAMPLE))


def test_sizes_of_open_dimensions_are_read() -> None:
    file, batch = io.BytesIO(), torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(torch.nn.Flatten(), (torch.ones(4, 3, 5),), dynamic_shapes=({0: 2 * batch},))
    torch.export.save(program, file)
    found = read_program(file.getvalue()).range_constraints
    assert (
        found.items() >= {each: bounds for each, bounds in program.range_constraints.items() if each.is_Symbol}.items()
    )


def test_archives_that_would_run_something_are_refused(tmp_path: Path) -> None:
    good = records(saved())
    pickled = pickle.dumps(Payload(tmp_path / "made"))

    def edited(name: str, old: str, new: str) -> Records:
        assert old.encode() in good[name], old
        return good | {name: good[name].replace(old.encode(), new.encode())}

    with refused("format.record", culprit="custom_obj_0"):
        read_program(archive(good | {"a/data/constants/custom_obj_0": pickled}))
    with refused("format.record", culprit="model.so"):
        read_program(archive(good | {"a/data/aotinductor/model/model.so": b"code"}))
    with refused("format.record", culprit="model.pt"):
        read_program(archive(good | {"a/data/weights/model.pt": pickled}))
    with refused("format.pickled", culprit="is pickled"):
        read_program(
            archive(edited(WEIGHTS, '"use_pickle": false', '"use_pickle": true') | {"a/data/weights/weight_0": pickled})
        )
    document = json.loads(good[MODEL])
    text = "__import__('os').getcwd()"
    document["range_constraints"] = {"s0": {"min_val": 1, "max_val": 2, "expr_str": text}}
    with refused("format.expression", culprit="os"):
        read_program(archive(good | {MODEL: json.dumps(document).encode()}))
    document["range_constraints"] = {"s0": {"expr_str": "exec(chr(95))"}}
    with refused("format.expression", culprit="exec"):
        read_program(archive(good | {MODEL: json.dumps(document).encode()}))
    with pytest.raises(FormatError, match="torch cannot read the program"):
        read_program(archive(edited(MODEL, "torch.ops.aten.relu.default", "torch.load")))
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    for target in (torch.ops.aten.from_file.default, torch.load):
        node.target = target
        with refused("format.call", culprit="relu", hide={str(torch.load): "torch.load"}):
            check_calls(program)
    assert not (tmp_path / "made").exists()


def test_damaged_archives_are_refused() -> None:
    good = records(saved())
    with refused("format.archive"):
        read_program(saved()[:2000])
    with refused("format.record", culprit="compressed"):
        read_program(archive(good, zipfile.ZIP_DEFLATED))
    with pytest.warns(UserWarning), refused("format.record", culprit="two records"):
        read_program(archive(good, again=MODEL))
    with refused("format.archive", culprit="torch.export.save"):
        read_program(archive({MODEL: b"{}"}))
    with refused("format.archive", culprit="models/model.json"):
        read_program(archive(good | {MODEL: b"[" * 9}))
    with pytest.raises(FormatError, match="torch cannot read"):
        read_program(archive({name: data for name, data in good.items() if not name.endswith("weight_1")}))


def test_programs_are_deployed(tmp_path: Path) -> None:
    """The runtime's outputs are equal bit by bit, and its memory is the certified one."""
    pytest.importorskip("executorch.exir")
    old, new = tmp_path / "old.pt2", tmp_path / "new.pte"
    old.write_bytes(saved(5))
    found = deploy(read_deployable(old), "executorch", Search(time_limit=10))
    write_model(found.file, new, old)
    check = check_models(old, new, found.runtime)
    assert (check.before, check.after, check.outputs) == (found.before, found.after, 1)
    assert found.proved
    assert found.after < found.before


def test_programs_are_not_written_back(tmp_path: Path) -> None:
    path = tmp_path / "x.pt2"
    path.write_bytes(saved())
    with refused("format.program", culprit="x.pt2", hide={str(tmp_path): "FOLDER"}):
        read_model_file(path)
    with refused("format.runtime", culprit="tflm"):
        deploy(read_deployable(path), "tflm")
