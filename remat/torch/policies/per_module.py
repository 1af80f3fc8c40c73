"""Drop-in for ``get_optimal_checkpointing_policy_per_module`` of ``torch.distributed._tools.sac_ilp``."""

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
from remat.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence


#: Seconds, as in torch.
TIME_LIMIT = 10.0


@dataclass(frozen=True)
class DecisionsCertificate:
    """Check of a choice of saved ops by plain arithmetic.

    Attributes
    ----------
    saved : int
        Bytes of the saved ops.
    limit : int
        Bytes that may be saved.
    recomputation : float
        Milliseconds of the ops that are computed again.
    violations : tuple of str
        Rules that the choice breaks.
    """

    saved: int
    limit: int
    recomputation: float
    violations: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        """True if the choice breaks no rule."""
        return not self.violations


class Decisions(list[int]):
    """For each op 1 if it is saved, otherwise 0; empty if no choice keeps the budget.

    Attributes
    ----------
    certificate : DecisionsCertificate or None
    bound : float or None
        Milliseconds: no choice recomputes for less. Proved by HiGHS, in floating point.
    """

    def __init__(
        self,
        saved: Sequence[int] = (),
        certificate: DecisionsCertificate | None = None,
        bound: float | None = None,
    ) -> None:
        super().__init__(saved)
        self.certificate, self.bound = certificate, bound

    @property
    def gap(self) -> float | None:
        """Share of the recomputation time above the bound; None if unknown."""
        return None if self.certificate is None else gap_of(self.certificate.recomputation, self.bound)


def gap_of(value: float, bound: float | None) -> float | None:
    """Return the share of a value above a bound; None without a bound.

    Examples
    --------
    >>> gap_of(4.0, 3.0), gap_of(0.0, 0.0), gap_of(1.0, None)
    (0.25, 0.0, None)
    """
    if bound is None:
        return None
    return 0.0 if value <= 0 else max(0.0, (value - bound) / value)


def get_optimal_checkpointing_policy_per_module(sac_stats: Any, memory_budget: float) -> Decisions:
    """Choose the ops of a module to save, with certificate and bound.

    It takes and returns what torch's function of this name does, and states the same problem: minimise the time of the
    recomputed ops while the saved ones keep a share of the memory. Random ops are all saved or all recomputed, or all
    saved if the statistics force it. Views are recomputed. Ops in place go with the op whose result they change. torch
    stops at a gap of 5 %; this function proves the optimum unless 10 seconds pass.

    Parameters
    ----------
    sac_stats : SACStats
        Statistics of a module by torch's ``SACEstimator``.
    memory_budget : float
        Share of the bytes of all ops, from 0 to 1.

    Returns
    -------
    Decisions
        A list.

    Raises
    ------
    ProblemError
        If the share is not between 0 and 1.
    """
    if not 0 <= memory_budget <= 1:
        raise ProblemError(f"memory_budget is a share from 0 to 1, not {memory_budget}", "sac-share")
    count = len(sac_stats.func_names)
    raw = Highs().solve(_model(sac_stats, memory_budget), SolveOptions(Deadline.after(TIME_LIMIT), relative_gap=0))
    if count == 0 or raw.values is None:
        return Decisions()
    saved = [1 - round(value) for value in raw.values[:count]]
    certificate = check_decisions(sac_stats, saved, memory_budget)
    if not certificate.accepted:
        return Decisions()
    bound = None if raw.bound is None else max(0.0, min(raw.bound, certificate.recomputation))
    return Decisions(saved, certificate, bound)


def check_decisions(sac_stats: Any, saved: Sequence[int], memory_budget: float) -> DecisionsCertificate:
    """Check a choice of saved ops of any origin, such as torch's own.

    Raise ProblemError if it does not have one number for each op.

    Examples
    --------
    >>> from torch.distributed._tools.sac_estimator import SACStats
    >>> stats = SACStats(["mm", "t", "gelu"], [3.0, 0.0, 1.0], [64, 0, 64], [1], [], [0], [], False)
    >>> check_decisions(stats, [1, 0, 0], 0.5)
    DecisionsCertificate(saved=64, limit=64, recomputation=1.0, violations=())
    """
    if len(saved) != len(sac_stats.func_names):
        raise ProblemError(
            f"the choice has {counted(len(saved), 'number')} for {len(sac_stats.func_names)} ops of the module",
            "sac-choice",
        )
    limit = _limit(sac_stats, memory_budget)
    size = sum(memory for memory, kept in zip(sac_stats.memory, saved, strict=True) if kept)
    time = math.fsum(time for time, kept in zip(sac_stats.runtimes, saved, strict=True) if not kept)
    fixed, pairs = _rules(sac_stats)
    names = sac_stats.func_names
    broken = [
        f"op {op} ({names[op]}) must be {'saved' if again == 0 else 'recomputed'}"
        for op, again in fixed
        if bool(saved[op]) == bool(again)
    ]
    broken += [
        f"ops {a} ({names[a]}) and {b} ({names[b]}) must be both saved or both recomputed"
        for a, b in pairs
        if bool(saved[a]) != bool(saved[b])
    ]
    if size > limit:
        broken.append(f"saved ops need {size:,} bytes, more than {limit:,}")
    return DecisionsCertificate(size, limit, time, tuple(broken))


def _limit(sac_stats: Any, memory_budget: float) -> int:
    return math.ceil(memory_budget * sum(sac_stats.memory))


def _rules(sac_stats: Any) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return ops with 0 if they must be saved and 1 if recomputed, and pairs of ops that go together."""
    fixed = [(op, 1) for op in sac_stats.view_like_ops]
    pairs = [(op, parent) for op, parent in sac_stats.inplace_ops if op != parent]
    fixed += [(op, 0) for op, parent in sac_stats.inplace_ops if op == parent]
    if sac_stats.force_store_random:
        fixed += [(op, 0) for op in sac_stats.rand_ops]
    else:
        pairs += list(zip(sac_stats.rand_ops[:-1], sac_stats.rand_ops[1:], strict=True))
    return fixed, pairs


def _model(sac_stats: Any, memory_budget: float) -> Model:
    """Return the model: a Boolean for each op that is computed again."""
    count = len(sac_stats.func_names)
    fixed, pairs = _rules(sac_stats)
    model = Model("SAC of a module")
    again = model.booleans("again", count).index
    model.add(
        Linear.rows("fixed", range(len(fixed)), [again[op] for op, _ in fixed], 1.0,
                    lower=[value for _, value in fixed], upper=[value for _, value in fixed]),
        Linear.rows("pairs", [k for k, _ in enumerate(pairs) for _ in range(2)],
                    [again[op] for pair in pairs for op in pair], [1.0, -1.0] * len(pairs),
                    lower=[0.0] * len(pairs), upper=[0.0] * len(pairs)),
        Linear.rows("memory", np.zeros(count, dtype=np.int64), again, sac_stats.memory,
                    lower=[float(sum(sac_stats.memory) - _limit(sac_stats, memory_budget))]),
    )  # fmt: skip
    model.minimize(again, sac_stats.runtimes)
    return model
