"""Capture: the forward pass, or the whole training step, of a module as a computation graph, without its memory."""

from remat.torch.capture.entry import capture
from remat.torch.capture.fakes import fake_tensors

__all__ = ["capture", "fake_tensors"]
