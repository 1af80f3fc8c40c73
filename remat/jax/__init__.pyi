"""Public names of ``remat.jax``; ``__init__.py`` imports them on first use."""

from remat.jax.best_policy import NamedPolicy as NamedPolicy
from remat.jax.best_policy import PolicyReport as PolicyReport
from remat.jax.best_policy import best_policy as best_policy
from remat.jax.capture import capture as capture
from remat.jax.captured import Captured as Captured
from remat.jax.memory import CompiledMemory as CompiledMemory
from remat.jax.memory import compiled_memory as compiled_memory
from remat.jax.rematerialize import Rematerialized as Rematerialized
from remat.jax.rematerialize import rematerialize as rematerialize
from remat.jax.report import Report as Report
from remat.jax.report import Verification as Verification
