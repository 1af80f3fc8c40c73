"""Executable training steps from a captured step and a schedule: op by op, as one fx graph, or as two."""

from remat.torch.execute.executor import Executor, OpRun
from remat.torch.execute.step import Step

__all__ = ["Executor", "OpRun", "Step"]
