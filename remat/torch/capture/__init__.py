"""Capture of a module's forward pass or whole training step as a computation graph, without allocating tensors."""

from remat.torch.capture.entry import capture
from remat.torch.capture.fakes import fake_tensors

__all__ = ["capture", "fake_tensors"]
