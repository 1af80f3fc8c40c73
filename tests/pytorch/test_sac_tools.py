"""Drop-ins for torch's integer programmes of selective checkpointing: optimal, certified, never worse than torch's."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.ilp_utils import Graph, parse_module_info
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed._tools.sac_estimator import SACEstimator, SACStats

from remat.torch import get_optimal_checkpointing_policy_per_module, sac_milp
from remat.torch.policies import check_decisions, check_modules

sac_ilp = pytest.importorskip("torch.distributed._tools.sac_ilp", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pulp")


class Block(nn.Module):
    """Block with views, a change in place and random ops."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 96), nn.Linear(96, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.dropout(nn.functional.relu(self.up(x), inplace=True), 0.1)
        return x + self.down(nn.functional.gelu(inner))


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> SACStats:
    """Return torch's statistics of a block; its own estimate of time needs a GPU."""

    def estimate(func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        out = func(*args, **(kwargs or {}))
        size = out.numel() if isinstance(out, torch.Tensor) else 0
        return out, 0.5 + (20.0 if "addmm" in str(func) else 1e-3 * size)

    monkeypatch.setattr(RuntimeEstimator, "_roofline_estimate", staticmethod(estimate))
    estimator = SACEstimator()
    with FakeTensorMode():
        model, x = nn.Sequential(Block(), Block()), torch.randn(16, 24)
        with estimator("operator-level-cost-model"):
            model(x)
    return estimator.sac_mod_stats["Sequential.0"]


def test_saved_ops_of_a_module_are_optimal_and_never_worse_than_those_of_torch(stats: SACStats) -> None:
    assert stats.view_like_ops and stats.rand_ops and stats.inplace_ops
    choices = [list(each) for each in itertools.product((0, 1), repeat=len(stats.func_names))]
    for share in (0.0, 0.3, 0.55, 0.8, 1.0):
        ours = get_optimal_checkpointing_policy_per_module(stats, share)
        theirs = sac_ilp.get_optimal_checkpointing_policy_per_module(stats, share)
        checked = [check_decisions(stats, each, share) for each in choices]
        best = min(each.recomputation for each in checked if each.accepted)
        assert ours.certificate == check_decisions(stats, ours, share) and ours.certificate.accepted
        assert ours.certificate.recomputation == pytest.approx(best) == pytest.approx(ours.bound)
        imported = check_decisions(stats, theirs, share)
        assert imported.accepted and imported.recomputation >= best - 1e-9
    wrong = check_decisions(stats, [1] * len(stats.func_names), 0.5)
    assert len(wrong.violations) == len(stats.view_like_ops) + 1  # and too many bytes


def modules(seed: int) -> Graph:
    """Return a tree of a root, three blocks and their two layers each."""
    rng = random.Random(seed)
    fqns = ["M", *(f"M.{k}{inner}" for k in range(3) for inner in ("", ".up", ".down"))]
    post = [*(f"M.{k}{inner}" for k in range(3) for inner in (".up", ".down", "")), "M"]
    total, rows = 0, dict[str, dict[str, Any]]()
    for name in post:
        leaf = name.count(".") == 2
        kept = rng.randrange(2**20, 2**24) if leaf else sum(
            row["act_fw_per_module"] for other, row in rows.items() if other.startswith(f"{name}.") and row["is_leaf"]
        )  # fmt: skip
        total += kept if leaf else 0
        slope = rng.uniform(0.2, 0.6)
        rows[name] = {
            "fqn": name, "is_leaf": leaf, "act_fw_per_module": kept, "act_total": total, "param_per_module": 2**22,
            "grad_total": rng.randrange(2**22), "act_grad_per_module": rng.randrange(2**22),
            "sac_memory": 0 if leaf else kept + rng.randrange(2**22), "sac_runtime": 0 if leaf else rng.uniform(1, 9),
            "n_segments": 0 if leaf else 2, "slopes": [] if leaf else [slope, 2.0],
            "intercepts": [] if leaf else [0.0, slope - 1.4],
        }  # fmt: skip
    info: Any = {
        "mod_order": {"fw_pre_order": fqns, "fw_post_order": post},
        "mod_stats": [rows[name] for name in fqns],
    }
    return parse_module_info(info)


@pytest.mark.parametrize("seed", range(4))
def test_checkpointed_modules_cost_at_most_those_of_torch_and_keep_the_budget(seed: int) -> None:
    graph = modules(seed)
    peak = check_modules(graph, {}, 1.0).peak
    fitting = 0
    for share, units in ((1.0, None), (0.8, None), (0.8, ["M.0"]), (0.6, None), (0.3, None)):
        gib = share * peak / 2**30
        ours = sac_milp(graph, gib, 2, None, units)
        theirs = sac_ilp.sac_milp(graph, gib, 2, None, units)
        assert (ours[2] == -1) == (theirs[2] == -1)
        if ours.certificate is None:
            continue
        fitting += 1
        assert ours.certificate == check_modules(graph, ours[0], gib, 2, None, units) and ours.certificate.accepted
        assert ours[1:] == (ours.certificate.recomputation, ours.certificate.peak) and ours[2] <= gib * 2**30
        imported = check_modules(graph, theirs[0], gib * (1 + 1e-3), 2, None, units)  # torch rounds to four digits
        assert imported.accepted and imported.recomputation == pytest.approx(theirs[1], abs=0.02)
        assert ours.gap is not None and ours.gap < 1e-5
        assert ours[1] <= theirs[1] + 0.02 and theirs[1] >= (ours.bound or 0) - 0.02
    assert fitting >= 3


def test_checks_name_what_a_choice_breaks(stats: SACStats) -> None:
    graph = modules(0)
    found = check_modules(graph, {"M": 1.0, "M.0": 0.0, "M.1.up": 1.0}, 1e-3, fsdp_units=["M.2"])
    assert {text.split()[1] for text in found.violations} == {"'M'", "'M.0'", "'M.1.up'", "peak"}
    with refused("problem.sac-module", culprit="M.9"):
        check_modules(graph, {"M.9": 1.0}, 1.0)
    with refused("problem.sac-fraction", culprit="M.0"):
        check_modules(graph, {"M.0": 1.5}, 1.0)
    with refused("problem.sac-budget"):
        sac_milp(graph, 0.0)
    with refused("problem.sac-world"):
        sac_milp(graph, 1.0, 0)
    with refused("problem.sac-share"):
        get_optimal_checkpointing_policy_per_module(stats, 1.5)
    with refused("problem.sac-choice"):
        check_decisions(stats, [1], 0.5)
