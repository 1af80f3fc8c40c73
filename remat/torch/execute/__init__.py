"""Execution of a captured step by a schedule, op by op."""

from remat.torch.execute.executor import Executor, OpRun
from remat.torch.execute.step import Step

__all__ = ["Executor", "OpRun", "Step"]
