"""Drop-in for ``sac_milp`` of ``torch.distributed._tools.sac_ilp``: modules to checkpoint, with bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from remat.backends.highs import Highs
from remat.errors import ProblemError
from remat.modeling import Linear, Model
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.torch.policies.per_module import gap_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: Seconds, as in torch.
TIME_LIMIT = 180.0
#: Discarded fractions are multiples of 1/GRID, so that bytes can be checked by integers.
GRID = 10**9
#: Rows of bytes are in units of the budget divided by this, so that HiGHS's tolerance of 1e-6 is below a byte.
SCALE = 1e5


@dataclass(frozen=True)
class ModulesCertificate:
    """Check of a choice of checkpointed modules by plain arithmetic.

    Attributes
    ----------
    peak : int
        Bytes of parameters, gradients and activations, rounded up.
    budget : int
        Bytes.
    recomputation : float
        Milliseconds, by the fitted segments of each module.
    violations : tuple of str
        Rules that the choice breaks.
    """

    peak: int
    budget: int
    recomputation: float
    violations: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        """True if the choice breaks no rule."""
        return not self.violations


class ModulePlan(tuple[dict[str, float], float, int]):
    """Discarded fraction of each checkpointed module, recomputation time in ms, and peak in bytes (-1: no solution).

    Attributes
    ----------
    certificate : ModulesCertificate or None
    bound : float or None
        Milliseconds: no choice recomputes for less. Proved by HiGHS, in floating point.
    """

    certificate: ModulesCertificate | None
    bound: float | None

    @classmethod
    def of(
        cls, choice: dict[str, float], certificate: ModulesCertificate | None = None, bound: float | None = None
    ) -> ModulePlan:
        """Return the plan of a choice."""
        time, peak = (0.0, -1) if certificate is None else (certificate.recomputation, certificate.peak)
        made = cls((choice, time, peak))
        made.certificate, made.bound = certificate, bound
        return made

    @property
    def gap(self) -> float | None:
        """Share of the recomputation time above the bound; None if unknown."""
        return None if self.certificate is None else gap_of(self.certificate.recomputation, self.bound)


def sac_milp(
    graph: Any,
    memory_budget: float,
    world_size: int = 1,
    ac_units: list[str] | None = None,
    fsdp_units: list[str] | None = None,
) -> ModulePlan:
    """Choose the modules to checkpoint and the fraction of their activations to discard, with certificate and bound.

    It takes and returns what torch's function of this name does, and states the same problem. torch stops at a gap of
    5 %; this function proves the optimum unless 180 seconds pass. torch returns a value between peak and budget as the
    peak; this function returns the peak of the choice. It does not change the graph.

    Parameters
    ----------
    graph : torch.distributed._tools.ilp_utils.Graph
        Modules with their statistics, by ``parse_module_info``.
    memory_budget : float
        GiB.
    world_size : int
        Processes among which FSDP shards parameters and gradients.
    ac_units : list of str, optional
        Only these modules may be checkpointed.
    fsdp_units : list of str, optional
        No module that contains one of these may be.

    Returns
    -------
    ModulePlan
        A tuple of three.

    Raises
    ------
    ProblemError
        If the budget or the number of processes is not positive.
    """
    _check(memory_budget, world_size)
    problem = _Modules(graph, memory_budget, world_size, ac_units, fsdp_units)
    raw = Highs().solve(problem.model(), SolveOptions(Deadline.after(TIME_LIMIT), relative_gap=0))
    if raw.values is None:
        return ModulePlan.of({})
    count = len(graph.nodes)
    choice = {
        node["fqn"]: min(GRID, math.ceil(fraction * GRID)) / GRID
        for node, chosen, fraction in zip(graph.nodes, raw.values[:count], raw.values[count : 2 * count], strict=True)
        if round(chosen) == 1
    }
    certificate = problem.certificate(choice)
    if not certificate.accepted:
        return ModulePlan.of({})
    bound = None if raw.bound is None else max(0.0, min(raw.bound, certificate.recomputation))
    return ModulePlan.of(choice, certificate, bound)


def check_modules(  # noqa: PLR0917 - the parameters of sac_milp, and the choice
    graph: Any,
    choice: Mapping[str, float],
    memory_budget: float,
    world_size: int = 1,
    ac_units: list[str] | None = None,
    fsdp_units: list[str] | None = None,
) -> ModulesCertificate:
    """Check a choice of any origin, such as torch's own; parameters as for :func:`sac_milp`.

    Raise ProblemError if it names a module that the graph does not have, or has a fraction outside 0 to 1.
    """
    _check(memory_budget, world_size)
    return _Modules(graph, memory_budget, world_size, ac_units, fsdp_units).certificate(choice)


def _check(memory_budget: float, world_size: int) -> None:
    if not (math.isfinite(memory_budget) and memory_budget > 0):
        raise ProblemError(f"memory_budget is a positive number of GiB, not {memory_budget}", "sac-budget")
    if world_size < 1:
        raise ProblemError(f"world_size is the number of processes, at least 1, not {world_size}", "sac-world")


@dataclass(frozen=True)
class _Modules:
    graph: Any
    memory_budget: float
    world_size: int
    ac_units: Sequence[str] | None
    fsdp_units: Sequence[str] | None

    @property
    def nodes(self) -> list[Any]:
        return self.graph.nodes

    @property
    def budget(self) -> int:
        return math.floor(self.memory_budget * 2**30)

    def refused(self, node: Any) -> str | None:
        """Return why a module may not be checkpointed; None if it may."""
        if node["is_leaf"]:
            return "has no submodules"
        if self.ac_units and node["fqn"] not in self.ac_units:
            return "is not in ac_units"
        if any(f"{node['fqn']}." in unit for unit in self.fsdp_units or ()):
            return "contains an FSDP unit"
        return None

    def nested(self) -> list[tuple[int, int]]:
        """Return pairs of modules of which the second is inside the first."""
        rows, columns = np.nonzero(np.triu(np.asarray(self.graph.ad_matrix), 1))
        return list(zip(rows.tolist(), columns.tolist(), strict=True))

    def before(self, node: Any) -> list[int]:
        """Return the modules whose forward pass ends before that of a module."""
        names = self.graph.fw_post_order[: node["pos_fw_post_order"]]
        return [self.graph.name2node[name]["index"] for name in names]

    def fixed(self, node: Any) -> int:
        """Return the bytes at a module that no choice changes, times the number of processes."""
        activations = node["act_total"] + node["act_grad_per_module"]
        return activations * self.world_size + self.nodes[0]["param_per_module"] + node["grad_total"]

    def certificate(self, choice: Mapping[str, float]) -> ModulesCertificate:
        broken: list[str] = []
        discarded, time = dict[int, int](), list[float]()
        for name, fraction in choice.items():
            node = self.graph.name2node.get(name)
            if node is None:
                raise ProblemError(f"the choice has module {name!r}, which the graph does not have", "sac-module")
            if not 0 <= fraction <= 1:
                raise ProblemError(
                    f"module {name!r} discards {fraction}, which is no share from 0 to 1", "sac-fraction"
                )
            reason = self.refused(node)
            if reason is not None:
                broken.append(f"module {name!r} {reason}")
            whole, kept = _sizes(node)
            bytes_ = whole * round(fraction * GRID) - (whole - kept) * GRID
            if bytes_ < 0:
                broken.append(f"module {name!r} discards less than its checkpoint adds")
            discarded[node["index"]] = bytes_
            time.append(_milliseconds(node, fraction))
        broken += [
            f"module {self.nodes[b]['fqn']!r} is inside {self.nodes[a]['fqn']!r}"
            for a, b in self.nested()
            if a in discarded and b in discarded
        ]
        peak = 0
        for node in self.nodes:
            less = sum(discarded.get(index, 0) for index in self.before(node)) * self.world_size
            peak = max(peak, -(-(self.fixed(node) * GRID - less) // (GRID * self.world_size)))
        if peak > self.budget:
            broken.append(f"the peak is {peak:,} bytes, above the budget of {self.budget:,}")
        return ModulesCertificate(peak, self.budget, math.fsum(time), tuple(broken))

    def model(self) -> Model:
        """Return the model: y (checkpointed), r (discarded fraction) and t (ms) of each module."""
        nodes, count = self.nodes, len(self.nodes)
        model = Model("SAC of modules")
        y = model.booleans("y", count, upper=[float(self.refused(node) is None) for node in nodes]).index
        r = model.continuous("r", count, 0.0, 1.0).index
        t = model.continuous("t", count, 0.0, np.inf).index
        unit = self.budget / SCALE if self.budget else 1.0
        whole, kept = np.array([_sizes(node) for node in nodes], dtype=np.float64).reshape(count, 2).T / unit
        rows = np.arange(count)
        pairs = self.nested()
        model.add(
            Linear.rows("nested", np.repeat(np.arange(len(pairs)), 2), y[np.array(pairs, dtype=np.int64).ravel()], 1.0,
                        upper=[1.0] * len(pairs)),
            Linear.rows("fraction", np.r_[rows, rows], np.r_[r, y], np.repeat([1.0, -1.0], count),
                        upper=np.zeros(count)),
            Linear.rows("gain", np.r_[rows, rows], np.r_[r, y], np.r_[whole, kept - whole], lower=np.zeros(count)),
        )  # fmt: skip
        places = [(row, index) for row, node in enumerate(nodes) for index in self.before(node)]
        at = np.array([row for row, _ in places], dtype=np.int64)
        of = np.array([index for _, index in places], dtype=np.int64)
        need = np.array([self.fixed(node) / self.world_size - self.budget for node in nodes]) / unit
        have = np.array([node["act_total"] + node["act_grad_per_module"] for node in nodes]) / unit
        model.add(
            Linear.rows("memory", np.r_[at, at], np.r_[r[of], y[of]], np.r_[whole[of], (kept - whole)[of]],
                        lower=need, upper=np.maximum(have, need), num_rows=count)
        )  # fmt: skip
        lines = [
            (index, node["sac_runtime"] * slope, node["sac_runtime"] * intercept)
            for index, node in enumerate(nodes)
            for slope, intercept in zip(node["slopes"], node["intercepts"], strict=True)
        ]
        k = np.arange(len(lines))
        index = np.array([line[0] for line in lines], dtype=np.int64)
        model.add(
            Linear.rows("time", np.r_[k, k, k], np.r_[t[index], r[index], y[index]],
                        np.r_[np.ones(len(lines)), [-line[1] for line in lines], [-line[2] for line in lines]],
                        lower=np.zeros(len(lines)))
        )  # fmt: skip
        model.minimize(t, np.ones(count))
        return model


def _sizes(node: Any) -> tuple[int, int]:
    """Return the bytes of all activations of a module, and of those that it keeps without a checkpoint."""
    kept = node["act_fw_per_module"]
    return (0, 0) if node["is_leaf"] else (max(node["sac_memory"], kept), kept)


def _milliseconds(node: Any, fraction: float) -> float:
    """Return the time to compute again what a module discards."""
    lines = zip(node["slopes"], node["intercepts"], strict=True)
    return float(node["sac_runtime"] * max([0.0, *(slope * fraction + start for slope, start in lines)]))
