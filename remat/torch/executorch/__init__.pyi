"""Public names of ``remat.torch.executorch``; ``__init__.py`` imports them on first use."""

from remat.torch.executorch.archive import read_program as read_program
from remat.torch.executorch.lowering import lowered as lowered
from remat.torch.executorch.lowering import run_program as run_program
from remat.torch.executorch.planning import MemoryPlanning as MemoryPlanning
from remat.torch.executorch.planning import Plan as Plan
from remat.torch.executorch.program_graph import planned_addresses as planned_addresses
from remat.torch.executorch.program_graph import program_graph as program_graph
