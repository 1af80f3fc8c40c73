"""Deployed models: rules of runtimes, writers of their files, and checks in the runtime."""

from remat.deploy.comparison import Check, Comparison, check_models, compare_outputs, comparing_runtime
from remat.deploy.deployment import Deployment, Search, deploy
from remat.deploy.fitting import Fit, fit
from remat.deploy.model_files import (
    deployed,
    read_deployable,
    read_model_file,
    read_rewritable,
    rewritten,
    write_answer,
    write_model,
)
from remat.deploy.runtimes import Runtime

__all__ = [
    "Check", "Comparison", "Deployment", "Fit", "Runtime", "Search", "check_models", "compare_outputs",
    "comparing_runtime", "deploy", "deployed", "fit",
    "read_deployable", "read_model_file", "read_rewritable", "rewritten", "write_answer", "write_model",
]  # fmt: skip
