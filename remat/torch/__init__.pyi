"""Public names of ``remat.torch``; ``__init__.py`` imports them on first use."""

from remat.torch.blocks.rematerialize import RematerializedBlocks as RematerializedBlocks
from remat.torch.blocks.rematerialize import rematerialize_blocks as rematerialize_blocks
from remat.torch.blocks.report import BlocksReport as BlocksReport
from remat.torch.capture import capture as capture
from remat.torch.capture import fake_tensors as fake_tensors
from remat.torch.captured import Captured as Captured
from remat.torch.captured import Input as Input
from remat.torch.captured import ResultValue as ResultValue
from remat.torch.costs import CostModel as CostModel
from remat.torch.costs import Device as Device
from remat.torch.costs import cost_model as cost_model
from remat.torch.execute import Executor as Executor
from remat.torch.execute import OpRun as OpRun
from remat.torch.execute import Step as Step
from remat.torch.execute.split import Split as Split
from remat.torch.execute.split import split as split
from remat.torch.fit.estimate import Estimate as Estimate
from remat.torch.fit.estimate import estimate as estimate
from remat.torch.fit.growth import Largest as Largest
from remat.torch.inductor_order import InductorOrder as InductorOrder
from remat.torch.inductor_order import OrderedGraph as OrderedGraph
from remat.torch.inductor_order import inductor_order as inductor_order
from remat.torch.memory import measure_peak as measure_peak
from remat.torch.memory import profiled_memory as profiled_memory
from remat.torch.memory import track_storages as track_storages
from remat.torch.peers import compare_peers as compare_peers
from remat.torch.policies import Decisions as Decisions
from remat.torch.policies import MemoryPolicyReport as MemoryPolicyReport
from remat.torch.policies import ModulePlan as ModulePlan
from remat.torch.policies import Policy as Policy
from remat.torch.policies import PolicyReport as PolicyReport
from remat.torch.policies import (
    get_optimal_checkpointing_policy_per_module as get_optimal_checkpointing_policy_per_module,
)
from remat.torch.policies import memory_policy as memory_policy
from remat.torch.policies import policy as policy
from remat.torch.policies import sac_milp as sac_milp
from remat.torch.rematerialized.compile_backend import CompileBackend as CompileBackend
from remat.torch.rematerialized.compile_backend import backend as backend
from remat.torch.rematerialized.inductor_partitioner import ScheduledPartitioner as ScheduledPartitioner
from remat.torch.rematerialized.inductor_partitioner import inductor as inductor
from remat.torch.rematerialized.module import Rematerialized as Rematerialized
from remat.torch.rematerialized.rematerialize import rematerialize as rematerialize
from remat.torch.rematerialized.report import Report as Report
from remat.torch.transfers.optimizer_state import HostState as HostState
from remat.torch.transfers.optimizer_state import offload_optimizer as offload_optimizer
