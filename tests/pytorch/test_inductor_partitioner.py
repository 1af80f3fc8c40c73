"""Inductor's partitioner by a schedule: gradients of plain torch.compile, dropout included."""

import shutil

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from remat.torch import inductor  # noqa: E402


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_gradients_are_those_of_plain_compilation() -> None:
    layers = [part for _ in range(3) for part in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.3))]
    module, x = nn.Sequential(*layers), torch.randn(256, 32)
    within = inductor("80%", method="eviction")
    found = []
    for options in (within, {}):
        torch._dynamo.reset()
        module.zero_grad()
        torch.manual_seed(1)
        loss = torch.compile(module, options=options, dynamic=False)(x).square().sum()
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in module.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    (report,) = within["custom_partitioner_fn"].reports
    assert report.certificate.accepted and report.recomputations > 0
    assert report.predicted_peak <= 0.8 * report.reference_peak
