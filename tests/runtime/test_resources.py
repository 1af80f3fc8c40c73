"""Available CPUs and memory: affinity, quotas of control groups, limits."""

import os
import resource
import subprocess
import sys

import pytest

from remat.backends.cp_sat import CpSat
from remat.modeling import Linear, Model
from remat.runtime import resources
from remat.runtime.solve_options import SolveOptions


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that writes files in place of those of the kernel."""
    monkeypatch.setattr(resources, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(resources, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "_address_space", lambda: float("inf"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


def test_without_limits(machine):
    assert resources.available_cpus() == 8
    assert resources.available_memory() == float("inf")
    assert resources.available_memory(5) == 5


def test_control_groups_version_2(machine):
    machine(
        proc__meminfo="MemTotal: 9000 kB\nMemAvailable: 4000 kB\n",
        proc__self__cgroup="0::/a/b\n",
        cgroup__a__cpu_DOT_max="350000 100000\n",
        cgroup__a__b__cpu_DOT_max="max 100000\n",
    )
    assert resources.available_cpus() == 3
    assert resources.available_memory() == 4000 * 1024
    machine(
        cgroup__a__memory_DOT_max="1000000\n",
        cgroup__a__memory_DOT_current="900000\n",
        cgroup__a__memory_DOT_stat="anon 5\ninactive_file 300000\n",
        cgroup__a__b__memory_DOT_max="max\n",
        cgroup__a__b__memory_DOT_current="900000\n",
    )
    assert resources.available_memory() == 400_000
    assert resources.available_memory(1000) == 1000


def test_control_groups_version_1(machine):
    machine(
        proc__self__cgroup="4:memory:/x\n2:cpu,cpuacct:/\n",
        cgroup__cpu__cpu_DOT_cfs_quota_us="150000\n",
        cgroup__cpu__cpu_DOT_cfs_period_us="100000\n",
        cgroup__memory__x__memory_DOT_limit_in_bytes="5000\n",
        cgroup__memory__x__memory_DOT_usage_in_bytes="4000\n",
    )
    assert resources.available_cpus() == 1
    assert resources.available_memory() == 1000
    machine(cgroup__cpu__cpu_DOT_cfs_quota_us="-1\n")
    assert resources.available_cpus() == 8


def test_limit_of_address_space():
    code = (
        "import resource; from remat.runtime.resources import available_memory\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({2**31}, {2**31})); print(0 < available_memory() < {2**31})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_cp_sat_respects_affinity():
    before = os.sched_getaffinity(0)
    model = Model("small")
    x = model.integers("x", 2, 0, 3)
    model.add(Linear.rows("sum", [0, 0], x.index, 1, lower=[4]))
    model.minimize(x.index, 1)
    log: list[str] = []
    try:
        os.sched_setaffinity(0, {min(before)})
        assert resources.available_cpus() == 1
        CpSat().solve(model, SolveOptions(log=log.append))
    finally:
        os.sched_setaffinity(0, before)
    assert any("1 worker" in line or "num_workers: 1" in line for line in log), log[:20]
