"""Fit of a model in the memory of a device, and the estimate of partial execution."""

import json
from pathlib import Path

import pytest
from shell import ok, shell

pytest.importorskip("tflite")
pytest.importorskip("flatbuffers")

from deploy_models import inverted_blocks, two_pools
from deploy_networks import joined_branches

from remat.deploy import Search, deploy, fit
from remat.deploy.runtimes import RULES, Runtime
from remat.deploy.tflite_file import TfliteFile

#: Bytes of the input, of the widened tensors, and of the sums in int32.
NARROW, WIDE, SUMS = 8192, 49152, 32768


@pytest.mark.parametrize("width", [60, pytest.param(120, marks=pytest.mark.slow)])
def test_printed_fit(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    (tmp_path / "old.tflite").write_bytes(inverted_blocks())
    line = f"deploy {tmp_path / 'old.tflite'} --time-limit 10 --runtime litert -q --memory"
    fits = ok(f"{line} 256KiB").out
    other = ok(f"{line} 64KiB -o {tmp_path / 'new.tflite'}", code=1).out
    for text in (fits, other):
        assert max(map(len, text.splitlines())) <= width
        assert "peak      DEPTHWISE_CONV_2D_5 holds\n          49,152  block_1/depthwise\n" in text
    assert "fits      yes, " in fits
    assert "fits      no, " in other
    assert " parts of its channels" in other  # how many depends on the time
    assert "\nrows      " in other
    assert (tmp_path / "new.tflite").exists()
    facts = json.loads(ok(f"{line} 64KiB --json", code=1).out)["fit"]
    assert facts["least"] <= facts["needed"]
    assert not facts["fits"]


def test_peak_and_partial_execution_by_formula() -> None:
    """An eighth of the channels of both wide tensors at a time; sums of the projection need int32."""
    file = TfliteFile(inverted_blocks())
    found = fit(file, deploy(file, search=Search(time_limit=10, measure=False)), 2**16)
    assert found.least - (found.runtime_data or 0) == 2 * WIDE + NARROW
    assert dict(found.held) == {"block_0/expand": WIDE, "block_0/depthwise": WIDE, "image": NARROW}
    assert found.parts is not None
    assert (found.parts.before, found.parts.after) == (2 * WIDE + NARROW, NARROW + 2 * WIDE // 8 + SUMS)
    assert found.parts.layers == (("CONV_2D_0", 8), ("CONV_2D_4", 8))
    assert found.rows is not None
    assert found.rows.before == 2 * WIDE + NARROW
    assert found.rows.after <= 2**16
    assert 0 < found.rows.more_cost < found.rows.cost
    assert deploy_parts(two_pools()) is None  # no convolution


def test_rewritten_model_in_a_memory(tmp_path: Path) -> None:
    """The concatenation is gone: x, a branch, a partial sum and the next one are held, 256 pixels each."""
    (tmp_path / "old.tflite").write_bytes(joined_branches())
    line = f"deploy {tmp_path / 'old.tflite'} -o {tmp_path / 'new.tflite'} --time-limit 15 -q --json --memory"
    whole = json.loads(ok(f"{line} 48KiB", code=1).out)
    assert (whole["after"], whole["fit"]["fits"]) == (256 * 4 * (4 * 8 + 32), False)
    assert whole["fit"]["rows"]["after"] <= 48 * 1024
    found = json.loads(ok(f"{line} 48KiB --rewrite").out)
    assert (found["before"], found["after"], found["fit"]["fits"]) == (whole["after"], 256 * 4 * (8 + 8 + 4 + 4), True)
    assert sorted(found["fit"]["held"].values()) == [4096, 4096, 8192, 8192]
    assert found["fit"]["parts"] is found["fit"]["rows"] is None


def deploy_parts(data: bytes) -> object:
    file = TfliteFile(data)
    return fit(file, deploy(file, search=Search(time_limit=10, measure=False)), 0).parts


def test_deploy_needs_an_output_or_a_memory(tmp_path: Path) -> None:
    (tmp_path / "old.tflite").write_bytes(two_pools())
    ran = shell("deploy", tmp_path / "old.tflite")
    assert ran.code == 2
    assert "-o FILE (or --memory SIZE" in ran.err


@pytest.mark.slow
def test_data_of_the_runtime_is_measured() -> None:
    pytest.importorskip(RULES[Runtime.TFLM].module)
    file = TfliteFile(two_pools())
    made = deploy(file, search=Search(time_limit=10))
    found = fit(file, made, 2**16)
    assert found.runtime_data is not None
    assert 500 < found.runtime_data < 5000
    assert found.needed == made.after + found.runtime_data
