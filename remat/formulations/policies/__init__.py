"""Formulation of selective checkpointing: regions of the forward pass, saved ops, one replay for each region."""

from remat.formulations.policies.formulation import Policies, PoliciesOptions

__all__ = ["Policies", "PoliciesOptions"]
