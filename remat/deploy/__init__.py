"""Deployed models: rules of runtimes, writers of their files, and checks in the runtime."""

from remat.deploy.comparison import Comparison, compare_outputs, comparing_runtime
from remat.deploy.deployment import (
    Check,
    Deployment,
    Search,
    check_models,
    deploy,
    deploy_rewritten,
    deployed,
    read_deployable,
    read_model_file,
    read_rewritable,
    rewritten,
    write_answer,
    write_model,
)
from remat.deploy.fitting import Fit, fit
from remat.deploy.runtimes import Runtime

__all__ = [
    "Check", "Comparison", "Deployment", "Fit", "Runtime", "Search", "check_models", "compare_outputs",
    "comparing_runtime", "deploy", "deploy_rewritten", "deployed", "fit",
    "read_deployable", "read_model_file", "read_rewritable", "rewritten", "write_answer", "write_model",
]  # fmt: skip
