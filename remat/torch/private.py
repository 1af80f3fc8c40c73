"""Private names of PyTorch that this package uses, imported on first use.

No other module imports one. Public names are used where PyTorch has them: a new version may change any of these.
"""

from __future__ import annotations

import pkgutil
from typing import Any

import torch

from remat.errors import CaptureError
from remat.torch.versions import FIRST, LAST

#: Module, or module and attribute, of each name.
PLACES = {
    "BaseSchedulerNode": "torch._inductor.scheduler:BaseSchedulerNode",
    "BoxedBool": "torch._inductor.utils:BoxedBool",
    "BoxedCodeGen": "torch.fx.graph:_BoxedCodeGen",
    "C": "torch._C",
    "CustomGraphPass": "torch._inductor.custom_graph_pass:CustomGraphPass",
    "CustomPartitionerFn": "torch._inductor.custom_graph_pass:CustomPartitionerFn",
    "CustomRuntimeEstimator": "torch._inductor.custom_graph_pass:CustomRuntimeEstimator",
    "CustomSchedulerPass": "torch._inductor.custom_graph_pass:CustomSchedulerPass",
    "DataDependentOutputException": "torch._subclasses.fake_tensor:DataDependentOutputException",
    "DisableAutocast": "torch._C:_DisableAutocast",
    "DispatchKey": "torch._C:DispatchKey",
    "DynamicOutputShapeException": "torch._subclasses.fake_tensor:DynamicOutputShapeException",
    "FakeTensor": "torch._subclasses.fake_tensor:FakeTensor",
    "FakeTensorMode": "torch._subclasses.fake_tensor:FakeTensorMode",
    "HigherOrderOperator": "torch._ops:HigherOrderOperator",
    "Kernel": "torch._inductor.codegen.common:Kernel",
    "OpOverload": "torch._ops:OpOverload",
    "OrderedSet": "torch.utils._ordered_set:OrderedSet",
    "PyTorchFileWriter": "torch._C:PyTorchFileWriter",
    "SchedulerBuffer": "torch._inductor.scheduler:SchedulerBuffer",
    "ShardingPropagator": "torch.distributed.tensor._sharding_prop:ShardingPropagator",
    "TorchDispatchMode": "torch.utils._python_dispatch:TorchDispatchMode",
    "TorchDynamoException": "torch._dynamo.exc:TorchDynamoException",
    "TracingContext": "torch._guards:TracingContext",
    "V": "torch._inductor.virtualized:V",
    "aot": "torch._functorch._aot_autograd.descriptors",
    "aot_autograd": "torch._dynamo.backends.common:aot_autograd",
    "aot_export_joint_with_descriptors": "torch._functorch.aot_autograd:aot_export_joint_with_descriptors",
    "compile_fx_inner": "torch._inductor.compile_fx:compile_fx_inner",
    "contains_collective": "torch._inductor.utils:contains_collective",
    "contains_wait": "torch._inductor.utils:contains_wait",
    "detect_fake_mode": "torch._guards:detect_fake_mode",
    "disable_current_modes": "torch.utils._python_dispatch:_disable_current_modes",
    "dynamo_config": "torch._dynamo.config",
    "dynamo_graph_capture_for_export": "torch._dynamo.functional_export:_dynamo_graph_capture_for_export",
    "enable_python_dispatcher": "torch._dispatch.python:enable_python_dispatcher",
    "fsdp_state": "torch.distributed.fsdp._fully_shard._fsdp_state:_get_module_fsdp_state",
    "functorch_config": "torch._functorch.config",
    "functional_collectives": "torch.distributed._functional_collectives",
    "get_hash_for_files": "torch._inductor.custom_graph_pass:get_hash_for_files",
    "inductor_config": "torch._inductor.config",
    "inductor_ir": "torch._inductor.ir",
    "inductor_memory": "torch._inductor.memory",
    "inductor_wrapper": "torch._inductor.codegen.wrapper",
    "is_traceable_wrapper_subclass": "torch.utils._python_dispatch:is_traceable_wrapper_subclass",
    "meta_registrations": "torch._meta_registrations",
    "offload_operators": "torch._functorch._activation_offloading.offload_ops",
    "pytree": "torch.utils._pytree",
    "record_original_output_strides": "torch._inductor.compile_fx:record_original_output_strides",
    "reparametrize_module": "torch.nn.utils.stateless:_reparametrize_module",
    "resolve_process_group": "torch.distributed.distributed_c10d:_resolve_process_group",
    "select_decomp_table": "torch._inductor.decomposition:select_decomp_table",
    "setup_stacktrace_preservation_hooks": (
        "torch._functorch._aot_autograd.logging_utils:setup_stacktrace_preservation_hooks"
    ),
    "tracing": "torch._guards:tracing",
}


def __getattr__(name: str) -> Any:
    """Import a name; raise CaptureError if the installed PyTorch lacks it."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return pkgutil.resolve_name(PLACES[name])
    except (ImportError, AttributeError) as error:
        raise CaptureError(
            f"torch {torch.__version__} has no {PLACES[name].replace(':', '.')}, which remat.torch needs; install "
            f"torch {FIRST} to {LAST}",
            "torch-private",
        ) from error
