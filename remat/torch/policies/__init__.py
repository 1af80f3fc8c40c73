"""Policies of selective activation checkpointing (``torch.utils.checkpoint``) from certified schedules."""

from remat.torch.policies.choosing import policy
from remat.torch.policies.contexts import Policy
from remat.torch.policies.memory_policy import MemoryPolicyReport, memory_policy
from remat.torch.policies.module_plans import ModulePlan, ModulesCertificate, check_modules, sac_milp
from remat.torch.policies.per_module import (
    Decisions,
    DecisionsCertificate,
    check_decisions,
    get_optimal_checkpointing_policy_per_module,
)
from remat.torch.policies.report import PolicyReport

__all__ = [
    "Decisions",
    "DecisionsCertificate",
    "MemoryPolicyReport",
    "ModulePlan",
    "ModulesCertificate",
    "Policy",
    "PolicyReport",
    "check_decisions",
    "check_modules",
    "get_optimal_checkpointing_policy_per_module",
    "memory_policy",
    "policy",
    "sac_milp",
]
