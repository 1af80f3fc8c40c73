"""Policies of selective activation checkpointing (``torch.utils.checkpoint``) from certified schedules."""

from remat.torch.policies.choosing import policy
from remat.torch.policies.contexts import Policy
from remat.torch.policies.report import PolicyReport

__all__ = ["Policy", "PolicyReport", "policy"]
