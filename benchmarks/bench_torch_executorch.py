"""Planned memory of ExecuTorch programs: its own planner against `MemoryPlanning`, with outputs compared bit by bit.

torchvision's networks have random weights and one image; `irregular` is the network of the tests. The columns are
ExecuTorch's planner, addresses alone, order with addresses, results in place too, and a lower bound on that for any
order. The default's and the last plan run in ExecuTorch's runtime.

    python benchmarks/bench_torch_executorch.py
    python benchmarks/bench_torch_executorch.py mobilenet_v2 irregular --seconds 120
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

#: Sides of the image of each network.
NETWORKS = {
    "mobilenet_v2": 224, "shufflenet_v2_x1_0": 224, "googlenet": 224, "densenet121": 224, "inception_v3": 299,
    "efficientnet_b0": 224, "regnet_y_400mf": 224,
}  # fmt: skip


def program(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Return an exported network and its input."""
    from pytorch.programs import Irregular

    torch.manual_seed(0)
    if name == "irregular":
        model, x = Irregular(), torch.randn(Irregular.SHAPE)
    else:
        import torchvision

        more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        model, x = getattr(torchvision.models, name)(weights=None, **more), torch.randn(1, 3, *[NETWORKS[name]] * 2)
    return torch.export.export(model.eval(), (x,)), (x,)


def planned(exported: Any, planning: Any) -> Any:
    from executorch.exir import ExecutorchBackendConfig, to_edge

    config = ExecutorchBackendConfig(**({"memory_planning_pass": planning} if planning else {}))
    return to_edge(exported).to_executorch(config)


def outputs(manager: Any, args: tuple[torch.Tensor, ...]) -> list[bytes]:
    """Run a program in ExecuTorch's runtime."""
    from executorch.runtime import Runtime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pte"
        path.write_bytes(manager.buffer)
        found = Runtime.get().load_program(path).load_method("forward").execute(args)
        return [each.numpy().tobytes() for each in found]


def row(name: str, seconds: float, runs: bool) -> bool:
    """Print one row; return True if a plan is larger than ExecuTorch's own."""
    from remat.torch.executorch import MemoryPlanning

    exported, args = program(name)
    default = planned(exported, None)
    before = sum(default.executorch_program.execution_plan[0].non_const_buffer_sizes)
    sizes, manager, plan = [before], default, None
    for reorder, in_place in ((False, False), (True, False), (True, True)):
        planning = MemoryPlanning(reorder=reorder, in_place=in_place, time_limit=seconds)
        manager = planned(exported, planning)
        (plan,) = planning.plans
        sizes.append(sum(plan.after))
    assert plan is not None
    if runs and outputs(manager, args) != outputs(default, args):
        raise SystemExit(f"{name}: outputs differ")
    gap = "proved" if plan.proved else f"{plan.bound:,} ({100 * (1 - plan.bound / sizes[-1]):.1f} % below)"
    print(f"| {name} | {' | '.join(f'{size:,}' for size in sizes)} | {gap} | {plan.moved} |", flush=True)
    return max(sizes) > before


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="networks; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of each plan")
    parser.add_argument("--no-run", action="store_true", help="do not compare outputs")
    given = parser.parse_args()
    if not find_spec("executorch"):
        print("executorch is not installed")
        return 0
    vision = NETWORKS if find_spec("torchvision") else {}
    warnings.simplefilter("ignore")
    print(
        "| network | ExecuTorch | addresses | and order | and in place | least | moved |\n|---|---|---|---|---|---|---|"
    )
    return sum(row(name, given.seconds, not given.no_run) for name in given.names or [*vision, "irregular"])


if __name__ == "__main__":
    raise SystemExit(main())
