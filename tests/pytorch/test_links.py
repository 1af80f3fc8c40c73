"""Measured links between a GPU and its host."""

from dataclasses import replace

import pytest
import torch
from refusals import refused

from remat.config.machines import read_machine
from remat.schedule import Machine
from remat.torch import memory_policy
from remat.torch.links import machine_of, measured_machine
from remat.torch.rematerialized.planning import Settings


def test_measured_machine_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused("measurement.no-gpu"):
        read_machine("measured,host=1GiB")


def test_measured_machine_takes_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine_of(10**6, write=51_000, read=41_000, both=52_000, latency=1_000)
    assert (found.write_rate, found.read_rate, found.latency, found.full_duplex) == (20 * 10**9, 25 * 10**9, 1000, True)
    monkeypatch.setattr("remat.torch.links.measured_machine", lambda: found)
    machine = read_machine({"preset": "measured", "host": "1GiB"})
    assert (machine.write_rate, machine.host, machine.latency) == (20 * 10**9, 2**30, 1000)


def test_steps_measure_the_machine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, calls = Machine.parse("rate=20GB/s"), []
    monkeypatch.setattr("remat.torch.links.measured_machine", lambda: calls.append(1) or found)
    settings = replace(Settings("60%", offload="1GiB", machine="measured,latency=1us"), time_limit=1.0)
    assert settings.host == replace(found, host=2**30, latency=1000)
    assert len(calls) == 1


def test_steps_refuse_to_measure_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused("measurement.no-gpu"):
        Settings("60%", machine="measured")
    with refused("measurement.no-gpu"):
        memory_policy("60%", machine="measured")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_links_of_this_machine() -> None:
    machine = measured_machine()
    for rate in (machine.write_rate, machine.read_rate):
        assert rate is not None and 10**9 < rate < 10**12
    assert 0 < machine.latency < 10**6
